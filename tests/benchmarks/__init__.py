"""Benchmarks: ratios and rates, each measured in one run on one machine."""
