"""Figure of the factors W_Q, W_K and W_V of Y and Z (Scan and Snap, arXiv:2305.16380)."""
