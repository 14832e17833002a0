"""Loops in PyTorch with which sweeps are compared."""
