"""Retrieval of one token (the emergence of sparse attention)."""

from dynsim.sparse_attention.retrieval import Retrieval
from odes.sparse_attention import LADDER
from sweeps.systems.base import Labels
from sweeps.systems.engines import system

SYSTEM = system(
    Retrieval(),
    "sparse_attention",
    ladder=LADDER,
    labels=Labels(
        about={
            "length": ("tokens of a sequence", "tokens"),
            "eta": ("learning rate", "1/step"),
            "loss": ("population mean square error / 2", "1"),
        }
    ),
    tile=8,
)
