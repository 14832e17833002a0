"""The attention layer in ordinary parameters U, W_Q, W_K and W_V."""
