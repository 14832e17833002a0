"""Theories of the attention layer in Y and Z, a rung of the ladder per file."""
