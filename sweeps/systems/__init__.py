"""What can be swept: runs, the systems that compute them, and their registry."""
