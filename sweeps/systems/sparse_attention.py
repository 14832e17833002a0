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
            "steps": ("optimiser steps", "step"),
            "loss": ("population mean square error / 2", "1"),
            "batch_loss": ("mean square error / 2 of the next batch", "1"),
            "attention": ("attention on the token that matters", "1"),
            "readout": ("weights along W*", "1"),
            "gap": ("score of the token that matters above the others", "1"),
        }
    ),
    tile=8,
)
