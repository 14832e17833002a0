"""Singular values of weights, from two-stage training or from a checkpoint."""
