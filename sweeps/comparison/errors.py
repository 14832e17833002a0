"""Training next to theory: means, errors and standard deviations across seeds, for any problem."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from dynsim import Status
from dynsim.training.recording import PRECONDITIONED
from dynsim.trajectory import status_counts
from odes import central
from odes.batch_noise import ERROR, STD
from odes.theory import AnyTheory
from sweeps import output
from sweeps.comparison import table
from sweeps.comparison.scatter import (
    Held,
    Scatter,
    average,
    held,
    over_paths,
    over_starts,
    spread,
)
from sweeps.systems.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = "simulation"


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Runs and theories of one experiment. All are datasets over `seed` and `time`; a theory may
    record fewer times than training.

    Attributes:
        run: what is trained.
        settings: the settings of the comparison, as JSON values.
        simulation: the runs.
        predictions: datasets by theory: a run per seed or path, or one if all are equal.
        theories: the theories by name.
        names: observables that runs and theories share.
        left_out: reasons why other theories of the problem do not apply, by name.

    Example:
        >>> comparison = sweeps.compare("saxe", eta=0.1, steps=20, seeds=2, theories=["modes"])
        >>> comparison.dataset.loss.dims
        ('side', 'time')
        >>> figure = comparison.plot()
    """

    run: Experiment
    settings: Mapping[str, Any]
    simulation: xr.Dataset
    predictions: Mapping[str, xr.Dataset]
    theories: Mapping[str, AnyTheory]
    names: tuple[str, ...]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def sides(self) -> dict[str, xr.Dataset]:
        """Training and the theories, with the recorded steps as the coordinate `time`."""
        found = {TRAINING: self.simulation, **self.predictions}
        return {name: _with_times(each) for name, each in found.items()}

    @functools.cached_property
    def dataset(self) -> xr.Dataset:
        """Means over the runs that ended well, over `side` (training and each theory) and `time`,
        and of training the sampling error of each as NAME_error; NaN at times that a theory does
        not record. The runs are `simulation`, and those of a theory are in `predictions`."""
        found = xr.concat(
            [*self.means.values()], xr.DataArray([*self.means], dims="side", name="side")
        )
        for name in self.names:
            runs = self.runs(TRAINING, name)
            error = runs.std("seed", ddof=min(1, len(runs) - 1)) / max(len(runs), 1) ** 0.5
            found[f"{name}_error"] = (found[name].dims[1:], error.values)
            for each in (name, f"{name}_error"):
                found[each].attrs = dict(self.simulation[name].attrs)
        return found

    def plot(self) -> "Figure":
        """Draw each observable of runs and theories over time, above the distance between them."""
        from sweeps.comparison.picture import draw

        return draw(self)

    def runs(self, side: str, name: str, of: str = "") -> xr.DataArray:
        """Return an observable of the runs of training or of a theory that ended well, (R, S, ...),
        at the times of the theory `of` if that is named."""
        found = self.sides[side]
        found = found[name].isel(seed=found["status"].values == Status.OK).astype(np.float64)
        return found.sel(time=self.sides[of]["time"], method="nearest") if of else found

    @functools.cached_property
    def means(self) -> dict[str, xr.Dataset]:
        """Means over the runs that ended well, by side; NaN if none did."""

        def mean(side: str, name: str) -> xr.DataArray:
            runs = self.runs(side, name)
            return xr.DataArray(
                average(runs.values), dims=runs.dims[1:], coords={"time": runs.time}
            )

        return {
            side: xr.Dataset({name: mean(side, name) for name in self.names}) for side in self.sides
        }

    def error(self, side: str, name: str) -> dict[str, Any]:
        """Return the error of a theory against the mean of the runs, relative to that mean and in
        standard errors of it; or, of training, that standard error.

        Returns:
            `over_time`, in the l2 norm over recorded times and entries; `at_end`, which is relative
            to the standard error if the mean is smaller, so that it is `floored`; and, over time,
            in `sampling_errors`. NaN where there is nothing to divide by.
        """
        runs = self.runs(TRAINING, name, of=side).values
        mean, chance = average(runs), spread(runs) / math.sqrt(max(len(runs), 1))
        off = chance if side == TRAINING else self.means[side][name].values - mean
        floor, norm = float(np.nan_to_num(np.linalg.norm(chance[-1]))), np.linalg.norm

        def ratio(size: Any, reference: Any) -> float:
            return float(size / reference) if reference > 0 else math.nan

        return {
            "over_time": ratio(norm(off), norm(mean)),
            "at_end": ratio(norm(off[-1]), max(norm(mean[-1]), floor)),
            "floored": bool(norm(mean[-1]) < floor),
            "sampling_errors": ratio(norm(off), norm(chance)),
        }

    def scatter(self, theory: str, name: str) -> Scatter | None:
        """Return predicted and measured standard deviation across seeds; None if the theory
        predicts none, or if none of its runs ended well."""
        runs, mean = self.runs(TRAINING, name, of=theory).values, self.runs(theory, name).values
        known = self.predictions[theory]
        if self.theories[theory].drawn:
            return over_paths(mean, runs)
        if name + STD not in known or not len(mean):
            return None
        errors = (
            self.runs(theory, name + end).values if name + end in known else 0.0
            for end in (ERROR, STD + ERROR)
        )
        return over_starts(runs, mean, self.runs(theory, name + STD).values, *errors)

    def summary(self, side: str) -> dict[str, list[float]]:
        """Return what `Problem.summary` says of each run that ended well."""
        problem, times = self.run.built[0], self.sides[side]["time"].values
        runs = {name: self.runs(side, name).values for name in self.names}
        rows = [
            problem.summary(times, {name: each[i] for name, each in runs.items()})
            for i in range(len(next(iter(runs.values()))))
        ]
        return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else ())}

    @functools.cached_property
    def edge(self) -> Held | None:
        """The sharpness at the edge of stability next to the central flow's, if both are
        compared."""
        if central.THEORY.name not in self.predictions or PRECONDITIONED not in self.names:
            return None
        return held(self.simulation, self.predictions[central.THEORY.name])

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """All numbers of the comparison as JSON values; NaN becomes None."""
        # Each step rounds the weights.
        rounding = float(np.finfo(self.run.dtype).eps) * (self.run.steps or 1) ** 0.5 / 4

        def side(name: str) -> dict[str, Any]:
            status = {"status": status_counts(self.sides[name]["status"].values)}
            told = self.summary(name)
            return status | ({"summary": told} if told else {})

        def theory(name: str) -> dict[str, Any]:
            each, errors = self.theories[name], {n: self.error(name, n) for n in self.names}
            chance = {n: error.pop("sampling_errors") for n, error in errors.items()}
            found = {"title": each.title or name, "assumes": each.assumes, **side(name)}
            found |= {"relative_error": errors, "sampling_errors": chance}
            spreads = {n: self.scatter(name, n) for n in self.names}
            ends = {
                n: each.at_end(rounding * np.abs(self.runs(TRAINING, n).values).max(initial=0))
                for n, each in spreads.items()
                if each
            }
            return found | ({"spread_at_end": ends} if ends else {})

        own = {n: self.error(TRAINING, n) for n in self.names}
        for error in own.values():
            del error["sampling_errors"]
        edge = {"edge": dataclasses.asdict(self.edge)} if self.edge else {}
        return output.as_json(
            {
                "config": self.settings,
                "environment": {
                    **output.environment(),
                    "simulation_precision": self.run.dtype,
                    "theory_precision": "float64",
                },
                TRAINING: {**side(TRAINING), "sampling_error": own},
                "theories": {name: theory(name) for name in self.predictions},
                "left_out": dict(self.left_out),
                **edge,
            }
        )

    def __str__(self) -> str:
        """Format the errors of the theories, as `dynsim compare` prints them."""
        run, runs = self.run, self.simulation.sizes["seed"]
        lines = table.lines(self.report, self.names, table.heading(run, runs))
        return "\n".join([*lines, *(["", str(self.edge)] if self.edge else [])])

    def __repr__(self) -> str:
        name = self.names[0]
        errors = (
            f"{side} {100 * self.error(side, name)['over_time']:.3g} %" for side in self.predictions
        )
        runs = f"{self.simulation.sizes['seed']} runs of {self.run.about}"
        return f"<Comparison of {runs}; error of {name} over time: {', '.join(errors) or '-'}>"


def _with_times(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset with the recorded steps as a coordinate: where a schedule sets them, they
    are an array of each run, the same for all seeds."""
    times = np.asarray(dataset["time"].values, np.float64)
    if times.ndim == 1:
        return dataset
    return dataset.drop_vars("time").rename(record="time").assign_coords(time=times[0])
