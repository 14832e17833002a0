"""The outcome of a comparison: its numbers as a report, and the report as a table."""

import abc
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynsim import Trajectory
from dynsim.trajectory import counts, to_arrays
from odes.general import WHOLE
from odes.theory import refusal
from sweeps import output
from sweeps.compare.settings import CompareOptions
from sweeps.systems import registry
from sweeps.systems.base import Engine
from sweeps.systems.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Comparison(abc.ABC):
    """Runs and predictions of one experiment, at the same times.

    Attributes:
        config: the settings.
        simulation: the runs, by default a trajectory with a leading axis of them.
        predictions: trajectories by theory, with a leading axis of solves: one for each seed or
            path, or a single one where the start is the same for all.
        names: observables that both sides have.
    """

    config: CompareOptions
    simulation: Any
    predictions: Mapping[str, Trajectory]
    names: tuple[str, ...]

    def measured(self, name: str) -> np.ndarray:
        """(R, S, ...) an observable of the runs that ended well."""
        return valid(self.simulation, name)

    def trained(self) -> Mapping[str, np.ndarray]:
        """Everything recorded of the runs."""
        return to_arrays(self.simulation)

    @abc.abstractmethod
    def about(self, theory: str) -> tuple[str, str]:
        """Title of a theory and what it assumes."""

    def predicted(self, theory: str, name: str) -> np.ndarray:
        """(R, S, ...) an observable of the solves that ended well."""
        return valid(self.predictions[theory], name)

    def norm(self, values: np.ndarray) -> float:
        """The size of a curve (S, ...) over time: l2 over everything."""
        return float(np.linalg.norm(values))

    def facts(self) -> dict[str, Any]:
        """What else the report says, by section."""
        return {}

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """What else the report says of a theory."""
        del theory
        return {}

    def __str__(self) -> str:
        """Relative errors of the theories, as `dynsim compare` prints them."""
        return "\n".join(lines(self.report, self.names, [self.config.run.about]))

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """All numbers of the comparison as JSON values; not-a-number becomes None."""
        facts = self.facts()
        simulation = facts.pop("simulation", {})
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

    def sampling_error(self, name: str) -> dict[str, float]:
        """Standard error of the mean of the runs, over that mean."""
        runs = self.measured(name)
        mean = average(runs)
        return self._ratio(spread(runs) / math.sqrt(max(len(runs), 1)), mean)

    def relative_error(self, theory: str, name: str) -> dict[str, float]:
        """|theory - mean of the runs| / |mean of the runs|, over time and at the end."""
        want = average(self.measured(name))
        return self._ratio(average(self.predicted(theory, name)) - want, want)

    def _against(self, theory: str) -> dict[str, Any]:
        title, assumes = self.about(theory)
        return {
            "title": title,
            "assumes": assumes,
            "status": counts(self.predictions[theory].status),
            **self.theory_facts(theory),
            "relative_error": {name: self.relative_error(theory, name) for name in self.names},
        }

    def _ratio(self, difference: np.ndarray, reference: np.ndarray) -> dict[str, float]:
        over_time, at_end = self.norm(reference), float(np.linalg.norm(reference[-1]))
        end = float(np.linalg.norm(difference[-1]))
        return {
            "over_time": self.norm(difference) / over_time if over_time > 0 else math.nan,
            "at_end": end / at_end if at_end > 0 else math.nan,
        }


def deliver(
    result: Comparison, figure: "Figure", text: str, name: str = "compare"
) -> list[Path] | None:
    """Write the figure, report and arrays as `name` to the `out` of the settings, print `text` and
    return the paths; or print the report alone, and return none, where JSON is asked for."""
    config = result.config
    found = {name: to_arrays(each) for name, each in result.predictions.items()}
    arrays = {"simulation": result.trained(), **found}
    paths = output.write(config.out, name, figure=figure, arrays=arrays, report=result.report)
    print(json.dumps(result.report, indent=2) if config.json else text)
    return None if config.json else paths


def judged(run: Experiment) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines of the theories that describe a run, most exact first, and why the others do not;
    without those that are left out unless they are asked for. Where none describes the rule, as
    of users' own, the flow of all weights does if there is one."""
    known = registry.engines(registry.system_of(run))
    theories = {n: each for n, each in known.items() if not (each.trains or each.variant)}
    reasons = {name: refusal(each.check_run, run) for name, each in theories.items()}
    found = {name: each for name, each in theories.items() if reasons[name] is None}
    whole = known.get(WHOLE.name)
    if not found and whole and refusal(whole.check_run, run) is None:
        found = {WHOLE.name: whole}
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


def valid(trajectory: Trajectory, name: str) -> np.ndarray:
    """(R, S, ...) an observable of the runs of a batch that ended well."""
    return np.asarray(trajectory[name], np.float64)[np.asarray(trajectory.ok)]


def average(runs: np.ndarray) -> np.ndarray:
    """Mean over the runs, (S, ...); NaN without any."""
    return runs.mean(0) if len(runs) else np.full(runs.shape[1:], np.nan)


def spread(runs: np.ndarray) -> np.ndarray:
    """Standard deviation (ddof 1) over the runs, (S, ...); NaN below two runs."""
    return runs.std(0, ddof=1) if len(runs) > 1 else np.full(runs.shape[1:], np.nan)


def lines(report: Mapping[str, Any], observables: Sequence[str], about: Sequence[str]) -> list[str]:
    """The report as lines of text: what it is `about`, then observables down and theories across,
    or turned if there are many."""
    theories = report["theories"]
    errors = {"sampling": report["simulation"]["sampling_error"]}
    errors |= {name: theory["relative_error"] for name, theory in theories.items()}
    rows, columns = list(observables), list(errors)
    turned = len(columns) > 6
    if turned:
        rows, columns = columns, rows
    table = [
        [cell(**(errors[row][c] if turned else errors[c][row])) for c in columns] for row in rows
    ]
    first = max(16, *map(len, rows)) + 1
    other = max(16, *map(len, columns), *(len(entry) for row in table for entry in row)) + 3
    lines_of_table = [(row, *entries) for row, entries in zip(rows, table, strict=True)]
    found = [
        *about,
        "",
        "Relative error in % against the mean of the runs: over time (root mean square over the",
        "recorded times, over that of the mean) / at the end.",
        "'sampling' is the standard error of that mean: smaller differences mean nothing.",
        "",
        *output.aligned([("", *columns), *lines_of_table], first, other),
    ]
    failed = {n: t["status"] for n, t in theories.items() if set(t["status"]) != {"OK"}}
    return [*found, *(f"{name}: {counted(status)}" for name, status in failed.items())]


def counted(status: Mapping[str, int]) -> str:
    """Status counts as text."""
    return ", ".join(f"{number} {name}" for name, number in status.items())


def cell(over_time: float | None, at_end: float | None) -> str:
    """Two ratios as text, in %."""
    shown = ("-" if value is None else f"{100 * value:.3g}" for value in (over_time, at_end))
    return " / ".join(shown)
