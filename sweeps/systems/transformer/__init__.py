"""Transformers on text as the sweep engine sees them."""
