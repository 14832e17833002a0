"""How a sweep runs and is kept."""
