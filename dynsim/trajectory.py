"""The result type of both theory and simulation."""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int, PyTree, Real

from dynsim import checks
from dynsim.precision import AnyArray

if TYPE_CHECKING:
    import xarray as xr

Times = Real[AnyArray, " S"] | Sequence[int | float | np.number]
"""(S,) increasing times at which to record, in optimiser steps; in training, whole steps."""


class Status(enum.IntEnum):
    """How a run ended. Only an `OK` run is valid to its end.

    Example:
        >>> layer, rule = dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 0.1)
        >>> run = dynsim.train(layer, rule, jax.random.key(0), steps=5)
        >>> dynsim.Status(int(run.status)).name
        'OK'
    """

    OK = 0
    """Every recorded step was reached with finite weights and loss."""
    DIVERGED = 1
    """At the end the weights or the loss were not finite, or the loss was above the limit (see
    `dynsim.train`)."""
    MAX_STEPS = 2
    """The ODE solver used up its steps, as happens for stiff problems (very large rates)."""
    SOLVER_FAILED = 3
    """The ODE solver failed for another reason, such as a vanishing step size."""
    BEYOND_EDGE = 4
    """A central flow: the sharpness left the edge of stability, because more eigenvalues reached it
    than the flow follows, or because it was too far beyond for the flow to hold."""


def status_counts(status: Int[ArrayLike, "*B"]) -> dict[str, int]:
    """Return the number of runs with each status that occurs, by name."""
    codes = np.asarray(status)
    return {s.name: int((codes == s).sum()) for s in Status if (codes == s).any()}


class Static(NamedTuple):
    """A pytree without arrays, such as the functions among weights; hashable."""

    leaves: tuple[object, ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Static":
        leaves, structure = jax.tree.flatten(tree)
        return cls(tuple(leaves), structure)

    @property
    def tree(self) -> PyTree:
        """The pytree."""
        return jax.tree.unflatten(self.structure, self.leaves)


class Across(NamedTuple):
    """Statistics of an observable across runs, each with the shape (S, ...) of one run.

    Attributes:
        mean: over the runs.
        mean_error: standard error of the mean.
        std: standard deviation (ddof 1).
        std_error: standard error of `std`, from the fourth moment, so that the values need not be
            normal.
    """

    mean: np.ndarray
    mean_error: np.ndarray
    std: np.ndarray
    std_error: np.ndarray


class Trajectory(eqx.Module):
    """Observables along one run; under `vmap` every array has leading batch axes.

    Attributes:
        times: (S,) recorded times in optimiser steps.
        observables: arrays (S, ...) by name, see `dynsim.yz.observables`. Entries at and after
            the first bad step may be `inf` or NaN: mask them by `status`, never average them.
        params: final parameters: a `YZ`, a reduced form of one with fields `Y` and `Z`, the
            weights of another model, the state of a reduced ODE, or None if there are none.
        status: () a `Status` code.
        first_bad_step: () first optimiser step at which the run was invalid, -1 if none. A theory
            resolves it up to the next recorded time.
        source: name of the simulation or theory, for instance "simulation" or "population".
        covariance: (S, P, P) predicted covariance across seeds at each recorded time, over all P
            entries of the observables, in the order of their names. None where it is not predicted.
        mean_error: (S, ...) by name, with the shapes of `observables`: the standard error of a mean
            across seeds that a theory estimates from random numbers, such as a sample of starting
            weights, examples or noise. 0 where it is exact, None where nothing is estimated.
        std_error: the same for the predicted standard deviations `std`. Neither includes the error
            of the theory itself.
        checkpoint: state from which training can resume, if requested, else None.
        fixed: the parts of the weights that are not arrays; `model` puts them back.

    Raises:
        KeyError: for an observable that was not recorded.

    Example:
        >>> layer, rule = dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 0.1)
        >>> run = dynsim.train(layer, rule, jax.random.key(0), steps=5)
        >>> run["loss"].shape == run.times.shape
        True
    """

    times: Real[AnyArray, "... S"]
    observables: Mapping[str, AnyArray]
    params: PyTree
    status: Int[AnyArray, "*B"]
    first_bad_step: Int[AnyArray, "*B"]
    source: str = eqx.field(static=True, default="")
    covariance: Float[AnyArray, "*B S P P"] | None = None
    mean_error: Mapping[str, AnyArray] | None = None
    std_error: Mapping[str, AnyArray] | None = None
    checkpoint: PyTree = None
    fixed: Static | None = eqx.field(static=True, default=None)

    @property
    def model(self) -> PyTree:
        """The final weights including parts that are not arrays, for instance an Equinox module
        that can be called. For a batch of runs, its arrays have the axes of the batch."""
        if self.fixed is None:
            return self.params
        return eqx.combine(self.params, self.fixed.tree)

    def __getitem__(self, name: str) -> AnyArray:
        """Return the observable `name`; `KeyError` with the recorded names otherwise."""
        if name not in self.observables:
            raise KeyError(f"{name!r} was not recorded; recorded: {', '.join(self.observables)}")
        return self.observables[name]

    @property
    def std(self) -> dict[str, AnyArray]:
        """Predicted standard deviation across seeds of each observable, with its shape.

        Raises:
            ValueError: for a run without `covariance`.
        """
        if self.covariance is None:
            source = self.source or "this run"
            raise ValueError(f"std: {source} predicts no standard deviation across seeds")
        axes = len(np.shape(self.times))
        deviations, first = {}, 0
        for name in sorted(self.observables):
            shape = np.shape(self.observables[name])
            # The covariance is over all entries, in the order of the names.
            entries = np.arange(first, first + math.prod(shape[axes:]))
            variance = self.covariance[..., entries, entries]
            # At 0, as at the start of a run, the root of the variance has no derivative.
            std = (variance + (variance == 0)) ** 0.5 * (variance != 0)
            deviations[name] = std.reshape(shape)
            first += entries.size
        return deviations

    def across_runs(self) -> dict[str, Across]:
        """Return mean and standard deviation of each observable over the runs that are valid to the
        end, with standard errors. All batch axes count as runs.

        Raises:
            ValueError: for fewer than two valid runs.

        Example:
            >>> runs = jax.vmap(train)(jax.random.split(jax.random.key(0), 64))
            >>> runs.across_runs()["loss"].std
        """
        ok = np.asarray(self.ok)
        if (number := int(ok.sum())) < 2:
            raise ValueError(f"runs: {number} of {ok.size} are valid; must be at least 2")
        statistics = {}
        for name, values in self.observables.items():
            valid = np.asarray(values, np.float64)[ok]
            mean, std = valid.mean(0), valid.std(0, ddof=1)
            fourth = ((valid - mean) ** 4).mean(0)
            # The variance of a variance is (m_4 - m_2^2) / n, and d std = d variance / (2 std).
            of_variance = np.sqrt(np.maximum(fourth - std**4, 0) / number)
            error = np.divide(of_variance, 2 * std, out=np.zeros_like(std), where=std > 0)
            statistics[name] = Across(mean, std / number**0.5, std, error)
        return statistics

    def crossing_time(self, name: str, level: float) -> np.ndarray:
        """Return the time at which an observable first crosses a level, for instance at which a
        loss falls below half of its initial value.

        Args:
            name: name of the observable, whose shape is (*B, S, ...).
            level: the value to cross, from above or from below.

        Returns:
            (*B, ...) optimiser steps, linear between the recorded ones; NaN where the level is not
            crossed at any valid time. Record at sufficiently dense times.

        Raises:
            KeyError: for a name that was not recorded.

        Example:
            >>> half = run["loss"][0] / 2
            >>> run.crossing_time("loss", half)
        """
        values, batch = np.asarray(self[name], np.float64), np.ndim(self.status)
        bad = np.asarray(self.first_bad_step)[..., None]
        # Not after the first invalid step, even where numbers are finite again.
        valid = (bad < 0) | (self.times < bad)
        # Times of a run, against all axes of the observable.
        inner = (..., *(None,) * (values.ndim - batch - 1), slice(None))
        curve = np.where(valid[inner], np.moveaxis(values, batch, -1), np.nan)
        return crossings(np.asarray(self.times)[inner], curve, np.float64(level))

    @property
    def ok(self) -> Bool[AnyArray | np.bool_, "*B"]:
        """Whether the run is valid to its end; batched like `status`."""
        return self.status == Status.OK

    def to_xarray(
        self,
        runs: Sequence[str] | None = None,
        inner: Mapping[str, Sequence[str]] | None = None,
    ) -> "xr.Dataset":
        """Return the run, or a batch of runs, as a labelled dataset of NumPy arrays.

        Args:
            runs: names of the batch axes; by default `run`, or `run_0`, `run_1`, ...
            inner: for each observable, names of its axes after time, for instance {"attention":
                ("class", "token")}. By default NAME_0, NAME_1, ...

        Returns:
            A dataset of the observables, `status` and `first_bad_step`; NAME_std where a standard
            deviation across seeds is predicted; and NAME_error and NAME_std_error, the standard
            errors of both, where they are estimated. Its coordinate `time`, in optimiser steps, has
            the dimension `time`; if times differ between runs, it has their axes and `record`.

        Raises:
            ValueError: unless there is one name for each axis.
        """
        import xarray as xr

        batch = np.ndim(self.status)
        if runs is None:
            runs = ("run",) if batch == 1 else tuple(f"run_{i}" for i in range(batch))
        _check_names("runs", runs, batch)
        times = np.asarray(self.times, np.float64)
        # Runs of different lengths record at times of their own.
        shared = times.reshape(-1, times.shape[-1])
        times_differ = bool((shared != shared[:1]).any())
        outer = (*runs, "record" if times_differ else "time")
        values: dict[str, Mapping[str, AnyArray] | None] = {"": self.observables}
        values["_error"] = self.mean_error
        values["_std"] = None if self.covariance is None else self.std
        values["_std_error"] = self.std_error
        data: dict[str, Any] = {}
        for suffix, arrays in values.items():
            for name, array in (arrays or {}).items():
                own_axes = np.ndim(array) - len(outer)
                names = (inner or {}).get(name) or tuple(f"{name}_{i}" for i in range(own_axes))
                _check_names(f"inner[{name!r}]", names, own_axes)
                data[name + suffix] = ((*outer, *names), np.asarray(array))
        meanings = {
            "flag_values": [int(s) for s in Status],
            "flag_meanings": " ".join(Status.__members__),
        }
        data["status"] = (tuple(runs), np.asarray(self.status), meanings)
        data["first_bad_step"] = (tuple(runs), np.asarray(self.first_bad_step), {"units": "step"})
        time = (outer, times) if times_differ else ("time", shared[0])
        attributes = {"units": "step", "long_name": "optimiser steps"}
        return xr.Dataset(data, {"time": (*time, attributes)}, {"source": self.source})

    def __repr__(self) -> str:
        if checks.is_traced(self):
            return f"Trajectory({self.source}, traced)"
        try:
            return self._summary()
        except Exception:
            # Tree functions create trajectories with other axes, or leaves that are not arrays.
            return eqx.tree_pformat(self)

    def _summary(self) -> str:
        status, ended = np.asarray(self.status), status_counts(self.status)
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
            # Diverged runs would make the mean infinite.
            usable = final[status == Status.OK] if status.ndim else final
            mean = f"{usable.mean():.5g}" if usable.size else "no valid run"
            label = "at the end" if not shape and not status.ndim else "mean at the end"
            lines.append(f"  {name:<16} {shape!s:<10} {label} {mean}")
        return "\n".join(lines)


def crossings(
    times: Real[np.ndarray, "*#B S"],
    curve: Float[np.ndarray, "*B S"],
    level: Float[ArrayLike, "*#B"],
) -> Float[np.ndarray, "*B"]:
    """Return the first times at which curves have crossed a level, from the side they start on;
    linear between recorded times, and NaN if they never cross."""
    above = curve >= np.asarray(level)[..., None]
    # From whichever side the curve starts on.
    crossed = (above != above[..., :1]) & ~np.isnan(curve)
    at = np.maximum(np.argmax(crossed, axis=-1), 1)[..., None]
    times = np.broadcast_to(times, curve.shape)
    (before, first), (after, last) = (
        [np.take_along_axis(x, i, -1)[..., 0] for x in (times, curve)] for i in (at - 1, at)
    )
    any_crossed = crossed.any(axis=-1)
    never = np.full(any_crossed.shape, np.nan)
    share = np.divide(level - first, last - first, out=never, where=any_crossed)
    return np.asarray(before + share * (after - before))


def _check_names(field: str, names: Sequence[str], axes: int) -> None:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or len(names) != axes or len({*names}) != axes:
        raise ValueError(f"{field} = {names!r}: must be {axes} different names, one for each axis")


def log_times(steps: int, num: int = 64) -> np.ndarray:
    """Return 0 and about `num` logarithmically spaced whole steps up to and including `steps`.

    Residuals decay like 1/t, so a linear grid would spend all its points on the tail.

    Raises:
        ValueError: unless steps >= 1 and num >= 2.

    Example:
        >>> dynsim.log_times(1000, num=4)
        array([   0,    1,   10,  100, 1000])
    """
    steps, num = checks.steps("steps", steps), checks.integer("num", num, 2)
    return np.unique(np.r_[0, np.rint(np.geomspace(1, steps, num))]).astype(np.int64)
