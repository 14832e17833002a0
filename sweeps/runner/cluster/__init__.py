"""Several processes, on one machine or many, at work on one sweep."""
