"""Loops in PyTorch with which the sweep engine is compared."""
