"""The two-stage experiment: runs, theories, claims and pictures."""
