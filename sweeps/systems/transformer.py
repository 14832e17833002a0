"""Decoder-only transformers on text."""

import numpy as np

from dynsim import LanguageModel, text
from sweeps.systems.base import Labels
from sweeps.systems.engines import system

_EMPTY = np.zeros(36, int)
SYSTEM = system(
    # The text is that of the run.
    LanguageModel(text(_EMPTY, _EMPTY, 2)),
    "transformer",
    labels=Labels(
        about={
            "eta": ("learning rate", "1/step"),
            "length": ("tokens of a window", "tokens"),
            "clip": ("largest norm of the gradient", "nat"),
            "loss": ("cross entropy on held-out text", "nat"),
        },
        inner_dims={
            **dict.fromkeys(("layer_entropy", "layer_top", "layer_change"), ("layer",)),
            "attention": ("prompt", "layer", "head", "query", "key"),
        },
    ),
    tile=1,
)
