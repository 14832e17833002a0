"""The one result type: what theory and simulation both return."""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int, PyTree, Real

from dynsim import checks
from dynsim.precision import AnyArray

Times = Real[AnyArray, " S"] | Sequence[int | float | np.number]
"""(S,) increasing moments at which to record, in optimiser steps; whole ones in training."""


class Status(enum.IntEnum):
    """How a run ended. Only the entries of an `OK` run mean anything to the end."""

    OK = 0
    """Every recorded step was reached with finite weights and loss."""
    DIVERGED = 1
    """At the end weights or loss were not finite, or the loss was absurd (see `simulate`)."""
    MAX_STEPS = 2
    """The ODE solver used up its steps, as stiff problems (very large rates) make it do."""
    SOLVER_FAILED = 3
    """The ODE solver gave up for another reason, such as a vanishing step size."""


def counts(status: Int[ArrayLike, "*B"]) -> dict[str, int]:
    """How many runs ended with each status, by its name; only those that occur."""
    codes = np.asarray(status)
    return {s.name: int((codes == s).sum()) for s in Status if (codes == s).any()}


class Trajectory(eqx.Module):
    """Observables along one run; under `vmap` every array has leading batch axes.

    Attributes:
        times: (S,) recorded times in optimiser steps.
        observables: arrays (S, ...) by name, see `dynsim.yz.observables`. Entries at and after
            the first bad step may be `inf` or NaN: mask them by `status`, never average them.
        params: final parameters: a `YZ`, a reduced form of one with fields `Y` and `Z`, the
            weights of another model, the state of a reduced ODE, or None where there are none.
        status: () a `Status` code.
        first_bad_step: () optimiser step from which on the run was no longer valid, -1 if none.
            A theory knows it to the next recorded time.
        source: what made it, for instance "simulation" or "population".
        covariance: (S, P, P) predicted covariance over seeds, at each recorded time, of all numbers
            recorded: the P entries of the observables one after the other, by name. None where
            nothing predicts it.
    """

    times: Real[AnyArray, "... S"]
    observables: Mapping[str, AnyArray]
    params: PyTree
    status: Int[AnyArray, "*B"]
    first_bad_step: Int[AnyArray, "*B"]
    source: str = eqx.field(static=True, default="")
    covariance: Float[AnyArray, "*B S P P"] | None = None

    def __getitem__(self, name: str) -> AnyArray:
        """The observable `name`; `KeyError` with the recorded names otherwise."""
        if name not in self.observables:
            raise KeyError(f"{name!r} was not recorded; recorded: {', '.join(self.observables)}")
        return self.observables[name]

    @property
    def std(self) -> dict[str, AnyArray]:
        """Predicted standard deviation over seeds of each observable, of its shape.

        Raises:
            ValueError: for a run without `covariance`.
        """
        if self.covariance is None:
            raise ValueError(f"std: {self.source or 'this run'} predicts no spread over seeds")
        axes = len(np.shape(self.times))
        found, first = {}, 0
        for name in sorted(self.observables):
            shape = np.shape(self.observables[name])
            entries = np.arange(first, first + math.prod(shape[axes:]))
            found[name] = (self.covariance[..., entries, entries] ** 0.5).reshape(shape)
            first += entries.size
        return found

    @property
    def ok(self) -> Bool[AnyArray | np.bool_, "*B"]:
        """Whether the run is valid to its end; batched like `status`."""
        return self.status == Status.OK

    def __repr__(self) -> str:
        if checks.is_traced(self):
            return f"Trajectory({self.source}, traced)"
        status, ended = np.asarray(self.status), counts(self.status)
        runs = "" if status.ndim == 0 else f"{'x'.join(map(str, status.shape))} runs, "
        times = np.asarray(self.times).reshape(-1, np.shape(self.times)[-1])[0]
        lines = [
            f"Trajectory({self.source or 'unnamed'}: {runs}{times.size} times in "
            f"[{times[0]:g}, {times[-1]:g}] steps, "
            f"status {', '.join(f'{k} {v}' if status.ndim else k for k, v in ended.items())})"
        ]
        for name, values in self.observables.items():
            shape = np.shape(values)[status.ndim + 1 :]
            final = np.asarray(values)[..., -1, *(slice(None),) * len(shape)]
            usable = final[status == Status.OK] if status.ndim else final
            mean = f"{usable.mean():.5g}" if usable.size else "no valid run"
            label = "at the end" if not shape and not status.ndim else "mean at the end"
            lines.append(f"  {name:<16} {shape!s:<10} {label} {mean}")
        return "\n".join(lines)


def log_times(steps: int, num: int = 64) -> np.ndarray:
    """0 and about `num` logarithmically spaced whole steps up to and including `steps`.

    Residuals decay like 1/t, so a linear grid would spend all its points on the tail.

    Raises:
        ValueError: unless steps >= 1 and num >= 2.
    """
    steps, num = checks.steps("steps", steps), checks.integer("num", num, 2)
    return np.unique(np.r_[0, np.rint(np.geomspace(1, steps, num))]).astype(np.int64)


def to_arrays(trajectory: Trajectory) -> Mapping[str, Any]:
    """Plain NumPy arrays of a trajectory, named for storage (no pickle needed)."""
    arrays = {name: np.asarray(values) for name, values in trajectory.observables.items()}
    return {
        **arrays,
        "times": np.asarray(trajectory.times),
        "status": np.asarray(trajectory.status),
        "first_bad_step": np.asarray(trajectory.first_bad_step),
    }
