"""The attention layer in Y and Z as the sweep engine sees it."""
