"""Describes runs with one set of names for files, commands, axes, stores and errors."""
