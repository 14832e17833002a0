"""Retrieval of one token (the emergence of sparse attention)."""

from dynsim.sparse_attention import Retrieval
from sweeps.systems.base import Labels
from sweeps.systems.engines import system

SYSTEM = system(
    Retrieval(),
    "sparse_attention",
    labels=Labels(
        about={
            "length": ("tokens of a sequence", "tokens"),
            "eta": ("learning rate", "1/step"),
            "loss": ("population mean square error / 2", "1"),
        }
    ),
    tile=8,
)
