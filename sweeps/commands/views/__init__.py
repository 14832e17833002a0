"""Commands that visualize stored sweeps."""
