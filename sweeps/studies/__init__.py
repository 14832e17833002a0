"""One folder a question: its computation and its figure together."""
