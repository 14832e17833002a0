"""Which learning rate is best, how well that is known, and how it changes with another setting."""
