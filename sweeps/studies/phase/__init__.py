"""Phase diagrams over the plane of learning rates."""
