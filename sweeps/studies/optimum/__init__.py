"""The best learning rate, its error, and how it changes with another setting."""
