"""Theory that answers while a slider is dragged: the symmetric reduction at any settings.

Every answer is a solve of `odes.symmetric.solve` at as many times, so that runs of other rates,
sizes and lengths are numbers of one compiled program. Another optimiser, or sequences of finite
instead of infinite length, is another program.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from dynsim import Status, Trajectory, checks, decoding
from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.state import SymmetricTask
from sweeps.commands.views import recipe
from sweeps.compare import strain
from sweeps.runner import labels
from sweeps.systems import registry
from sweeps.systems.yz.tasks import TASKS

SYSTEM = "yz"
RECORD = ("entropy", "loss", "accuracy", "speed", "z_top_distinct", "z_top_common", "xi")
"""What is drawn: quantities with one number at a time."""
POINTS = 257


def _spread(low: float, high: float, number: int) -> list[float]:
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, number)]


def _counts(low: int, high: int, number: int) -> list[int]:
    return np.unique(np.geomspace(low, high, number).round().astype(int)).tolist()


_POWERS = [2**power for power in range(17)]
SLIDERS: dict[str, list[Any]] = {
    "eta_y": _spread(1e-3, 1e3, 121),
    "eta_z": _spread(1e-4, 1e2, 121),
    "K": _counts(1, 100_000, 101),
    "num_queries": _counts(1, 10_000, 81),
    "M": [None, *_counts(2, 1_000_000, 101)],
    "overlap": [round(0.01 * i, 2) for i in range(1, 100)],
    "length": [*_POWERS[1:], math.inf],
    "batch": [*_POWERS, math.inf],
    "momentum": [0.0, *(round(0.05 * i, 2) for i in range(1, 20)), 0.98, 0.99],
    "steps": _counts(10, 100_000, 121),
}
"""Settings that can be dragged, and their values; None stands for what follows from the others."""


class Theory:
    """Theory of the runs of a stored sweep, or of settings alone.

    Attributes:
        source: the dataset of the sweep, or settings with the fields of a run.
        is_stored: whether it is a sweep.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.is_stored = isinstance(source, xr.Dataset)

    def run(self, chosen: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """The run at the `chosen` values of axes, with `values` in place of its own.

        Raises:
            ValueError: for a sweep that this theory does not describe, or a value that cannot be.
        """
        run = _of_sweep(self.source, chosen) if self.is_stored else self.source
        if (start := getattr(run, "init", "zero")) != "zero":
            raise ValueError(f"init = {start!r}: live theory starts from zero weights")
        for name in values:
            checks.choice("setting", name, tuple(SLIDERS))
        run = run.at({name: _number(value) for name, value in values.items()})
        decoding.check(run)
        run.check_read()
        strain.check_moves(run)
        return run

    def sliders(self, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What can be dragged at the `chosen` values of axes, and where it begins; raises as
        `run`."""
        run = self.run(chosen, {})
        found = []
        for name in _read(run):
            each = run.value("classes_per_query") if (name, run.task) == ("K", "syn") else 1
            own = int(reduced(run).K) if name == "K" else run.value(name)
            values = {each * value if each > 1 else value for value in SLIDERS[name]} | {own}
            ordered = sorted(values, key=lambda value: -math.inf if value is None else value)
            found.append(
                {
                    "name": name,
                    "label": labelled(name),
                    "values": list(map(_plain, ordered)),
                    "value": _plain(own),
                }
            )
        return found

    def answer(self, chosen: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Curves over time, and in words where the run ends and what it strains; without curves,
        why there are none."""
        try:
            run = self.run(chosen, values)
            task, solved = solve(run)
            said = list(words(run, task, solved))
        except ValueError as error:
            return {"times": [], "curves": {}, "words": [str(error)]}
        curves = {
            name: [_plain(v) if np.isfinite(v) else None for v in np.ravel(found).tolist()]
            for name, found in solved.observables.items()
        }
        return {
            "times": np.asarray(solved.times).tolist(),
            "curves": curves,
            "words": said,
        }


def _of_sweep(dataset: xr.Dataset, chosen: Mapping[str, Any]) -> Any:
    sweep = recipe.described(dataset, {name: _number(value) for name, value in chosen.items()})
    if sweep.system is not registry.system(SYSTEM):
        raise ValueError(
            f"live theory is of the system {SYSTEM!r}; this sweep is of {sweep.system.name!r}"
        )
    return sweep.point({name: first for name, (first,) in sweep.fields.items()})


def reduced(run: Any) -> SymmetricTask:
    """The task of a run in reduced form; `ValueError` for one that is not symmetric."""
    named = TASKS.get(run.task) if isinstance(run.task, str) else None
    if named is None:
        return symmetric.merged(symmetric.symmetric_task(run.held))
    return named.reduced(run)


def solve(run: Any) -> tuple[SymmetricTask, Trajectory]:
    """The reduced task of a run, and its flow; raises as `odes.symmetric.solve`."""
    task = reduced(run)
    # Dense where runs change fast, and as many for all, so that one program solves them.
    times = np.expm1(np.linspace(0, 1, POINTS) * np.log1p(run.steps))
    optimizer = run.make_optimizer()
    return task, symmetric.solve(task, optimizer, times, length=run.length, record=RECORD)


def words(run: Any, task: SymmetricTask, solved: Trajectory) -> Iterator[str]:
    """Sentences about the end of a run, and about assumptions that it strains."""
    status = Status(int(solved.status))
    if status is not Status.OK:
        yield f"The solve ended with the status {status.name}."
    with precision("float64"):
        optimizer = run.make_optimizer()
        stages = strain.stages_of(task, optimizer)
        # T is in the equations that are solved here.
        strained = strain.strained(run.at({"length": math.inf}), task, optimizer, stages)
    regime = strain.regime(run.steps, stages, strain.final_of(solved))
    if regime and stages:
        yield f"Regime: {regime}; the speed peaks at step {stages['peak']:.3g}."
    else:
        yield "Regime: unknown, as the closed form does not describe this update rule."
    if not math.isinf(run.batch):
        share = strain.symmetric_noise(task, run.batch)
        strained += strain.noise_sentences(run.batch, share)
        yield (
            f"The gradient of {run.batch:g} examples at the start is off by {share:.2g} of its "
            "norm; the curve is that of an infinite batch."
        )
    yield from (f"Strained: {reason}" for reason in strained)
    if not strained:
        yield "No assumption is strained."


def warm(run: Any) -> None:
    """Compile the programs that the sliders of a run reach."""
    reached = {"length": (math.inf, 256), "momentum": (0.0, 0.5)}
    settings: list[dict[str, Any]] = [{}]
    for name in set(reached) & set(_read(run)):
        settings = [{**each, name: value} for each in settings for value in reached[name]]
    for each in settings:
        solve(run.at(each))


def labelled(name: str) -> str:
    """Name and unit of a setting or an observable."""
    about = labels.about(registry.system(SYSTEM), name)
    return labels.label(xr.DataArray(0, name=name, attrs=about))


def _read(run: Any) -> list[str]:
    """The sliders that a run reads; of two that say the same, the first."""
    owned = {name: each for each in run.choices for name in each.owned}
    found = [name for name in SLIDERS if name not in owned or owned[name].reads(name)]
    return [name for name in found if not (name == "num_queries" and "K" in found)]


def _number(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _plain(value: Any) -> Any:
    """A value as JSON has it, which knows no infinity."""
    return "inf" if value == math.inf else value
