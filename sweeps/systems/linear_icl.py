"""In-context regression by linear attention."""

from dynsim.linear_icl.regression import Regression
from sweeps.systems.base import Labels
from sweeps.systems.engines import system

SYSTEM = system(
    Regression(),
    "linear_icl",
    labels=Labels(
        about={
            "eta": ("learning rate", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "loss": ("population mean square error", "1"),
        },
        inner_dims={
            "learned": ("component",),
            **dict.fromkeys(("values", "imbalance"), ("head",)),
            "matrix": ("row", "column"),
        },
    ),
    tile=256,
)
