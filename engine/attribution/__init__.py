"""Neuron attribution (METHODS.md §1): one file a method; each docstring is its algorithm."""
