"""Training against theory, for any problem: the sweeps that the runner computes, what comes of them
as a report, and the report as a table."""

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
from odes.batch_noise import STD
from odes.batch_noise import THEORY as NOISE
from odes.general import WHOLE
from odes.theory import refusal
from sweeps import output
from sweeps.compare import scatter
from sweeps.compare.scatter import Scatter, average, spread
from sweeps.compare.settings import CompareOptions
from sweeps.runner.labels import difference
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.base import Engine
from sweeps.systems.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = "simulation"
MOST_STARTS = 32
"""Seeds from whose starting weights theories of the standard deviation across seeds begin: they
take much longer than others."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs and theories of one experiment, recorded at the same times.

    Attributes:
        config: the settings.
        simulation: the runs, over `seed`.
        predictions: datasets by theory, over `seed`: one for each seed or path, or a single one
            where the start is the same for all.
        engines: engines of the theories.
        names: observables that both sides have.
        extra: datasets of further sweeps.
    """

    config: CompareOptions
    simulation: xr.Dataset
    predictions: Mapping[str, xr.Dataset]
    engines: Mapping[str, Engine]
    names: tuple[str, ...]
    extra: Mapping[str, xr.Dataset] = dataclasses.field(default_factory=dict)

    NAMES: ClassVar[tuple[str, ...]] = ()
    """Observables to compare; all that training and theories have if there is none."""
    ALSO: ClassVar[tuple[str, ...]] = ()
    """Observables that are recorded besides, by those who can."""
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """Engines that stand beside the theories, whichever are asked for."""
    MEASURED: ClassVar[tuple[str, ...]] = ()
    """Theories that begin from what the runs measured: `from_runs` solves them."""
    SETTINGS: ClassVar[str] = "sweeps.compare.settings:CompareOptions"
    PICTURE: ClassVar[str] = "sweeps.compare.picture:draw"

    @staticmethod
    def further(config: CompareOptions) -> dict[str, Sweep]:
        """Sweeps whose datasets are `extra`; `ValueError` for settings that are not allowed."""
        del config
        return {}

    @classmethod
    def known(cls, run: Experiment) -> dict[str, Engine]:
        """The engines of the theories by name, most exact first."""
        found = registry.engines(registry.system_of(run))
        return {name: engine for name, engine in found.items() if not engine.trains}

    @classmethod
    def from_runs(cls, config: CompareOptions, theory: str, simulation: xr.Dataset) -> xr.Dataset:
        """One of `MEASURED`, solved for each of the runs."""
        raise NotImplementedError

    @classmethod
    def seeds(cls, config: CompareOptions, engine: Engine) -> int:
        """How many runs of an engine there are: one where none differs from another."""
        drawn = engine.trains or engine.noisy or (engine.seeded and not _starts_alike(config.run))
        scatters = any(name.endswith(STD) for name in engine.observables.names())
        return min(config.seeds, MOST_STARTS if scatters else config.seeds) if drawn else 1

    def about(self, theory: str) -> tuple[str, str]:
        """Title of a theory and what it assumes."""
        return self.engines[theory].title or theory, self.engines[theory].assumes

    @property
    def times(self) -> np.ndarray:
        """(S,) optimiser steps at which both recorded."""
        return _times(self.simulation)

    def runs_of(self, side: str, name: str) -> np.ndarray:
        """(R, S, ...) an observable of the runs of training, or of a theory, that ended well."""
        return valid(self.simulation if side == TRAINING else self.predictions[side], name)

    @functools.cached_property
    def means(self) -> dict[str, xr.Dataset]:
        """Means over what ended well, of training and by theory; NaN where nothing did."""

        def mean(side: str, name: str) -> tuple[tuple[Any, ...], np.ndarray]:
            return self.simulation[name].dims[1:], average(self.runs_of(side, name))

        ok = {"status": int(Status.OK)}
        return {
            side: xr.Dataset({name: mean(side, name) for name in self.names} | ok)
            for side in (TRAINING, *self.predictions)
        }

    def norm(self, values: np.ndarray) -> float:
        """The size of a curve (S, ...) over time: l2 over everything."""
        return float(np.linalg.norm(values))

    def facts(self) -> dict[str, Any]:
        """What else the report says, by section."""
        found = {TRAINING: {"status": counts(self.simulation["status"].values)}}
        return found | ({"edge": dataclasses.asdict(self.held)} if self.held else {})

    @functools.cached_property
    def held(self) -> scatter.Held | None:
        """The edge of stability next to that of the central flow, where both are compared."""
        if central.THEORY.name not in self.predictions or PRECONDITIONED not in self.names:
            return None
        return scatter.held(self.simulation, self.predictions[central.THEORY.name])

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """What else the report says of a theory: standard deviations across seeds at the end."""
        found = {name: self.scattered(theory, name) for name in self.names}
        ends = {name: each.at_end() for name, each in found.items() if each}
        return {"spread_at_end": ends} if ends else {}

    def scattered(self, theory: str, name: str) -> Scatter | None:
        """Predicted and measured standard deviation across seeds; None of a theory without."""
        mean, runs = self.runs_of(theory, name), self.runs_of(TRAINING, name)
        if self.engines[theory].noisy:
            return scatter.over_paths(mean, runs)
        if name + STD not in self.predictions[theory]:
            return None
        return scatter.over_starts(self.runs_of(theory, name + STD), mean, runs)

    def heading(self) -> list[str]:
        """What the table is about, in lines."""
        ended = counted(self.report[TRAINING]["status"])
        about = [self.config.run.about, f"{count(self.config.seeds, 'run')}: {ended}"]
        if not self.predictions:
            about.append("No theory describes this problem; only training is shown.")
        return about

    def further_lines(self) -> list[str]:
        """Lines below the table."""
        found = ["", str(self.held)] if self.held else []
        for name, theory in self.report["theories"].items():
            if spread := theory.get("spread_at_end"):
                found += scatter.lines(spread, name)
        return found

    def __str__(self) -> str:
        """Errors of the theories, as `dynsim compare` prints them."""
        return "\n".join([*lines(self.report, self.names, self.heading()), *self.further_lines()])

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """All numbers of the comparison as JSON values; not-a-number becomes None."""
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
        """Standard error of the mean of the runs, over that mean."""
        return self._relative(name, self._standard_error(name))

    def relative_error(self, theory: str, name: str) -> dict[str, Any]:
        """|theory - mean of the runs| / |mean of the runs|, over time and at the end."""
        return self._relative(name, self.apart(theory, name))

    def apart(self, theory: str, name: str) -> np.ndarray:
        """(S, ...) mean of a theory minus that of the runs."""
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
        """A difference against the mean of the runs; at the end against its sampling error, where
        the mean is smaller than that and tells nothing."""
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
    """Whether all seeds start from the same weights: JAX leaves out arguments that a program does
    not read."""
    init = jax.jit(lambda key: eqx.filter(run.built[0].init(key), eqx.is_array))
    return "@main()" in init.lower(jax.eval_shape(lambda: jax.random.key(0))).as_text()


def _times(dataset: xr.Dataset) -> np.ndarray:
    """(S,) steps at which the runs of a dataset recorded: the same for all."""
    times = np.asarray(dataset["time"].values, np.float64)
    return times if times.ndim == 1 else times[0]


def _arrays(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Everything recorded, and when."""
    found = {str(name): dataset[name].values for name in dataset.data_vars if name != "time"}
    times = _times(dataset)
    return {**found, "times": np.broadcast_to(times, (dataset.sizes["seed"], times.size))}


def deliver(result: Comparison, figure: "Figure", name: str = "compare") -> list[Path] | None:
    """Write the figure, report and arrays as `name` to the `out` of the settings, print the table
    and return the paths; or print the report alone, and return none, where JSON is asked for."""
    config = result.config
    sides = {TRAINING: result.simulation, **result.predictions}
    arrays = {name: _arrays(each) for name, each in sides.items()}
    paths = output.write(config.out, name, figure=figure, arrays=arrays, report=result.report)
    print(json.dumps(result.report, indent=2) if config.json else result)
    return None if config.json else paths


def applicable_engines(
    run: Experiment, known: Mapping[str, Engine] | None = None
) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines of the theories that describe a run, most exact first, and why the others do not;
    without those that are left out unless they are asked for. Where none describes the rule, as
    of users' own, the flow of all weights does if there is one."""
    known = known or Comparison.known(run)
    theories = {name: each for name, each in known.items() if not each.variant}
    reasons = {name: refusal(each.check_run, run) for name, each in theories.items()}
    found = {name: each for name, each in theories.items() if reasons[name] is None}
    for name in (WHOLE.name, NOISE.name):
        if not found and name in known and refusal(known[name].check_run, run) is None:
            found = {name: known[name]}
    refused = {n: each.rpartition("does not apply: ")[2] for n, each in reasons.items() if each}
    return found, refused


def chosen(asked: Sequence[str], applicable: Sequence[str]) -> tuple[str, ...]:
    """The theories that are asked for, all that are `applicable` if none is. "best" stands for the
    most exact of these, which is the first.

    Raises:
        ValueError: for "best" where none is applicable.
    """
    if registry.BEST in asked and not applicable:
        raise ValueError("theories = 'best': none of the system's theories describes these runs")
    names = (applicable[0] if name == registry.BEST else name for name in asked or applicable)
    return tuple(dict.fromkeys(names))


def valid(dataset: xr.Dataset, name: str) -> np.ndarray:
    """(R, S, ...) an observable of the runs of a dataset over `seed` that ended well."""
    return dataset[name].values.astype(np.float64)[dataset["status"].values == Status.OK]


def lines(report: Mapping[str, Any], observables: Sequence[str], about: Sequence[str]) -> list[str]:
    """The report as lines of text: what it is `about`, then observables down and theories across,
    or turned if there are many."""
    theories = report["theories"]
    errors = {"sampling": report["simulation"]["sampling_error"]}
    errors |= {name: theory["relative_error"] for name, theory in theories.items()}
    cells = {side: {n: cell(**each) for n, each in found.items()} for side, found in errors.items()}
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
    failed = {n: t["status"] for n, t in theories.items() if set(t["status"]) != {"OK"}}
    return [*found, *(f"{name}: {counted(status)}" for name, status in failed.items())]


def _grid(cells: Mapping[str, Mapping[str, str]], observables: Sequence[str]) -> list[str]:
    """Text by side and observable as lines: sides across, or down if there are many."""
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
    """Status counts as text."""
    return ", ".join(f"{number} {name}" for name, number in status.items())


def cell(over_time: float | None, at_end: float | None, floored: bool = False) -> str:
    """Two ratios as text, in %, and a star where the second one is of the floor."""
    shown = ("-" if value is None else f"{100 * value:.3g}" for value in (over_time, at_end))
    return " / ".join(shown) + "*" * floored
