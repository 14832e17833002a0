"""How far the noise of batches scatters the loss of a run, and whether linear noise describes it:
for `dynsim explain`."""

import dataclasses
import math

import jax
import numpy as np

import odes
from dynsim import Problem, Rule, Status
from dynsim.training.recording import BATCH_LOSS
from odes.batch_noise import THEORY, size_of
from sweeps.compare.edge import LARGEST

FIRST = 300
"""Steps over which the noise is carried, at most: `explain` answers within seconds."""
EXAMPLES, DRAWS = 128, 32
"""Examples of a step, and draws of the noise for the next order in 1/B."""
NOTHING = 1e-9
"""Share of the loss below which a standard deviation is rounding."""
WIDER, MOVED = 1.2, 0.05
"""Where the next order makes the standard deviation so many times as large, or moves the mean by
that share of the fall, linear noise or a flow is strained."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """The loss of runs from the same weights at a step, by linear noise and to the next order.

    Attributes:
        name: "loss", or "batch_loss" of a problem without a population loss.
        step: after so many optimiser steps.
        fall: of the loss by then.
        mean: of the loss, without noise.
        std: standard deviation across seeds, by linear noise.
        wider: to the next order in 1/B, over that.
        moved: what noise adds to the mean.
    """

    name: str
    step: int
    fall: float
    mean: float
    std: float
    wider: float
    moved: float

    def __str__(self) -> str:
        share = f", {100 * self.std / abs(self.fall):.2g} % of the fall" if self.fall else ""
        return (
            f"Linear noise: at step {self.step} {self.name} is {self.mean:.4g} with a standard "
            f"deviation of {self.std:.2g} across seeds{share}. Noise moves the mean by "
            f"{self.moved:.2g}."
        )

    @property
    def strained(self) -> list[str]:
        """What the noise strains, one sentence each."""
        found = []
        if not self.wider <= WIDER:
            found.append(
                f"linear noise (standard deviations across seeds): at step {self.step} the next "
                f"order in 1/B makes that of the loss {self.wider:.2g} times as large, above "
                f"{WIDER}; pass draws to odes.linear_noise"
            )
        if abs(self.moved) > MOVED * abs(self.fall):
            found.append(
                f"batch -> infinity (all flows): at step {self.step} noise moves the mean of the "
                f"loss by {self.moved:.2g}, above {100 * MOVED:g} % of its fall"
            )
        return found


def measured(
    problem: Problem, rule: Rule, key: jax.Array, steps: int, batch: int | float
) -> Noise | None:
    """The noise of a run over its first steps; None for a problem or a rule that linear noise does
    not describe or that is large, and for runs that diverge."""
    if THEORY.why_not(problem, rule, batch, steps) or size_of(problem) > LARGEST:
        return None
    end = min(steps, FIRST)
    name = "loss" if problem.has("population_loss") else BATCH_LOSS
    options = {"batch": batch, "key": key, "starts": 1, "record": name, "examples": EXAMPLES}
    linear = odes.linear_noise(problem, rule, [0, end], **options)
    second = odes.linear_noise(problem, rule, [0, end], draws=DRAWS, **options)
    if int(linear.status) != Status.OK:
        return None
    loss = np.asarray(linear[name], np.float64)
    std, whole = (float(each.std[name][-1]) for each in (linear, second))
    some = whole > NOTHING * np.abs(loss).max()
    return Noise(
        name,
        end,
        float(loss[0] - loss[-1]),
        float(loss[-1]),
        std,
        (whole / std if std else math.inf) if some else 1.0,
        float(second[name][-1] - loss[-1]),
    )
