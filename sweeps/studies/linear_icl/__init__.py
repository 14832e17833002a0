"""In-context regression: the paper's figures, and where heads learn one at a time."""
