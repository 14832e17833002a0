"""Results of papers, each a problem with its theories in one module, written with public names only."""
