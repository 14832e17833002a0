"""Where sweeps are kept."""
