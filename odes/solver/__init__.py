"""Integration: the only caller of diffrax, the flows that optimisers follow, tolerances."""
