"""Compiling what sweeps run for accelerators that are not there."""
