"""The training loop, update rules and checks, shared by all problems."""
