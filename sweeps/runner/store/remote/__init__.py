"""Stores in a bucket: its objects, and the lease of who writes there."""
