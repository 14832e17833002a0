"""Central flows: gradient descent and RMSProp at the edge of stability."""

from odes.central.flow import THEORY, central_flow

__all__ = ["THEORY", "central_flow"]
