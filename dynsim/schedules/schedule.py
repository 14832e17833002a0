"""Learning-rate schedules as piecewise functions of the step, with their sums in closed form.

Steps are counted from 0, as optax counts them: step k is the update that follows k others. A flow
needs a rate at all times t, and integrates the rate of step k from k to k + 1. It uses
eta(t - 1/2), whose integral is the sum of the rates: exactly for constant and linear rates, and to
eta''/24 a step otherwise [ours].
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, Number

Function = Callable[[Array], Real[AnyArray, "..."]]


class Piece(NamedTuple):
    """A schedule up to some step: the rate, and its antiderivative with respect to the step."""

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
    """The length of a piece; one without any is not evaluated, but divided by."""
    return jnp.maximum(jnp.asarray(length), 1e-30)


AnyRate = Annotated[AnyNotNegative, decoding.Unit("1/step")]


class Schedule(eqx.Module):
    """A learning rate that depends on the step. Build one with a function of this module.

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
        """The pieces after the warm-up, for a peak of 1; the last one has no end."""

    @property
    def length(self) -> Real[Number, "*#P"]:
        """Number of steps after which the rate no longer changes; 0 if it keeps changing."""
        return self.risen

    def pieces(self) -> tuple[Piece, ...]:
        """All pieces in order, for a peak of 1."""
        if self.warmup is None:
            return self.after_warmup()
        return (line(0, self.warmup, 0, 1), *self.after_warmup())

    @property
    def risen(self) -> Real[Number, "*#P"]:
        """The step at which the warm-up is over."""
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
        """Number of steps at the peak rate that have the same sum of rates as the first `steps`
        steps."""
        t = jnp.asarray(steps)
        total, begin = jnp.zeros_like(t, dtype=jnp.result_type(t, float)), 0.0
        for until, _, integral in self.pieces():
            left, right = (jnp.clip(t, None, end) - 0.5 for end in (begin, until))
            total += jnp.where(t > begin, integral(right) - integral(left), 0.0)
            begin = jnp.maximum(begin, until)
        return total

    def jumps(self) -> tuple[Real[Number, ""], ...]:
        """Steps at which a solver has to restart, because the rate or its slope jumps there."""
        return tuple(piece.until for piece in self.pieces()[:-1])

    def _chosen(self, where: Real[Number, "*S"], at: Array) -> Array:
        *before, last = self.pieces()
        found = last.rate(at)
        # Before the start is the first piece that has a length.
        where = jnp.maximum(where, 0)
        for piece in reversed(before):
            found = jnp.where(where < piece.until, piece.rate(at), found)
        return jnp.asarray(found)


class Constant(Schedule):
    """A constant rate, after the warm-up if there is one."""

    SHORT: ClassVar = "peak"

    def after_warmup(self) -> tuple[Piece, ...]:
        return (flat(jnp.inf, 1),)

    def peak_steps(self, steps: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        if self.warmup is not None:
            return super().peak_steps(steps)
        # Without the rounding of a difference of integrals.
        return jnp.asarray(steps, jnp.result_type(steps, float))


class OfStep(Schedule):
    """A function of the step, of which no closed form is known."""

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
    """Whether two schedules differ in their peaks alone. Traced numbers are not looked at."""
    shapes = [dataclasses.replace(each, peak=1.0) for each in (first, second)]
    alike = jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])
    pairs = zip(*map(jax.tree.leaves, shapes), strict=alike)
    return alike and (checks.is_traced(shapes) or all(np.array_equal(a, b) for a, b in pairs))


def as_schedule(field: str, eta: "Schedule | Function | Real[Number, '*#P'] | None") -> Schedule:
    """A schedule from what users give as a rate: a number, a schedule, or a function of the step.

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
