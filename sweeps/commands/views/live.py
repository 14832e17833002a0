"""Theory that responds while a slider is dragged: the symmetric reduction at any settings.

Every answer is a call of `odes.symmetric.solve` with the same number of times, so that changed
rates, sizes and lengths reuse one compiled program. Another rule, or finite instead of infinite
sequences, requires another program.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from dynsim import Layer, Status, Trajectory, checks
from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.state import SymmetricTask
from sweeps.commands.views import content
from sweeps.language.fields import LanguageError
from sweeps.runner import labels
from sweeps.systems import layer, registry, yz
from sweeps.systems.experiment import Experiment
from sweeps.systems.layer import check_moves

SYSTEM = "yz"
RECORD = ("entropy", "loss", "accuracy", "speed", "z_top_distinct", "z_top_common", "xi")
"""Quantities to draw, which are scalars at each time."""
POINTS = 257
NOISY = 0.5
"""Distance of the gradient of a batch, as a share of its norm, above which it counts as noisy."""


def _spread(low: float, high: float, number: int) -> list[float]:
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, number)]


def _counts(low: int, high: int, number: int) -> list[int]:
    return np.unique(np.geomspace(low, high, number).round().astype(int)).tolist()


_POWERS = [2**power for power in range(17)]
_RATES = {"eta_y": _spread(1e-3, 1e3, 121), "eta_z": _spread(1e-4, 1e2, 121)}
SLIDERS: dict[str, list[Any]] = {
    **_RATES,
    **{f"{name}.peak": rates for name, rates in _RATES.items()},
    "ratio": _spread(1e-2, 1e3, 101),
    "K": _counts(1, 100_000, 101),
    "num_queries": _counts(1, 10_000, 81),
    "M": [None, *_counts(2, 1_000_000, 101)],
    "overlap": [round(0.01 * i, 2) for i in range(1, 100)],
    "length": [*_POWERS[1:], math.inf],
    "batch": [*_POWERS, math.inf],
    "momentum": [0.0, *(round(0.05 * i, 2) for i in range(1, 20)), 0.98, 0.99],
    "steps": _counts(10, 100_000, 121),
}
"""Settings with sliders, and their values; None stands for a value derived from the others."""


class Theory:
    """Theory of the runs of a stored sweep, or of one run.

    Attributes:
        source: the dataset of the sweep, or the run.
    """

    def __init__(self, source: xr.Dataset | Experiment) -> None:
        self.source = source

    def run(self, chosen: Mapping[str, Any], values: Mapping[str, Any]) -> Experiment:
        """Return the run at the `chosen` values of axes, with `values` replacing its own.

        Raises:
            ValueError: for a run that this theory does not describe, or an invalid value.
        """
        found = self.source
        run = found if isinstance(found, Experiment) else _of_sweep(found, chosen)
        if (name := registry.system_of(run).name) != SYSTEM:
            raise ValueError(f"live theory is of the system {SYSTEM!r}; these runs are of {name!r}")
        if (start := run.bare.start) != "zero":
            raise ValueError(f"start = {start!r}: live theory starts from zero weights")
        for name in values:
            checks.choice("setting", name, tuple(SLIDERS))
        # Zero momentum is represented by None.
        zero = {"momentum": {0: None}}
        given = {n: zero.get(n, {}).get(value, _number(value)) for n, value in values.items()}
        run = run.at(given)
        check_moves(run)
        return run

    def sliders(self, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the sliders and their initial values at the `chosen` values of axes; raises like
        `run`."""
        found = []
        for name, own in _read(self.run(chosen, {})).items():
            values = {*SLIDERS[name], own}
            ordered = sorted(values, key=lambda value: -math.inf if value is None else value)
            found.append(
                {
                    "name": name,
                    "label": labelled(name.removesuffix(".peak")),
                    "values": list(map(_plain, ordered)),
                    "value": _plain(own),
                }
            )
        return found

    def answer(self, chosen: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return curves over time, and sentences about the end of the run and strained assumptions;
        without curves, the reason."""
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


def _of_sweep(dataset: xr.Dataset, chosen: Mapping[str, Any]) -> Experiment:
    return content.sweep_of(dataset, {n: _number(value) for n, value in chosen.items()}).first


def reduced(run: Experiment) -> SymmetricTask:
    """Return the reduced task of a run; raises `ValueError` if it is not symmetric."""
    found = yz.reduced(run.problem.task) if isinstance(run.problem, Layer) else None
    return found or symmetric.merged(symmetric.symmetric_task(run.built[0].classes))


def solve(run: Experiment) -> tuple[SymmetricTask, Trajectory]:
    """Solve the flow of a run's reduced task; raises like `odes.symmetric.solve`."""
    task, steps = reduced(run), checks.steps("steps", run.steps)
    # Dense at early times; the same number for all runs, so that they share a program.
    times = np.expm1(np.linspace(0, 1, POINTS) * np.log1p(steps))
    rule, length = run.rule.build(), run.bare.length
    return task, symmetric.solve(task, rule, times, length=length, record=RECORD)


def words(run: Experiment, task: SymmetricTask, solved: Trajectory) -> Iterator[str]:
    """Describe the end of a run, and the assumptions that it strains."""
    status = Status(int(solved.status))
    if status is not Status.OK:
        yield f"The solve ended with the status {status.name}."
    with precision("float64"):
        rule = run.rule.build()
        stages = layer.stages_of(task, rule)
        # The equations solved here include T.
        strained = [row.strained for row in layer.strained(math.inf, task, rule, stages)]
    where = layer.regime(int(solved.times[-1]), stages, layer.final_of(solved))
    if where and stages:
        yield f"Regime: {where}; the speed peaks at step {stages['peak']:.3g}."
    else:
        yield "Regime: unknown, as the closed form does not describe this update rule."
    if not math.isinf(run.batch):
        share = symmetric_noise(task, run.batch)
        if share > NOISY:
            strained.append(
                f"batch -> infinity (all flows): the gradient of {run.batch:g} examples at the "
                f"start is off by {share:.2g} of its norm, above {NOISY}; `dynsim compare` also "
                "trains on batches"
            )
        yield (
            f"The gradient of {run.batch:g} examples at the start is off by {share:.2g} of its "
            "norm; the curve is that of an infinite batch."
        )
    yield from (f"Strained: {reason}" for reason in strained)
    if not strained:
        yield "No assumption is strained."


def symmetric_noise(task: SymmetricTask, batch: int | float) -> float:
    r"""`batch_noise` of symmetric classes from zero weights, to leading order in 1/T [ours].

    An example of class n contributes :math:`-f_n u_n^T` to the gradient, with
    :math:`u_n = e_n - 1/M` and :math:`|f_n| = 1`, and nothing to that of Z. So the mean square over
    batches of the distance from the mean G is :math:`(1 - 1/M - |G|^2) / B`, and
    :math:`|G|^2 = (1 - 1/M - (K-1)\, f_n \cdot f_{n'} / M) / K`.
    """
    K, M, (overlap, _) = int(task.K), int(task.M), layer.starting_overlap(task)
    mean = (1 - 1 / M - (K - 1) * overlap / M) / K
    return math.sqrt(max(1 - 1 / M - mean, 0) / mean / batch)


def warm(run: Experiment) -> None:
    """Compile the programs that a run's sliders can reach."""
    reached = {"length": (math.inf, 256), "momentum": (None, 0.5)}
    settings: list[dict[str, Any]] = [{}]
    for name in set(reached) & set(_read(run)):
        settings = [{**each, name: value} for each in settings for value in reached[name]]
    for each in settings:
        solve(run.at(each))


def labelled(name: str) -> str:
    """Return the name and unit of a setting or an observable."""
    about = labels.about(registry.system(SYSTEM), name)
    return labels.label(xr.DataArray(0, name=name, attrs=about))


def _read(run: Experiment) -> dict[str, Any]:
    """Return the sliders that affect a run, with their initial values."""
    found = {}
    for name in SLIDERS:
        with contextlib.suppress(LanguageError):
            value = _number(run.setting(name))
            if value is None or isinstance(value, int | float):
                found[name] = SLIDERS[name][0] if value is None else value
    return found


def _number(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _plain(value: Any) -> Any:
    """Convert a value to JSON, which has no infinity."""
    return "inf" if value == math.inf else value
