"""Runs sweeps, stores their results, and resumes them."""
