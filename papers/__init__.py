"""Results of papers, one module each, with its problem and theories, using only public names."""
