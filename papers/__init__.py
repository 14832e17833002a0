"""Results of papers: one module each, with its problem and theories, by public names only."""
