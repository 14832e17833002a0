"""Comparison of training with theory for any problem: the sweeps to run, a report of their results,
and the report as a table."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from dynsim import Status
from dynsim.training.recording import PRECONDITIONED
from dynsim.trajectory import counts
from odes import central
from odes.batch_noise import ERROR, STD
from odes.batch_noise import THEORY as NOISE
from odes.general import WHOLE
from odes.theory import AnyTheory, refusal
from sweeps import output
from sweeps.compare import scatter
from sweeps.compare.scatter import Scatter, average, spread
from sweeps.compare.settings import CompareOptions
from sweeps.runner.labels import difference
from sweeps.runner.program import traces
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = "simulation"
MOST_STARTS = 32
"""Maximum number of seeds whose starting weights the theories of the standard deviation across
seeds use, as these theories are slow."""
WHY = {
    Status.DIVERGED.name: "weights or loss are not finite, or the loss is too large",
    Status.MAX_STEPS.name: "the ODE solver used up its steps, as for stiff problems (large rates)",
    Status.SOLVER_FAILED.name: "the ODE solver failed, for instance by a vanishing step size",
    Status.BEYOND_EDGE.name: "the sharpness left the edge of stability",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs and theories of one experiment, recorded at the same times.

    Attributes:
        config: the settings.
        simulation: the runs, over `seed`.
        predictions: datasets by theory, over `seed`: a run per seed or path, or one if all are
            equal.
        theories: the theories by name.
        names: observables that runs and theories share.
        extra: datasets of further sweeps.
    """

    config: CompareOptions
    simulation: xr.Dataset
    predictions: Mapping[str, xr.Dataset]
    theories: Mapping[str, AnyTheory]
    names: tuple[str, ...]
    extra: Mapping[str, xr.Dataset] = dataclasses.field(default_factory=dict)

    NAMES: ClassVar[tuple[str, ...]] = ()
    """Observables to compare; if empty, all that training and theories share."""
    ALSO: ClassVar[tuple[str, ...]] = ()
    """Additional observables, recorded by theories that have them."""
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """Theories that are shown whichever are requested."""
    MEASURED: ClassVar[tuple[str, ...]] = ()
    """Theories that start from measured states of the runs; `from_runs` solves them."""
    SETTINGS: ClassVar[str] = "sweeps.compare.settings:CompareOptions"
    PICTURE: ClassVar[str] = "sweeps.compare.picture:draw"

    @staticmethod
    def further(config: CompareOptions) -> dict[str, Sweep]:
        """Return sweeps whose datasets become `extra`; raises `ValueError` for invalid settings."""
        del config
        return {}

    @classmethod
    def known(cls, run: Experiment) -> dict[str, AnyTheory]:
        """Return the theories of the system by name, most exact first."""
        found = registry.theories(registry.system_of(run))
        return {name: theory for name, theory in found.items() if not theory.trains}

    @classmethod
    def from_runs(cls, config: CompareOptions, theory: str, simulation: xr.Dataset) -> xr.Dataset:
        """Solve one of the `MEASURED` theories for each run."""
        raise NotImplementedError

    @classmethod
    def seeds(cls, config: CompareOptions, theory: AnyTheory) -> int:
        """Return the number of runs of training or of a theory: one if all would be the same."""
        drawn = theory.trains or theory.drawn or (theory.seeded and not _starts_alike(config.run))
        known = theory.observables(config.run.bare).names()
        scatters = any(name.endswith(STD) for name in known)
        return min(config.seeds, MOST_STARTS if scatters else config.seeds) if drawn else 1

    def about(self, theory: str) -> tuple[str, str]:
        """Return the title of a theory and its assumptions."""
        return self.theories[theory].title or theory, self.theories[theory].assumes

    @property
    def times(self) -> np.ndarray:
        """(S,) optimiser steps that runs and theories recorded."""
        return _times(self.simulation)

    def runs_of(self, side: str, name: str) -> np.ndarray:
        """Return an observable of the valid runs of training or of a theory, (R, S, ...)."""
        return valid(self.simulation if side == TRAINING else self.predictions[side], name)

    @functools.cached_property
    def means(self) -> dict[str, xr.Dataset]:
        """Means over the valid runs of training and of each theory; NaN if none is valid."""

        def mean(side: str, name: str) -> tuple[tuple[Any, ...], np.ndarray]:
            return self.simulation[name].dims[1:], average(self.runs_of(side, name))

        ok = {"status": int(Status.OK)}
        return {
            side: xr.Dataset({name: mean(side, name) for name in self.names} | ok)
            for side in (TRAINING, *self.predictions)
        }

    def norm(self, values: np.ndarray) -> float:
        """Return the l2 norm of a curve (S, ...), over time and entries."""
        return float(np.linalg.norm(values))

    def facts(self) -> dict[str, Any]:
        """Return further sections of the report."""
        found = {TRAINING: {"status": counts(self.simulation["status"].values)}}
        return found | ({"edge": dataclasses.asdict(self.held)} if self.held else {})

    @functools.cached_property
    def held(self) -> scatter.Held | None:
        """The sharpness at the edge of stability next to the central flow's, if both are
        compared."""
        if central.THEORY.name not in self.predictions or PRECONDITIONED not in self.names:
            return None
        return scatter.held(self.simulation, self.predictions[central.THEORY.name])

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """Return further entries of a theory's report: final standard deviations across seeds."""
        ends = self.at_end({name: self.scattered(theory, name) for name in self.names})
        return {"spread_at_end": ends} if ends else {}

    def at_end(self, found: Mapping[str, Scatter | None]) -> dict[str, dict[str, Any]]:
        """Return the standard deviations across seeds at the end, by observable."""
        # Each step rounds the weights.
        steps = self.config.run.steps or 1
        rounding = float(np.finfo(self.config.run.dtype).eps) * steps**0.5 / 4
        return {
            name: each.at_end(rounding * np.abs(self.runs_of(TRAINING, name)).max(initial=0))
            for name, each in found.items()
            if each
        }

    def scattered(self, theory: str, name: str) -> Scatter | None:
        """Return predicted and measured standard deviation across seeds; None if not predicted."""
        mean, runs = self.runs_of(theory, name), self.runs_of(TRAINING, name)
        if self.theories[theory].drawn:
            return scatter.over_paths(mean, runs)
        if name + STD not in self.predictions[theory]:
            return None
        errors = (
            self.runs_of(theory, name + end) if name + end in self.predictions[theory] else 0.0
            for end in (ERROR, STD + ERROR)
        )
        return scatter.over_starts(runs, mean, self.runs_of(theory, name + STD), *errors)

    def heading(self) -> list[str]:
        """Return the heading of the table, as lines."""
        ended = counted(self.report[TRAINING]["status"])
        about = [self.config.run.about, f"{count(self.config.seeds, 'run')}: {ended}"]
        if not self.predictions:
            about.append("No theory describes this problem; only training is shown.")
        return about

    def further_lines(self) -> list[str]:
        """Return lines below the table."""
        found = ["", str(self.held)] if self.held else []
        for name, theory in self.report["theories"].items():
            if spread := theory.get("spread_at_end"):
                found += scatter.lines(spread, name)
        return found

    def __str__(self) -> str:
        """Format the errors of the theories, as `dynsim compare` prints them."""
        return "\n".join([*lines(self.report, self.names, self.heading()), *self.further_lines()])

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """Return all numbers of the comparison as JSON values; NaN becomes None."""
        facts = self.facts()
        simulation = facts.pop(TRAINING, {})
        return output.as_json(
            {
                "config": self.config.as_json(),
                "environment": {
                    **output.environment(),
                    "simulation_precision": self.config.run.dtype,
                    "theory_precision": "float64",
                },
                "simulation": {
                    **simulation,
                    "sampling_error": {name: self.sampling_error(name) for name in self.names},
                },
                "theories": {name: self._against(name) for name in self.predictions},
                **facts,
            }
        )

    def sampling_error(self, name: str) -> dict[str, Any]:
        """Return the standard error of the mean of the runs, over that mean."""
        return self._relative(name, self._standard_error(name))

    def relative_error(self, theory: str, name: str) -> dict[str, Any]:
        """Return |theory - mean of the runs| / |mean of the runs|, over time and at the end."""
        return self._relative(name, self.apart(theory, name))

    def apart(self, theory: str, name: str) -> np.ndarray:
        """Return the mean of a theory minus that of the runs, (S, ...)."""
        return difference(self.means[theory], self.means[TRAINING])[name].values

    def _standard_error(self, name: str) -> np.ndarray:
        runs = self.runs_of(TRAINING, name)
        return spread(runs) / math.sqrt(max(len(runs), 1))

    def _against(self, theory: str) -> dict[str, Any]:
        title, assumes = self.about(theory)
        chance = {name: self.norm(self._standard_error(name)) for name in self.names}
        return {
            "title": title,
            "assumes": assumes,
            "status": counts(self.predictions[theory]["status"].values),
            **self.theory_facts(theory),
            "relative_error": {name: self.relative_error(theory, name) for name in self.names},
            "sampling_errors": {
                name: self.norm(self.apart(theory, name)) / error if error > 0 else math.nan
                for name, error in chance.items()
            },
        }

    def _relative(self, name: str, difference: np.ndarray) -> dict[str, Any]:
        """Return a difference relative to the mean of the runs; at the end relative to the sampling
        error, if the mean is smaller."""
        mean = self.means[TRAINING][name].values
        floor = np.nan_to_num(np.linalg.norm(self._standard_error(name)[-1]))
        small = bool(np.linalg.norm(mean[-1]) < floor)
        return self._ratio(difference, mean, float(floor)) | {"floored": small}

    def _ratio(
        self, difference: np.ndarray, reference: np.ndarray, floor: float = 0.0
    ) -> dict[str, float]:
        over_time, at_end = self.norm(reference), max(np.linalg.norm(reference[-1]), floor)
        end = float(np.linalg.norm(difference[-1]))
        return {
            "over_time": self.norm(difference) / over_time if over_time > 0 else math.nan,
            "at_end": float(end / at_end) if at_end > 0 else math.nan,
        }


@functools.lru_cache(maxsize=1)
def _starts_alike(run: Experiment) -> bool:
    """Return whether all seeds start from the same weights: whether they ignore the key."""
    init = jax.jit(lambda key: eqx.filter(run.built[0].init(key), eqx.is_array))
    return not traces.reads(init.trace(jax.eval_shape(lambda: jax.random.key(0))))[0]


def _times(dataset: xr.Dataset) -> np.ndarray:
    """Return the (S,) steps at which the runs of a dataset recorded, the same for all."""
    times = np.asarray(dataset["time"].values, np.float64)
    return times if times.ndim == 1 else times[0]


def _arrays(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Return all recorded arrays, and their times."""
    found = {str(name): dataset[name].values for name in dataset.data_vars if name != "time"}
    times = _times(dataset)
    return {**found, "times": np.broadcast_to(times, (dataset.sizes["seed"], times.size))}


def deliver(result: Comparison, figure: "Figure", name: str = "compare") -> list[Path] | None:
    """Write figure, report and arrays as `name` to the settings' `out`, print the table and return
    the paths; or only print the report, if JSON is requested."""
    config = result.config
    sides = {TRAINING: result.simulation, **result.predictions}
    arrays = {name: _arrays(each) for name, each in sides.items()}
    paths = output.write(config.out, name, figure=figure, arrays=arrays, report=result.report)
    print(json.dumps(result.report, indent=2) if config.json else result)
    return None if config.json else paths


def applicable(
    run: Experiment, known: Mapping[str, AnyTheory] | None = None
) -> tuple[dict[str, AnyTheory], dict[str, str]]:
    """Return the theories that describe a run, most exact first, and the reasons why others do not
    apply. Variants are omitted unless requested. If none describes the rule, such as
    a user's own, the flow of all weights is used if there is one."""
    known = known or Comparison.known(run)
    theories = {name: each for name, each in known.items() if not each.variant}
    reasons = {name: refusal(registry.check_run, each, run) for name, each in theories.items()}
    found = {name: each for name, each in theories.items() if reasons[name] is None}
    for name in (WHOLE.name, NOISE.name):
        if not found and name in known and refusal(registry.check_run, known[name], run) is None:
            found = {name: known[name]}
    refused = {n: each.rpartition("does not apply: ")[2] for n, each in reasons.items() if each}
    return found, refused


def chosen(asked: Sequence[str], applicable: Sequence[str]) -> tuple[str, ...]:
    """Return the requested theories, or all `applicable` ones if none is requested. "best" stands
    for the first applicable one, which is the most exact.

    Raises:
        ValueError: for "best" if none is applicable.
    """
    if registry.BEST in asked and not applicable:
        raise ValueError("theories = 'best': none of the system's theories describes these runs")
    names = (applicable[0] if name == registry.BEST else name for name in asked or applicable)
    return tuple(dict.fromkeys(names))


def valid(dataset: xr.Dataset, name: str) -> np.ndarray:
    """Return an observable of the valid runs of a dataset over `seed`, (R, S, ...)."""
    return dataset[name].values.astype(np.float64)[dataset["status"].values == Status.OK]


def lines(report: Mapping[str, Any], observables: Sequence[str], about: Sequence[str]) -> list[str]:
    """Format the report as lines: the heading `about`, then a table with observables down and
    theories across, transposed if there are many."""
    theories = report["theories"]
    errors = {"sampling": report["simulation"]["sampling_error"]}
    errors |= {name: theory["relative_error"] for name, theory in theories.items()}
    cells = {side: {n: cell(**each) for n, each in found.items()} for side, found in errors.items()}
    failed = {n: t["status"] for n, t in theories.items() if set(t["status"]) != {Status.OK.name}}
    for name, status in failed.items():
        if Status.OK.name not in status:
            cells[name] = dict.fromkeys(cells[name], ", ".join(status))
    found = [
        *about,
        "",
        "Relative error in % against the mean of the runs: over time (root mean square over the",
        "recorded times, divided by that of the mean) / at the end.",
        "'sampling' is the standard error of that mean: smaller differences mean nothing.",
    ]
    if any(each["floored"] for side in errors.values() for each in side.values()):
        found.append(
            "* The mean at the end is below its sampling error; the error is relative to that."
        )
    found += ["", *_grid(cells, observables)]
    chance = {
        name: {n: "-" if x is None else f"{x:.3g}" for n, x in theory["sampling_errors"].items()}
        for name, theory in theories.items()
    }
    if any(text != "-" for side in chance.values() for text in side.values()):
        found += [
            "",
            "The same over time, in sampling errors: differences of about 1 are due to chance.",
        ]
        found += ["", *_grid(chance, observables)]
    found += [""] * bool(failed)
    found += [f"{name}: {counted(status)}" for name, status in failed.items()]
    ended = {status for each in failed.values() for status in each}
    return [*found, *(f"{name}: {why}." for name, why in WHY.items() if name in ended)]


def _grid(cells: Mapping[str, Mapping[str, str]], observables: Sequence[str]) -> list[str]:
    """Format text by side and observable as lines: sides across, or down if there are many."""
    rows, columns = list(observables), list(cells)
    turned = len(columns) > 6
    if turned:
        rows, columns = columns, rows
    table = [[cells[row][c] if turned else cells[c][row] for c in columns] for row in rows]
    first = max(16, *map(len, rows)) + 1
    other = max(16, *map(len, columns), *(len(entry) for row in table for entry in row)) + 3
    lines_of_table = [(row, *entries) for row, entries in zip(rows, table, strict=True)]
    return output.aligned([("", *columns), *lines_of_table], first, other)


def counted(status: Mapping[str, int]) -> str:
    """Format status counts."""
    return ", ".join(f"{number} {name}" for name, number in status.items())


def cell(over_time: float | None, at_end: float | None, floored: bool = False) -> str:
    """Format two ratios in %, with a star if the second one is relative to the sampling error."""
    shown = ("-" if value is None else f"{100 * value:.3g}" for value in (over_time, at_end))
    return " / ".join(shown) + "*" * floored
