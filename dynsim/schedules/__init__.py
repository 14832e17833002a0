"""Learning-rate schedules: the rate of each step.

Pass one as `eta` to `dynsim.sgd`, `dynsim.adamw` or another rule. All numbers of a schedule may be
traced: one compiled program serves a grid over peaks, warm-up lengths and final rates. Schedules do
not depend on the length of the run and keep their final rate after their last step, so that a run
can be resumed for more steps. `Schedule.rate(step)` and `Schedule.eta_time(steps)` return the rate
of a step and the sum of the rates before it. Subclass `Schedule` to define your own.

A rate belongs to a whole step. Steps are counted from 0, as in optax: step k is the update after k
others. A run of n steps asks a schedule for the rates of the steps 0 to n - 1, and so does a theory
of that run. In continuous time, the rate of step k acts from k to k + 1: see `Table`.

Example:
    >>> rule = dynsim.adam(dynsim.schedules.warmup_cosine(1e-2, warmup=10, steps=200))
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, AnyPositive, AnyReal
from dynsim.schedules.base import (
    Function,
    Piece,
    PiecewiseConstant,
    Schedule,
    as_divisor,
    constant_piece,
    linear_piece,
)
from dynsim.schedules.base import Table as Table  # part of the reference

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


class Constant(PiecewiseConstant):
    """A constant rate, after a linear warm-up if `warmup` steps are given.

    Raises:
        ValueError: for a negative number.

    Example:
        >>> dynsim.schedules.constant(0.1, warmup=10).rate(5)
        Array(0.05, dtype=float32, weak_type=True)
    """

    SHORT: ClassVar = "peak"

    def after_warmup(self) -> tuple[Piece, ...]:
        return (constant_piece(jnp.inf, 1),)


class OfStep(Schedule):
    """A function of the step, a whole number from 0."""

    function: Function = eqx.field(static=True)

    @property
    def is_scaled(self) -> bool:
        return False

    def after_warmup(self) -> tuple[Piece, ...]:
        def rate(k: Array) -> AnyArray:
            with checks.code_of_user("eta", k):
                rate = checks.call_of_user(self.function, self.function, k)
            if not eqx.is_array_like(rate) or jnp.shape(rate) != ():
                shown = eqx.tree_pformat(rate)
                raise ValueError(f"eta: must return the rate of a step, returned {shown}")
            return rate

        def rates(k: Array) -> AnyArray:
            # The user's function is written for one step, which it may use as an index or to choose
            # a branch.
            return rate(k) if k.ndim == 0 else jnp.vectorize(lambda k: jnp.asarray(rate(k)))(k)

        return (Piece(jnp.inf, rates),)


def proportional(first: Schedule, second: Schedule) -> bool:
    """Return whether two schedules differ only in their peaks. Traced numbers are not compared."""
    shapes = [dataclasses.replace(schedule, peak=1.0) for schedule in (first, second)]
    same_kind = jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])
    pairs = zip(*map(jax.tree.leaves, shapes), strict=same_kind)
    return same_kind and (checks.is_traced(shapes) or all(np.array_equal(a, b) for a, b in pairs))


def as_schedule(field: str, eta: Schedule | Function | AnyReal | None) -> Schedule:
    """Convert a learning rate to a schedule: a number, a schedule, or a function of the step.

    Raises:
        ValueError: for anything else, naming `field`.
    """
    if isinstance(eta, Schedule):
        return eta
    if callable(eta) and not isinstance(eta, jax.Array):
        return OfStep(1.0, eta)
    checks.real(field, eta, 0)
    assert eta is not None
    if isinstance(eta, list | tuple):
        raise ValueError(f"{field} = {eta!r}: must be one rate; use an axis of a sweep for several")
    return Constant(eta)


class Decreasing(Schedule):
    """A rate that decays from its peak to `end` times the peak at step `steps`.

    Attributes:
        steps: when the decay ends, in steps from the start of the run, including the warm-up.
        end: the final rate over the peak.
    """

    steps: AnyPositive
    end: AnyNotNegative = 0.0

    def __check_init__(self) -> None:
        # The check of the base class runs later, but `warmup` is compared with valid `steps`.
        decoding.check_annotations(self)
        if not checks.is_traced((self.steps, self.risen)):
            checks.real("warmup", self.risen, 0, float(np.min(self.steps)))

    @property
    def length(self) -> AnyReal:
        return self.steps


class Linear(Decreasing):
    """A linear decay from `peak` to `end` times `peak` at step `steps`, which counts from the start
    of the run, including the warm-up.

    Raises:
        ValueError: for a number out of its range, or a warm-up that is longer than `steps`.
    """

    def after_warmup(self) -> tuple[Piece, ...]:
        return linear_piece(self.risen, self.steps, 1, self.end), constant_piece(jnp.inf, self.end)


class Cosine(Decreasing):
    """A decay along half a cosine from `peak` to `end` times `peak`; otherwise like `Linear`.

    `optax.warmup_cosine_decay_schedule(0, peak, warmup, steps, end * peak)` has the same rates.
    """

    def after_warmup(self) -> tuple[Piece, ...]:
        speed = jnp.pi / as_divisor(self.steps - self.risen)
        mean, half = (1 + self.end) / 2, (1 - self.end) / 2
        rate = lambda t: mean + half * jnp.cos(speed * (t - self.risen))  # noqa: E731
        return Piece(self.steps, rate), constant_piece(jnp.inf, self.end)


class Exponential(Schedule):
    """An exponential decay.

    Attributes:
        steps: number of steps, after the warm-up, that multiply the rate by `factor`.
        factor: rate after these steps, divided by the rate before them.

    Raises:
        ValueError: unless `steps` and `factor` are positive and `warmup` is not negative.
    """

    steps: AnyPositive
    factor: AnyPositive

    def after_warmup(self) -> tuple[Piece, ...]:
        decay = jnp.log(self.factor) / self.steps
        return (Piece(jnp.inf, lambda t: jnp.exp(decay * (t - self.risen))),)


class InverseSqrt(Schedule):
    """A linear warm-up, then `peak` times sqrt(warmup / step), as in *Attention Is All You Need*.

    Raises:
        ValueError: unless `warmup` is at least 1.
    """

    def __check_init__(self) -> None:
        checks.real("warmup", self.warmup, 1)

    def after_warmup(self) -> tuple[Piece, ...]:
        # Not used before the end of the warm-up, but evaluated and differentiated there.
        rate = lambda t: jnp.sqrt(self.risen / jnp.maximum(t, self.risen))  # noqa: E731
        return (Piece(jnp.inf, rate),)


class WarmupStableDecay(Schedule):
    """A constant rate after the warm-up, then a linear decay.

    Attributes:
        stable: number of steps at the peak.
        cooldown: number of steps of the decay.
        end: the final rate over the peak.

    Raises:
        ValueError: for a negative number, naming it.
    """

    stable: AnyNotNegative
    cooldown: AnyNotNegative
    end: AnyNotNegative = 0.0

    @property
    def length(self) -> AnyReal:
        return self.risen + self.stable + self.cooldown

    def after_warmup(self) -> tuple[Piece, ...]:
        begin = self.risen + self.stable
        falling = linear_piece(begin, self.length, 1, self.end)
        return constant_piece(begin, 1), falling, constant_piece(jnp.inf, self.end)


class Steps(PiecewiseConstant):
    """A rate that jumps: from step `at[i]` on it is `factors[i]` times `peak`.

    Attributes:
        at: the steps at which it jumps.
        factors: the rate after each of them, over the peak.

    Raises:
        ValueError: for sequences of different lengths, steps that do not increase after `warmup`,
            or a negative factor.
    """

    at: tuple[AnyReal, ...] = eqx.field(converter=tuple)
    factors: tuple[AnyReal, ...] = eqx.field(converter=tuple)

    def __check_init__(self) -> None:
        if len(self.at) != len(self.factors) or not self.at:
            raise ValueError(
                f"at, factors: need one factor for each step, got {self.at} and {self.factors}"
            )
        if not checks.is_traced((self.at, self.risen)):
            for before, after in zip((self.risen, *self.at[:-1]), self.at, strict=True):
                # Both may be arrays of many runs.
                low, high = map(np.ravel, np.broadcast_arrays(before, after))
                worst = np.argmin(high - low)
                checks.real("at", high[worst], float(low[worst]))
        for factor in self.factors:
            checks.real("factors", factor, 0)

    @property
    def length(self) -> AnyReal:
        return self.at[-1]

    def after_warmup(self) -> tuple[Piece, ...]:
        heights = (1.0, *self.factors)
        return tuple(
            constant_piece(until, height)
            for until, height in zip((*self.at, jnp.inf), heights, strict=True)
        )


constant = Constant
linear = Linear
cosine = Cosine
exponential = Exponential
inverse_sqrt = InverseSqrt
warmup_stable_decay = WarmupStableDecay
steps = Steps


def warmup_cosine(peak: AnyReal, warmup: AnyReal, steps: AnyReal, end: AnyReal = 0.0) -> Cosine:
    """`cosine` after a linear warm-up, the usual schedule of language models, with its arguments in
    the order of `optax.warmup_cosine_decay_schedule`.

    Example:
        >>> eta = dynsim.schedules.warmup_cosine(1e-2, warmup=10, steps=200)
        >>> rule = dynsim.adamw(eta, decay=1e-3, clip=1.0)
    """
    return Cosine(peak, steps, end, warmup=warmup)
