"""The attention layer in Y and Z (Scan and Snap)."""
