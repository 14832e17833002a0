"""Singular values of the weights in a checkpoint."""
