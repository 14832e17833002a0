"""Accuracy of the theory of finite T and batch: its order, and its spread compared with that of
runs."""
