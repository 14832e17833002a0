"""Benchmarks: ratios and rates, each measured in a single run on one machine."""
