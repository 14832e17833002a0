"""Robustness of running sweeps, and what sharing them costs."""
