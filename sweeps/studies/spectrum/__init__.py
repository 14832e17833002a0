"""Singular values of weights, trained here or read from a checkpoint."""
