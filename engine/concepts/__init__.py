"""Fuzzy concepts: sets of neurons to which a neuron belongs by degree (METHODS.md §2)."""
