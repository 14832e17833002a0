"""Closed forms, which need no solver."""
