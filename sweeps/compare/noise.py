"""How far the noise of batches scatters the loss of a run, and whether linear noise describes it:
for `dynsim explain`."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from dynsim import Problem, Rule, Status
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import BATCH_LOSS
from odes.batch_noise import THEORY, orders, size_of
from odes.solver.linear_noise import AVERAGE_SQUARES
from sweeps.compare.edge import LARGEST

FIRST, WORK = 300, 300_000
"""Steps over which the noise is carried, at most, and these times the weights: `explain` answers
within half a minute."""
EXAMPLES, BATCHES_OF, DRAWS = (32, 128), 4, 16
"""Examples of a step, as many as so many batches within these limits, and draws of the noise for
the next order in 1/B."""
NOTHING = 1e-9
"""Share of the loss below which a standard deviation is rounding."""
WIDER, MOVED = 1.2, 0.05
"""Where the next order makes the standard deviation so many times as large, or moves the mean by
that share of the fall, linear noise or a flow is strained."""
BATCHES = 32
"""Drawn at the start to know how far squares of the gradient scatter."""
UNEVEN = 0.1
"""Variance of an average of squares v, over its squared mean, above which linear noise is strained:
E 1 / v, which is in variances, is then 10 % above 1 / E v, and standard deviations are off by 5 %.
"""


@dataclasses.dataclass(frozen=True)
class Noise:
    """The loss of runs from the same weights at a step, by linear noise and to the next order.

    Attributes:
        name: "loss", or "batch_loss" of a problem without a population loss.
        step: after so many optimiser steps.
        fall: fall of the loss by then.
        mean: mean of the loss, without noise.
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
    if THEORY.why_not(problem, rule, batch, steps):
        return None
    size = size_of(problem)
    # The gradients of all examples, which averages of squares need, take ten times as long.
    if size > LARGEST and isinstance(rule, AVERAGE_SQUARES):
        return None
    end = min(steps, FIRST, max(WORK // size, 1))
    name = "loss" if problem.has("population_loss") else BATCH_LOSS
    examples = int(np.clip(BATCHES_OF * batch, *EXAMPLES))
    linear, second = orders(
        *(problem, rule, [0, end], batch, key),
        record=name,
        steps=(0, end),
        starts=1,
        examples=examples,
        squares=True,
        passes=2,
        draws=DRAWS,
    )
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


def few_squares(
    problem: Problem, rule: Rule, key: jax.Array, steps: int, batch: int | float
) -> list[str]:
    """Up to which step the average of squares of Adam or RMSProp consists of so few that linear
    noise is strained."""
    if not isinstance(rule, AVERAGE_SQUARES) or THEORY.why_not(problem, rule, batch, steps):
        return []
    # With weights b2^k, an average is one of (1 - b2^k) (1 + b2) / ((1 + b2^k) (1 - b2)) squares
    # after k steps.
    b2 = float(rule.b2)
    needed = variance_of_squares(problem, key, steps, int(batch)) / UNEVEN
    share = needed * (1 - b2) / (1 + b2)
    last = math.inf
    if share < 1:
        last = math.log((1 - share) / (1 + share)) / math.log(b2) if b2 else 0.0
    if last < 1:
        return []
    return [
        f"linear noise (standard deviations across seeds): up to step {min(last, steps):.0f} the "
        f"average of squares of {rule.name} scatters by more than {100 * math.sqrt(UNEVEN):.0f} % "
        "of itself; expect errors above 5 %"
    ]


def variance_of_squares(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Variance of the square of the gradient of a batch at the start, over its squared mean; mean
    over the weights."""
    with precision("float64"):
        cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
        drawn = jax.jit(problem_in(problem, "float32").batches(key, steps, batch))
        weights = parts.whole(parts.params)

        @eqx.filter_jit
        def gradient(data: PyTree) -> Float[Array, " n"]:
            return ravel_pytree(cast.loss_and_gradient(weights, data)[1])[0]

        # One after the other: a batch may fill the memory.
        found = []
        for k in range(BATCHES):
            with jax.enable_x64(False):
                data = drawn(jnp.int32(k))
            found.append(np.asarray(gradient(narrowed(data, "float64"))))
    squares = np.square(found)
    mean, variance = squares.mean(axis=0), squares.var(axis=0, ddof=1)
    # Weights whose gradient vanishes do not move.
    moving = mean > 0
    return float(np.mean(variance[moving] / mean[moving] ** 2)) if moving.any() else 0.0
