"""Hidden nodes and attention (JoMA) on sequence classes."""

import dataclasses
import math

from dynsim import JoMA
from odes.joma import LADDER
from sweeps.systems.base import Labels
from sweeps.systems.engines import system
from sweeps.systems.yz.memory import LAYER

SYSTEM = system(
    JoMA(LAYER),
    "joma",
    descends=lambda problem: dataclasses.replace(problem, length=math.inf),
    theories=LADDER.built_in.values(),
    registered=LADDER.registered,
    labels=Labels(
        about={
            "eta_y": ("learning rate of the MLP", "1/step"),
            "eta_z": ("learning rate of the attention logits", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "temperature": ("temperature of the attention", "1"),
            "steps": ("optimiser steps", "step"),
            "loss": ("population loss", "nat"),
            "batch_loss": ("loss of the next batch", "nat"),
            "entropy": ("entropy of attention", "nat"),
            "logits": ("logits", "nat"),
            "correlation": ("correlation of both sides of Theorem 1", "1"),
            "weight": ("norm of the weights of a token", "1"),
        },
        inner_dims={
            **dict.fromkeys(("conserved", "weight"), ("token",)),
            "logits": ("query", "token"),
            "attended": ("class", "token"),
        },
    ),
    tile=32,
)
