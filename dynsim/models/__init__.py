"""Models: what is trained."""

from dynsim.models.yz import YZ, Examples

__all__ = ["YZ", "Examples"]
