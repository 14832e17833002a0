"""Decoder-only transformers on text."""
