"""Sparse autoencoders (SAEs) on one site of a decoder, and their latents by influence (GradSAE; METHODS.md §4)."""
