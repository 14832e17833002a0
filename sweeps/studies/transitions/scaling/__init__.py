"""Transition or crossover: how the step of an order parameter changes with the size of a system."""
