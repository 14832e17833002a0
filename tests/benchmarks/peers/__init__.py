"""The loops of others, which the sweep engine is timed against."""
