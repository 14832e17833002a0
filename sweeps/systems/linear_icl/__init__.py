"""In-context regression by linear attention: settings, engines and labels."""

from sweeps.systems.base import Labels, System
from sweeps.systems.linear_icl.engines import ENGINES, registered
from sweeps.systems.linear_icl.settings import LinearICL

SYSTEM = System(
    name="linear_icl",
    tasks=("linear-icl",),
    run=LinearICL,
    engines=ENGINES,
    labels=Labels(
        about={
            "eta": ("learning rate", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "ratio": ("ratio of neighbouring eigenvalues", "1"),
            "steps": ("optimiser steps", "step"),
            "loss": ("population mean square error", "1"),
            "batch_loss": ("mean square error of the next batch", "1"),
            "learned": ("share of a principal component that is learned", "1"),
            "stage": ("principal components learned by half", "1"),
            "values": ("value weights", "1"),
        },
        inner_dims={
            "learned": ("component",),
            **dict.fromkeys(("values", "imbalance"), ("head",)),
            "matrix": ("row", "column"),
        },
    ),
    more=registered,
)
