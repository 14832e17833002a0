"""The description of a run: one set of names for files, commands, axes, stores and errors."""
