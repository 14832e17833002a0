"""Learning-rate schedules.

Pass one as `eta` to `dynsim.sgd`, `dynsim.adamw` or another rule. Each number of a schedule may be
traced: one compiled program serves a grid over peaks, warm-up lengths and final rates. No schedule
reads the length of the run; after its last step it keeps its final rate, so that a run can be
resumed for more steps. `Schedule.rate(step)` and `Schedule.eta_time(steps)` return the rate of a
step and the sum of the rates before it. Subclass `Schedule` to define your own.

Example:
    >>> rule = dynsim.adam(dynsim.schedules.warmup_cosine(1e-2, warmup=10, steps=200))
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Real

from dynsim.precision import Number
from dynsim.schedules.schedule import Constant, Piece, Schedule
from dynsim.schedules.shapes import (
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    Steps,
    WarmupStableDecay,
)

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "InverseSqrt",
    "Linear",
    "Piece",
    "Schedule",
    "Steps",
    "WarmupStableDecay",
    "constant",
    "cosine",
    "exponential",
    "inverse_sqrt",
    "linear",
    "steps",
    "warmup_cosine",
    "warmup_stable_decay",
]

Values = Real[Number, "*#P"]


def constant(eta: Values, warmup: Values | None = None) -> Schedule:
    """A constant rate, after a linear warm-up if `warmup` steps are given.

    Raises:
        ValueError: for a negative number.

    Example:
        >>> dynsim.schedules.constant(0.1, warmup=10).rate(5)
        Array(0.05, dtype=float32, weak_type=True)
    """
    return Constant(eta, warmup=warmup)


def linear(
    peak: Values, steps: Values, end: Values = 0.0, warmup: Values | None = None
) -> Schedule:
    """A linear fall from `peak` to `end` times `peak` at step `steps`.

    Args:
        peak: the highest rate, 1/step.
        steps: when the fall ends, in steps from the start of the run, warm-up included.
        end: the final rate over the peak, in [0, inf).
        warmup: steps of a linear rise from 0 to `peak`, at most `steps`.

    Raises:
        ValueError: for a number out of its range, naming it.
    """
    return Linear(peak, steps, end, warmup=warmup)


def cosine(
    peak: Values, steps: Values, end: Values = 0.0, warmup: Values | None = None
) -> Schedule:
    """Half a period of a cosine from `peak` to `end` times `peak`; otherwise like `linear`.

    `optax.warmup_cosine_decay_schedule(0, peak, warmup, steps, end * peak)` has the same rates.
    """
    return Cosine(peak, steps, end, warmup=warmup)


def warmup_cosine(peak: Values, warmup: Values, steps: Values, end: Values = 0.0) -> Schedule:
    """`cosine` after a linear warm-up: the usual schedule of language models.

    Example:
        >>> eta = dynsim.schedules.warmup_cosine(1e-2, warmup=10, steps=200)
        >>> rule = dynsim.adamw(eta, decay=1e-3, clip=1.0)
    """
    return cosine(peak, steps, end, warmup)


def exponential(
    peak: Values, steps: Values, factor: Values, warmup: Values | None = None
) -> Schedule:
    """An exponential decay: every `steps` steps after the warm-up multiply the rate by `factor`.

    Raises:
        ValueError: unless `steps` and `factor` are positive and `warmup` is not negative.
    """
    return Exponential(peak, steps, factor, warmup=warmup)


def inverse_sqrt(peak: Values, warmup: Values) -> Schedule:
    """A linear warm-up, then `peak` times sqrt(warmup / step), as in *Attention Is All You Need*.

    Raises:
        ValueError: unless `warmup` is at least 1.
    """
    return InverseSqrt(peak, warmup=warmup)


def warmup_stable_decay(
    peak: Values, warmup: Values, stable: Values, cooldown: Values, end: Values = 0.0
) -> Schedule:
    """A linear warm-up, a constant rate, and a linear fall to `end` times `peak`.

    Args:
        peak: the highest rate, 1/step.
        warmup, stable, cooldown: number of steps of each stage.
        end: the final rate over the peak, in [0, inf).

    Raises:
        ValueError: for a negative number, naming it.
    """
    return WarmupStableDecay(peak, stable, cooldown, end, warmup=warmup)


def steps(
    peak: Values, at: Sequence[Values], factors: Sequence[Values], warmup: Values | None = None
) -> Schedule:
    """A rate that jumps: from step `at[i]` on it is `factors[i]` times `peak`.

    Raises:
        ValueError: for sequences of different lengths, steps that do not increase after `warmup`,
            or a negative factor.
    """
    if len(at) != len(factors) or not len(at):
        raise ValueError(f"at, factors: need one factor for each step, got {at!r} and {factors!r}")
    return Steps(peak, tuple(at), tuple(factors), warmup=warmup)
