"""Compile the programs of sweeps for accelerators that are not present."""
