"""The edge of stability: sharpness over training, next to flows and the central flow."""
