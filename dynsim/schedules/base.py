"""The class of schedules, and tables of rates, the form in which theories use them."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, AnyReal, Number

MAX_STEPS = 2**27
"""Largest number of steps in a table of rates: a gibibyte in float64."""
SMOOTH, LINE = 1e-4, 0.05
"""Largest third difference of rates, over the rate, at which a flow's rate is continuous; and the
largest distance from a line, over the rate, at which a solver does not stop."""
Function = Callable[[Array], Real[AnyArray, "..."]]


class Piece(NamedTuple):
    """The rate of a schedule up to step `until`."""

    until: Real[Number, ""]
    rate: Function


def constant_piece(until: Real[Number, ""], height: Real[Number, ""]) -> Piece:
    return Piece(until, lambda t: height * jnp.ones_like(t))


def linear_piece(
    begin: Real[Number, ""],
    until: Real[Number, ""],
    first: Real[Number, ""],
    last: Real[Number, ""],
) -> Piece:
    slope = (last - first) / as_divisor(until - begin)
    return Piece(until, lambda t: first + slope * (t - begin))


def as_divisor(length: Real[Number, ""]) -> Array:
    """Return the length of a piece as a divisor. Empty pieces are evaluated, but not used."""
    return jnp.maximum(jnp.asarray(length), 1e-30)


AnyRate = Annotated[AnyNotNegative, decoding.Unit("1/step")]


class Schedule(eqx.Module):
    """A learning rate that depends on the step.

    Attributes:
        peak: rate after the warm-up, 1/step.
        warmup: number of steps over which the rate rises linearly from 0 to `peak`, or None.
    """

    peak: AnyRate
    warmup: AnyNotNegative | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        decoding.check_annotations(self)

    @abc.abstractmethod
    def after_warmup(self) -> tuple[Piece, ...]:
        """Return the pieces after the warm-up, for a peak of 1; the last one has no end."""

    @property
    def length(self) -> AnyReal:
        """Number of steps after which the rate no longer changes; 0 if it keeps changing."""
        return self.risen

    def pieces(self) -> tuple[Piece, ...]:
        """Return all pieces in order, for a peak of 1."""
        if self.warmup is None:
            return self.after_warmup()
        return (linear_piece(0, self.warmup, 0, 1), *self.after_warmup())

    @property
    def risen(self) -> AnyReal:
        """Step at which the warm-up ends."""
        return 0.0 if self.warmup is None else self.warmup

    def rate(self, step: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Learning rate of the update after `step` steps."""
        at = jnp.asarray(step)
        *before, last = self.pieces()
        chosen = last.rate(at)
        # Only the first piece with a positive length begins at step 0.
        for piece in reversed(before):
            chosen = jnp.where(at < piece.until, piece.rate(at), chosen)
        return self.peak * jnp.asarray(chosen)

    def __call__(self, step: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Return `rate(step)`, as optax calls its schedules."""
        return self.rate(step)

    @property
    def is_scaled(self) -> bool:
        """Whether the rates are the peak times numbers that do not depend on it."""
        return type(self).rate is Schedule.rate

    @property
    def needs_no_table(self) -> bool:
        """Whether its stops and sums are known without a `table`."""
        return False

    def table(self, times: Real[Number, "*S"] | Sequence[Number]) -> Schedule:
        """Return the schedule as theories use it: with the rates of all steps up to the last of
        `times` as numbers, unless it is piecewise constant.

        Raises:
            ValueError: for traced times, for more than `MAX_STEPS` steps, and for a function of the
                step that returns a rate which is negative or not finite.
        """
        if checks.is_traced(times):
            raise ValueError(
                "times: are traced, but the rates of a schedule are computed beforehand, up to the "
                "last step; pass `steps`, or times that are not traced"
            )
        steps = max(math.ceil(np.max(np.asarray(times))), 1)
        if steps > MAX_STEPS:
            raise ValueError(f"times = {steps}: must be <= {MAX_STEPS} steps for a schedule")
        if self.is_scaled:
            rates = _scaled(dataclasses.replace(self, peak=1.0), jnp.arange(steps))
        else:
            # Not compiled: JAX would cache what a function has returned, though it may change.
            rates = jnp.asarray(self.rate(jnp.arange(steps)), float)
        if not checks.is_traced(rates):
            bad = np.flatnonzero(~(np.isfinite(rates) & (rates >= 0)))
            if bad.size:
                raise ValueError(
                    f"eta: the rate of step {bad[0]} is {rates[bad[0]]}; must be finite and >= 0"
                )
        return _table(self.peak if self.is_scaled else 1.0, rates)

    def flow_rate(self, t: Real[Number, "*S"]) -> Float[Array, "*S"]:
        """Learning rate at time `t` in steps: that of the step in progress."""
        return jnp.asarray(self.rate(jnp.floor(jnp.maximum(t, 0))))

    def eta_time(self, steps: Real[Number, "*S"]) -> Float[AnyArray, "*S"]:
        """Sum of the learning rates of the first `steps` steps; linear between whole steps.

        Raises:
            ValueError: as `table`.
        """
        table = self.table(steps)
        return table.peak * table.flow_time(steps)

    def flow_time(self, steps: Real[Number, "*S"]) -> Float[Array, "*S"]:
        """Number of steps at the peak rate with the same sum of rates as the first `steps`
        steps."""
        return self.table(steps).flow_time(steps)

    def jumps(self) -> Float[Array, " J"]:
        """Steps from which on another formula gives the rate; of a `table`, those at which a solver
        has to stop. inf stands for none."""
        return jnp.ceil(jnp.array([piece.until for piece in self.pieces()[:-1]], float))


class Table(Schedule):
    r"""The rates :math:`\eta_0, \dots, \eta_{N-1}` of N steps: the form in which theories use every
    schedule that is not piecewise constant.

    In continuous time, the integral of the rate from k to k + 1 is :math:`\eta_k`. The rate is
    constant there, and jumps at whole steps. Where rates change smoothly, so that third differences
    are at most :math:`10^{-4} \eta_k`, it is a parabola with the same integral instead, between the
    means of neighbouring rates. A solver then need not stop at every step of a long decay, but only
    where the rate has left a line by a twentieth, so that it does not step over anything [ours].

    Attributes:
        values: (N,) the rates over the peak; N is a power of two, and the last one is repeated.
        begins, ends: (N,) the rate at the start and at the end of each step, over the peak.
        sums: (N + 1,) sums of the values before each step, and of all.
        stops: (N - 1,) steps 1, 2, ... at which a solver has to stop; inf for the others.
    """

    values: Float[Array, " N"]
    begins: Float[Array, " N"]
    ends: Float[Array, " N"]
    sums: Float[Array, " N+1"]
    stops: Float[Array, " N-1"]

    @classmethod
    def of(cls, peak: Real[Number, ""], values: Float[Array, " N"]) -> Table:
        """Make the table of a schedule from its rates over the peak."""
        # Where rates change smoothly, a step has a parabola from `begin` to `end`; elsewhere both
        # are its rate.
        smooth, edges = jnp.zeros(len(values), bool), jnp.array([0, -1])
        if len(values) > 3:
            inner, second = values[1:-1], jnp.diff(values, 2)
            third = jnp.abs(jnp.pad(jnp.diff(second), 1, mode="edge"))
            inner = (jnp.maximum(third[:-1], third[1:]) <= SMOOTH * inner) & (second <= inner)
            # The first and the last step continue the line of their neighbours, but not below 0.
            outer = inner[edges] & (3 * values[edges] >= values[jnp.array([1, -2])])
            smooth = smooth.at[1:-1].set(inner).at[edges].set(outer)
        # Neighbouring parabolas meet at the mean of their rates.
        middles = jnp.pad((values[:-1] + values[1:]) / 2, 1)
        begins, ends = middles[:-1].at[0].set(2 * values[0] - middles[1]), middles[1:]
        ends = ends.at[-1].set(2 * values[-1] - middles[-2])
        begins, ends = (jnp.where(smooth, edge, values) for edge in (begins, ends))

        # A solver stops where rates jump, and where they have left the line from its last stop.
        def follow(
            line: tuple[Array, Array], step: tuple[Array, Array, Array]
        ) -> tuple[tuple[Array, Array], Array]:
            (value, slope), (jumps, own, tangent) = line, step
            stop = jumps | (jnp.abs(own - value - slope) > LINE * own)
            return (jnp.where(stop, own, value + slope), jnp.where(stop, tangent, slope)), stop

        jumps, tangents = ends[:-1] != begins[1:], ends - begins
        first_line, steps = (values[0], tangents[0]), (jumps, values[1:], tangents[1:])
        stops = jnp.where(
            jax.lax.scan(follow, first_line, steps)[1], jnp.arange(1.0, len(values)), jnp.inf
        )
        # Where rates vanish, rounding in a parallel sum may decrease it.
        sums = jax.lax.cummax(jnp.pad(jnp.cumsum(values), (1, 0)))
        # With lengths that are powers of two, runs of similar lengths share a compiled program.
        padding = (0, max(1 << (len(values) - 1).bit_length(), 64) - len(values))
        values, begins, ends = (
            jnp.pad(rates, padding, constant_values=ends[-1]) for rates in (values, begins, ends)
        )
        sums = jnp.pad(sums, padding, mode="edge")
        stops = jnp.pad(stops, padding, constant_values=jnp.inf)
        return cls(peak, values, begins, ends, sums, stops)

    def after_warmup(self) -> tuple[Piece, ...]:
        return (Piece(jnp.inf, lambda k: self.values[self._index(k)]),)

    def table(self, times: Real[Number, "*S"] | Sequence[Number]) -> Schedule:
        del times
        return self

    def flow_rate(self, t: Real[Number, "*S"]) -> Float[Array, "*S"]:
        k = self._index(t)
        own, begin, end = (rates[k] for rates in (self.values, self.begins, self.ends))
        # The parabola from `begin` to `end` whose mean is the rate of the step.
        s = jnp.clip(jnp.asarray(t) - k, 0, 1)
        shape = begin + s * (end - begin + 3 * (begin + end - 2 * own) * (s - 1))
        return jnp.asarray(self.peak * shape)

    def flow_time(self, steps: Real[Number, "*S"]) -> Float[Array, "*S"]:
        k = self._index(steps)
        return jnp.asarray(self.sums[k] + (steps - k) * self.values[k])

    def jumps(self) -> Float[Array, " J"]:
        return self.stops

    def _index(self, t: Real[Number, "*S"]) -> Int[Array, "*S"]:
        return jnp.clip(jnp.floor(jnp.asarray(t)), 0, len(self.values) - 1).astype(int)


class PiecewiseConstant(Schedule):
    """A rate that is constant between few jumps. Without a warm-up it needs no table."""

    @property
    def needs_no_table(self) -> bool:
        return self.is_scaled and self.warmup is None

    def table(self, times: Real[Number, "*S"] | Sequence[Number]) -> Schedule:
        return self if self.needs_no_table else super().table(times)

    def flow_time(self, steps: Real[Number, "*S"]) -> Float[Array, "*S"]:
        if not self.needs_no_table:
            return super().flow_time(steps)
        t = jnp.asarray(steps, jnp.result_type(steps, float))
        *before, last = self.pieces()
        if not before:
            return t
        total, begin = jnp.zeros_like(t), 0.0
        for until, rate in (*before, Piece(jnp.inf, last.rate)):
            # The step in which a piece ends still has its rate.
            end = jnp.ceil(jnp.asarray(until, t.dtype))
            total += rate(t) * (jnp.clip(t, begin, end) - begin)
            begin = end
        return total


# Compiled, because its many operations one by one take seconds the first time.
_scaled = eqx.filter_jit(lambda schedule, steps: jnp.asarray(schedule.rate(steps), float))
_table = eqx.filter_jit(Table.of)
