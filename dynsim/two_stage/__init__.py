"""Normalised-ReLU attention on prompts of two components (two-stage dynamics)."""
