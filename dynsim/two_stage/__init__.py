"""Normalised-ReLU attention on P/Q prompts (two-stage dynamics)."""
