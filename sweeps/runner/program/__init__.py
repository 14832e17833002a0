"""Programs of sweeps: what identifies them, and where compiled ones are kept."""
