"""Figures, one per module. Drawing functions take `ax` and return it."""
