"""What can be swept: one folder or file a system, and their registry."""
