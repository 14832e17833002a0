"""The shapes of learning-rate schedules, each as its pieces; `dynsim.schedules` builds them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Real

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, AnyPositive, Number
from dynsim.schedules.schedule import Piece, Schedule, flat, line, positive

NUMBERS = ("warmup", "steps", "end", "factor", "stable", "cooldown")
"""Numbers of schedules besides their peaks, as settings name them."""


class Fall(Schedule):
    """A rate that falls from its peak to the share `end` of it at step `steps`.

    Attributes:
        steps: when the fall ends, in steps from the start of the run, warm-up included.
        end: the final rate over the peak.
    """

    steps: AnyPositive
    end: AnyNotNegative = 0.0

    def __check_init__(self) -> None:
        # The check of the base class comes later, and `warmup` needs a valid end.
        decoding.check_stated(self)
        if not checks.is_traced((self.steps, self.risen)):
            checks.real("warmup", self.risen, 0, float(np.min(self.steps)))

    @property
    def length(self) -> Real[Number, "*#P"]:
        return self.steps


class Linear(Fall):
    """A linear fall."""

    def after_warmup(self) -> tuple[Piece, ...]:
        return line(self.risen, self.steps, 1, self.end), flat(jnp.inf, self.end)


class Cosine(Fall):
    """A fall along half a period of a cosine."""

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
        factor: the rate after these steps, over the rate before them.
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
    """A rate that falls as one over the square root of the step, after the warm-up."""

    def __check_init__(self) -> None:
        checks.real("warmup", self.warmup, 1)

    def after_warmup(self) -> tuple[Piece, ...]:
        def rate(t: Array) -> AnyArray:
            return jnp.sqrt(self.risen / t)

        def integral(t: Array) -> AnyArray:
            return 2 * jnp.sqrt(self.risen * t)

        # Not evaluated before the end of the warm-up, but differentiated there.
        late = lambda function: lambda t: function(jnp.maximum(t, self.risen - 0.5))  # noqa: E731
        return (Piece(jnp.inf, late(rate), late(integral)),)


class WarmupStableDecay(Schedule):
    """A constant rate after the warm-up, then a linear fall.

    Attributes:
        stable: number of steps at the peak.
        cooldown: number of steps of the fall.
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
    """A rate that jumps at some steps.

    Attributes:
        at: the steps at which it jumps.
        factors: the rate after each of them, over the peak.
    """

    at: tuple[Real[Number, "*#P"], ...]
    factors: tuple[Real[Number, "*#P"], ...]

    def __check_init__(self) -> None:
        if not checks.is_traced((self.at, self.risen)):
            for before, after in zip((self.risen, *self.at[:-1]), self.at, strict=True):
                # Of grids of numbers, each with its own.
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
