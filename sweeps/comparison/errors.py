"""Training next to theory: means, errors and standard deviations across seeds, for any problem."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

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
    EdgeSharpness,
    Scatter,
    average,
    over_paths,
    over_starts,
    sharpness_at_edge,
    spread,
)
from sweeps.output import JsonObject
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
    settings: JsonObject
    simulation: xr.Dataset
    predictions: Mapping[str, xr.Dataset]
    theories: Mapping[str, AnyTheory]
    names: tuple[str, ...]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def sides(self) -> dict[str, xr.Dataset]:
        """Training and the theories, with the recorded steps as the coordinate `time`."""
        sides = {TRAINING: self.simulation, **self.predictions}
        for name, data in sides.items():
            times = np.asarray(data["time"].values, np.float64)
            if times.ndim > 1:
                # Steps that a schedule sets are an array of each run, the same for all seeds.
                data = data.drop_vars("time").rename(record="time")
                sides[name] = data.assign_coords(time=times[0])
        return sides

    @functools.cached_property
    def dataset(self) -> xr.Dataset:
        """Means over the runs that ended well, over `side` (training and each theory) and `time`,
        and of training the sampling error of each as NAME_error; NaN at times that a theory does
        not record. The runs are `simulation`, and those of a theory are in `predictions`."""
        side = xr.DataArray([*self.means], dims="side", name="side")
        dataset = xr.concat([*self.means.values()], side)
        for name in self.names:
            runs = self.runs(TRAINING, name)
            # Zero for a single run, rather than NaN.
            error = runs.std("seed", ddof=min(1, len(runs) - 1)) / max(len(runs), 1) ** 0.5
            dataset[f"{name}_error"] = (dataset[name].dims[1:], error.values)
            for array in (name, f"{name}_error"):
                dataset[array].attrs = dict(self.simulation[name].attrs)
        return dataset

    def plot(self) -> "Figure":
        """Draw each observable of runs and theories over time, above the distance between them."""
        from sweeps.comparison.picture import draw

        return draw(self)

    def runs(self, side: str, name: str, of: str = "") -> xr.DataArray:
        """Return an observable of the runs of training or of a theory that ended well, (R, S, ...),
        at the times of the theory `of` if that is named."""
        data = self.sides[side]
        runs = data[name].isel(seed=data["status"].values == Status.OK).astype(np.float64)
        return runs.sel(time=self.sides[of]["time"], method="nearest") if of else runs

    @functools.cached_property
    def means(self) -> dict[str, xr.Dataset]:
        """Means over the runs that ended well, by side; NaN if none did."""
        means = {}
        for side in self.sides:
            arrays = {}
            for name in self.names:
                runs = self.runs(side, name)
                arrays[name] = xr.DataArray(
                    average(runs.values), dims=runs.dims[1:], coords={"time": runs.time}
                )
            means[side] = xr.Dataset(arrays)
        return means

    def error(self, side: str, name: str) -> dict[str, float]:
        """Return the error of a theory against the mean of the runs, relative to that mean and in
        standard errors of it; or, of training, that standard error.

        Returns:
            `over_time`, in the l2 norm over recorded times and entries; `at_end`, which is relative
            to the standard error if the mean is smaller, so that it is `floored`; and, over time,
            in `sampling_errors`. NaN where there is nothing to divide by.
        """
        norm = np.linalg.norm
        runs = self.runs(TRAINING, name, of=side).values
        mean, sampling = average(runs), spread(runs) / math.sqrt(max(len(runs), 1))
        error = sampling if side == TRAINING else self.means[side][name].values - mean
        # A single run has no sampling error.
        floor = float(np.nan_to_num(norm(sampling[-1])))

        def ratio(size: np.floating, reference: np.floating | float) -> float:
            return float(size / reference) if reference > 0 else math.nan

        return {
            "over_time": ratio(norm(error), norm(mean)),
            "at_end": ratio(norm(error[-1]), max(norm(mean[-1]), floor)),
            "floored": bool(norm(mean[-1]) < floor),
            "sampling_errors": ratio(norm(error), norm(sampling)),
        }

    def scatter(self, theory: str, name: str) -> Scatter | None:
        """Return predicted and measured standard deviation across seeds; None if the theory
        predicts none, or if none of its runs ended well."""
        runs, mean = self.runs(TRAINING, name, of=theory).values, self.runs(theory, name).values
        prediction = self.predictions[theory]
        if self.theories[theory].drawn:
            return over_paths(mean, runs)
        if name + STD not in prediction or not len(mean):
            return None
        # Theories that sample nothing have no error of their own.
        errors = (
            self.runs(theory, name + suffix).values if name + suffix in prediction else 0.0
            for suffix in (ERROR, STD + ERROR)
        )
        return over_starts(runs, mean, self.runs(theory, name + STD).values, *errors)

    def summary(self, side: str) -> dict[str, list[float]]:
        """Return `Problem.summary` of each run that ended well."""
        problem, times = self.run.built[0], self.sides[side]["time"].values
        runs = {name: self.runs(side, name).values for name in self.names}
        rows = [
            problem.summary(times, {name: values[i] for name, values in runs.items()})
            for i in range(len(next(iter(runs.values()))))
        ]
        return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else ())}

    @functools.cached_property
    def edge(self) -> EdgeSharpness | None:
        """The sharpness at the edge of stability next to the central flow's, if both are
        compared."""
        if central.THEORY.name not in self.predictions or PRECONDITIONED not in self.names:
            return None
        return sharpness_at_edge(self.simulation, self.predictions[central.THEORY.name])

    @functools.cached_property
    def report(self) -> JsonObject:
        """All numbers of the comparison as JSON values; NaN becomes None."""
        sides: dict[str, JsonObject] = {}
        for side, data in self.sides.items():
            sides[side] = {"status": status_counts(data["status"].values)}
            if summary := self.summary(side):
                sides[side]["summary"] = summary

        # Each step rounds the weights: errors add up like a random walk.
        rounding = float(np.finfo(self.run.dtype).eps) * (self.run.steps or 1) ** 0.5 / 4
        theories = {}
        for side in self.predictions:
            theory = self.theories[side]
            errors = {name: self.error(side, name) for name in self.names}
            sampling = {name: error.pop("sampling_errors") for name, error in errors.items()}
            theories[side] = {
                "title": theory.title or side,
                "assumes": theory.assumes,
                **sides[side],
                "relative_error": errors,
                "sampling_errors": sampling,
            }
            at_end = {}
            for name in self.names:
                if scatter := self.scatter(side, name):
                    largest = np.abs(self.runs(TRAINING, name).values).max(initial=0)
                    at_end[name] = scatter.at_end(rounding * largest)
            if at_end:
                theories[side]["spread_at_end"] = at_end

        training = {name: self.error(TRAINING, name) for name in self.names}
        for error in training.values():
            # It is 1 by definition.
            del error["sampling_errors"]
        return output.as_json(
            {
                "config": self.settings,
                "environment": {
                    **output.environment(),
                    "simulation_precision": self.run.dtype,
                    "theory_precision": "float64",
                },
                TRAINING: {**sides[TRAINING], "sampling_error": training},
                "theories": theories,
                "left_out": dict(self.left_out),
                **({"edge": dataclasses.asdict(self.edge)} if self.edge else {}),
            }
        )

    def __str__(self) -> str:
        """Format the errors of the theories, as `dynsim compare` prints them."""
        run, runs = self.run, self.simulation.sizes["seed"]
        lines = table.report_lines(self.report, self.names, table.heading(run, runs))
        return "\n".join([*lines, *(["", str(self.edge)] if self.edge else [])])

    def __repr__(self) -> str:
        name = self.names[0]
        errors = (
            f"{side} {100 * self.error(side, name)['over_time']:.3g} %" for side in self.predictions
        )
        runs = f"{self.simulation.sizes['seed']} runs of {self.run.about}"
        return f"<Comparison of {runs}; error of {name} over time: {', '.join(errors) or '-'}>"
