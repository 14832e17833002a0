"""How far theory in Y and Z describes training of its factors."""
