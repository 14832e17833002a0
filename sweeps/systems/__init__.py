"""Runs, the systems that compute them, and their registry."""
