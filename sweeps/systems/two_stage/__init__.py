"""The two-stage system as the sweep engine sees it."""
