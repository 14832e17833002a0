"""The two-stage experiment: runs, theories, claims and figures."""
