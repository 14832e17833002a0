"""Accuracy of the theory of finite T and batch: its order, and its standard deviation."""
