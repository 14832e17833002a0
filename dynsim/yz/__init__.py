"""Models: what is trained."""

from dynsim.yz.model import YZ, Examples

__all__ = ["YZ", "Examples"]
