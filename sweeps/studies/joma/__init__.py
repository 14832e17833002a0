"""Joint dynamics of an MLP layer and attention: Theorem 1 along training, growth, entropy."""
