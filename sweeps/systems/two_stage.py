"""Normalised-ReLU attention on P/Q prompts (two-stage dynamics): training and the reduced ODE."""

from collections.abc import Mapping

from dynsim import FastPrompts, JointPrompts, Prompts
from sweeps.systems.base import Engine, Labels
from sweeps.systems.engines import system

NUMBERS = 2**15
"""Bytes of an adaptive solver of a few numbers, and of what it observes by quadrature."""


def _engines(found: Mapping[str, Engine]) -> Mapping[str, Engine]:
    """Runs go from record to record, and leave no checkpoint. Adaptive solves of a few numbers wait
    for the stiffest of a batch. What begins from the states that a run measured is no engine."""
    return {
        name: engine._replace(goes_on=False)
        if engine.trains
        else engine._replace(tile=32, bytes_per_run=lambda task, settings: NUMBERS)
        for name, engine in found.items()
    }


SYSTEM = system(
    Prompts(),
    "two_stage",
    problems=(Prompts, FastPrompts, JointPrompts),
    engines=_engines,
    tile=1,
    compare="sweeps.studies.two_stage.compare:TwoStageComparison",
    # The rate at which Q grows without noise rises with r.
    stiffness=lambda numbers: numbers["r"],
    labels=Labels(
        about={
            "loss": ("joint logistic loss", "nat"),
            "tau": ("stationary noise of a weight at eta_1", "1"),
            "r": ("shift of the negative class of component Q", "1"),
            "decay": ("weight decay", "1/eta-time"),
        },
        inner_dims={
            **{f"{block}_singular": ("rank",) for block in "WV"},
            **{f"{block}_signal": ("row", "column") for block in "WV"},
            "state": ("reduced",),
        },
    ),
)
