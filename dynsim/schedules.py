"""Learning-rate schedules, as piecewise functions of the step with their sums in closed form.

Pass one as `eta` to `dynsim.sgd`, `dynsim.adamw` or another rule. All numbers of a schedule may be
traced: one compiled program serves a grid over peaks, warm-up lengths and final rates. Schedules do
not depend on the length of the run and keep their final rate after their last step, so that a run
can be resumed for more steps. `Schedule.rate(step)` and `Schedule.eta_time(steps)` return the rate
of a step and the sum of the rates before it. Subclass `Schedule` to define your own.

Steps are counted from 0, as in optax: step k is the update after k others. A flow needs a rate at
all times t, and integrates the rate of step k from k to k + 1. It uses
eta(t - 1/2), whose integral equals the sum of the rates: exactly for constant and linear rates, and
up to eta''/24 per step otherwise [ours].

Example:
    >>> rule = dynsim.adam(dynsim.schedules.warmup_cosine(1e-2, warmup=10, steps=200))
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, AnyPositive, Number

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

Function = Callable[[Array], Real[AnyArray, "..."]]
Values = Real[Number, "*#P"]


class Piece(NamedTuple):
    """A schedule up to step `until`: the rate, and its antiderivative with respect to the step."""

    until: Real[Number, ""]
    rate: Function
    integral: Function


def flat(until: Real[Number, ""], height: Real[Number, ""]) -> Piece:
    return Piece(until, lambda t: height * jnp.ones_like(t), lambda t: height * t)


def line(
    begin: Real[Number, ""],
    until: Real[Number, ""],
    first: Real[Number, ""],
    last: Real[Number, ""],
) -> Piece:
    slope = (last - first) / positive(until - begin)
    return Piece(
        until,
        lambda t: first + slope * (t - begin),
        lambda t: first * (t - begin) + slope * (t - begin) ** 2 / 2,
    )


def positive(length: Real[Number, ""]) -> Array:
    """Return the length of a piece as a divisor. Empty pieces are evaluated, but not used."""
    return jnp.maximum(jnp.asarray(length), 1e-30)


AnyRate = Annotated[AnyNotNegative, decoding.Unit("1/step")]


class Schedule(eqx.Module):
    """A learning rate that depends on the step. Create one with a function of this module.

    Attributes:
        peak: rate after the warm-up, 1/step.
        warmup: number of steps over which the rate rises linearly from 0 to `peak`, or None.
    """

    peak: AnyRate
    warmup: AnyNotNegative | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        decoding.check_stated(self)

    @abc.abstractmethod
    def after_warmup(self) -> tuple[Piece, ...]:
        """Return the pieces after the warm-up, for a peak of 1; the last one has no end."""

    @property
    def length(self) -> Real[Number, "*#P"]:
        """Number of steps after which the rate no longer changes; 0 if it keeps changing."""
        return self.risen

    def pieces(self) -> tuple[Piece, ...]:
        """Return all pieces in order, for a peak of 1."""
        if self.warmup is None:
            return self.after_warmup()
        return (line(0, self.warmup, 0, 1), *self.after_warmup())

    @property
    def risen(self) -> Real[Number, "*#P"]:
        """Step at which the warm-up ends."""
        return 0.0 if self.warmup is None else self.warmup

    def rate(self, step: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Learning rate of the update after `step` steps."""
        return self.peak * self._chosen(step, jnp.asarray(step))

    def flow_rate(self, t: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Rate of a flow at time `t`, in steps: :math:`\\eta(t - 1/2)` on the piece of `t`."""
        return self.peak * self._chosen(t, jnp.asarray(t) - 0.5)

    def eta_time(self, steps: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Integral of `flow_rate` from 0: the sum of the rates of the first `steps` steps."""
        return self.peak * self.peak_steps(steps)

    def peak_steps(self, steps: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Number of steps at the peak rate with the same sum of rates as the first `steps`
        steps."""
        t = jnp.asarray(steps)
        total, begin = jnp.zeros_like(t, dtype=jnp.result_type(t, float)), 0.0
        for until, _, integral in self.pieces():
            left, right = (jnp.clip(t, None, end) - 0.5 for end in (begin, until))
            total += jnp.where(t > begin, integral(right) - integral(left), 0.0)
            begin = jnp.maximum(begin, until)
        return total

    def jumps(self) -> tuple[Real[Number, ""], ...]:
        """Steps at which the rate or its slope is discontinuous, so that a solver must restart."""
        return tuple(piece.until for piece in self.pieces()[:-1])

    def _chosen(self, where: Real[Number, "*S"], at: Array) -> Array:
        *before, last = self.pieces()
        found = last.rate(at)
        # Times before the start belong to the first piece with a positive length.
        where = jnp.maximum(where, 0)
        for piece in reversed(before):
            found = jnp.where(where < piece.until, piece.rate(at), found)
        return jnp.asarray(found)


class Constant(Schedule):
    """A constant rate, after an optional warm-up."""

    SHORT: ClassVar = "peak"

    def after_warmup(self) -> tuple[Piece, ...]:
        return (flat(jnp.inf, 1),)

    def peak_steps(self, steps: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        if self.warmup is not None:
            return super().peak_steps(steps)
        # This avoids the rounding error of a difference of integrals.
        return jnp.asarray(steps, jnp.result_type(steps, float))


class OfStep(Schedule):
    """A function of the step without a closed form of its integral."""

    function: Function = eqx.field(static=True)

    def after_warmup(self) -> tuple[Piece, ...]:
        def unknown(t: Array) -> Array:
            raise ValueError(
                f"eta = {self.function!r}: its sum over steps is not known in closed form; use a "
                "schedule of dynsim.schedules"
            )

        def rate(t: Array) -> AnyArray:
            with checks.code_of_user("eta", t):
                found = self.function(t)
            if not eqx.is_array_like(found) or jnp.shape(found) not in ((), jnp.shape(t)):
                shown = eqx.tree_pformat(found)
                raise ValueError(f"eta: must return the rate of a step, returned {shown}")
            return found

        return (Piece(jnp.inf, rate, unknown),)


def proportional(first: Schedule, second: Schedule) -> bool:
    """Return whether two schedules differ only in their peaks. Traced numbers are not compared."""
    shapes = [dataclasses.replace(each, peak=1.0) for each in (first, second)]
    alike = jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])
    pairs = zip(*map(jax.tree.leaves, shapes), strict=alike)
    return alike and (checks.is_traced(shapes) or all(np.array_equal(a, b) for a, b in pairs))


def as_schedule(field: str, eta: Schedule | Function | Real[Number, "*#P"] | None) -> Schedule:
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


NUMBERS = ("warmup", "steps", "end", "factor", "stable", "cooldown")
"""Numbers of schedules other than their peaks, by the names of their settings."""


class Fall(Schedule):
    """A rate that decays from its peak to `end` times the peak at step `steps`.

    Attributes:
        steps: when the decay ends, in steps from the start of the run, including the warm-up.
        end: the final rate over the peak.
    """

    steps: AnyPositive
    end: AnyNotNegative = 0.0

    def __check_init__(self) -> None:
        # The check of the base class runs later, but `warmup` is compared with valid `steps`.
        decoding.check_stated(self)
        if not checks.is_traced((self.steps, self.risen)):
            checks.real("warmup", self.risen, 0, float(np.min(self.steps)))

    @property
    def length(self) -> Real[Number, "*#P"]:
        return self.steps


class Linear(Fall):
    """A linear decay."""

    def after_warmup(self) -> tuple[Piece, ...]:
        return line(self.risen, self.steps, 1, self.end), flat(jnp.inf, self.end)


class Cosine(Fall):
    """A decay along half a period of a cosine."""

    def after_warmup(self) -> tuple[Piece, ...]:
        speed = jnp.pi / positive(self.steps - self.risen)
        mean, half = (1 + self.end) / 2, (1 - self.end) / 2

        def rate(t: Array) -> AnyArray:
            return mean + half * jnp.cos(speed * (t - self.risen))

        def integral(t: Array) -> AnyArray:
            return mean * (t - self.risen) + half * jnp.sin(speed * (t - self.risen)) / speed

        return Piece(self.steps, rate, integral), flat(jnp.inf, self.end)


class Exponential(Schedule):
    """An exponential decay.

    Attributes:
        steps: number of steps, after the warm-up, that multiply the rate by `factor`.
        factor: rate after these steps, divided by the rate before them.
    """

    steps: AnyPositive
    factor: AnyPositive

    def after_warmup(self) -> tuple[Piece, ...]:
        decay = jnp.log(self.factor) / self.steps
        constant = decay == 0

        def rate(t: Array) -> AnyArray:
            return jnp.exp(decay * (t - self.risen))

        def integral(t: Array) -> AnyArray:
            changing = jnp.expm1(decay * (t - self.risen)) / jnp.where(constant, 1.0, decay)
            return jnp.where(constant, t, changing)

        return (Piece(jnp.inf, rate, integral),)


class InverseSqrt(Schedule):
    """A rate proportional to one over the square root of the step, after the warm-up."""

    def __check_init__(self) -> None:
        checks.real("warmup", self.warmup, 1)

    def after_warmup(self) -> tuple[Piece, ...]:
        def rate(t: Array) -> AnyArray:
            return jnp.sqrt(self.risen / t)

        def integral(t: Array) -> AnyArray:
            return 2 * jnp.sqrt(self.risen * t)

        # Not used before the end of the warm-up, but evaluated and differentiated there.
        late = lambda function: lambda t: function(jnp.maximum(t, self.risen - 0.5))  # noqa: E731
        return (Piece(jnp.inf, late(rate), late(integral)),)


class WarmupStableDecay(Schedule):
    """A constant rate after the warm-up, then a linear decay.

    Attributes:
        stable: number of steps at the peak.
        cooldown: number of steps of the decay.
        end: the final rate over the peak.
    """

    stable: AnyNotNegative
    cooldown: AnyNotNegative
    end: AnyNotNegative = 0.0

    @property
    def length(self) -> Real[Number, "*#P"]:
        return self.risen + self.stable + self.cooldown

    def after_warmup(self) -> tuple[Piece, ...]:
        begin = self.risen + self.stable
        falling = line(begin, self.length, 1, self.end)
        return flat(begin, 1), falling, flat(jnp.inf, self.end)


class Steps(Schedule):
    """A rate that jumps at given steps.

    Attributes:
        at: the steps at which it jumps.
        factors: the rate after each of them, over the peak.
    """

    at: tuple[Real[Number, "*#P"], ...]
    factors: tuple[Real[Number, "*#P"], ...]

    def __check_init__(self) -> None:
        if not checks.is_traced((self.at, self.risen)):
            for before, after in zip((self.risen, *self.at[:-1]), self.at, strict=True):
                # Both may be arrays of many runs.
                low, high = map(np.ravel, np.broadcast_arrays(before, after))
                worst = np.argmin(high - low)
                checks.real("at", high[worst], float(low[worst]))
        for factor in self.factors:
            checks.real("factors", factor, 0)

    @property
    def length(self) -> Real[Number, "*#P"]:
        return self.at[-1]

    def after_warmup(self) -> tuple[Piece, ...]:
        heights = (1.0, *self.factors)
        return tuple(
            flat(until, height) for until, height in zip((*self.at, jnp.inf), heights, strict=True)
        )


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
    """A linear decay from `peak` to `end` times `peak` at step `steps`.

    Args:
        peak: the highest rate, 1/step.
        steps: when the decay ends, in steps from the start of the run, including the warm-up.
        end: the final rate over the peak, in [0, inf).
        warmup: number of steps of a linear rise from 0 to `peak`, at most `steps`.

    Raises:
        ValueError: for a number out of its range, naming it.
    """
    return Linear(peak, steps, end, warmup=warmup)


def cosine(
    peak: Values, steps: Values, end: Values = 0.0, warmup: Values | None = None
) -> Schedule:
    """A decay along half a cosine from `peak` to `end` times `peak`; otherwise like `linear`.

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
    """A linear warm-up, a constant rate, and a linear decay to `end` times `peak`.

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
