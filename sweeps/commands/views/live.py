"""Theory that responds while a slider is dragged: the symmetric reduction at any settings.

Every answer is a call of `odes.symmetric.solve` with the same number of times, so that changed
rates, sizes and lengths reuse one compiled program. Another rule, or finite instead of infinite
sequences, requires another program.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import xarray as xr

from dynsim import Layer, Status, Trajectory, checks
from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.state import SymmetricTask
from sweeps.commands.views import content
from sweeps.language.fields import LanguageError
from sweeps.output import JsonObject
from sweeps.runner import labels
from sweeps.systems import layer, reduction, registry
from sweeps.systems.experiment import Experiment
from sweeps.systems.layer import check_moves

SYSTEM = "yz"
RECORD = ("entropy", "loss", "accuracy", "speed", "z_top_distinct", "z_top_common", "xi")
"""Quantities to draw, which are scalars at each time."""
POINTS = 257
NOISY = 0.5
"""Distance of the gradient of a batch, as a share of its norm, above which it counts as noisy."""
SliderValue = float | None


def _logspace(low: float, high: float, number: int) -> list[float]:
    # Three digits, as many as the page shows.
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, number)]


def _counts(low: int, high: int, number: int) -> list[int]:
    return np.unique(np.geomspace(low, high, number).round().astype(int)).tolist()


_POWERS = [2**power for power in range(17)]
_RATES = {"eta_y": _logspace(1e-3, 1e3, 121), "eta_z": _logspace(1e-4, 1e2, 121)}
SLIDERS: Mapping[str, Sequence[SliderValue]] = {
    **_RATES,
    # A schedule has its rate in `peak`.
    **{f"{name}.peak": rates for name, rates in _RATES.items()},
    "ratio": _logspace(1e-2, 1e3, 101),
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

    def run(self, chosen: JsonObject, values: JsonObject) -> Experiment:
        """Return the run at the `chosen` values of axes, with `values` replacing its own.

        Raises:
            ValueError: for a run that this theory does not describe, or an invalid value.
        """
        run = self.source
        if isinstance(run, xr.Dataset):
            axes = {name: _from_json(value) for name, value in chosen.items()}
            run = content.sweep_of(run, axes).first
        if (name := registry.system_of(run).name) != SYSTEM:
            raise ValueError(f"live theory is of the system {SYSTEM!r}; these runs are of {name!r}")
        if (start := run.bare.start) != "zero":
            raise ValueError(f"start = {start!r}: live theory starts from zero weights")
        settings = {}
        for name, value in values.items():
            checks.choice("setting", name, tuple(SLIDERS))
            # A rule without momentum has None, from which a slider cannot move.
            settings[name] = None if name == "momentum" and value == 0 else _from_json(value)
        run = run.at(settings)
        check_moves(run)
        return run

    def sliders(self, chosen: JsonObject) -> list[JsonObject]:
        """Return the sliders and their initial values at the `chosen` values of axes; raises like
        `run`."""
        sliders = []
        for name, start in _initial_values(self.run(chosen, {})).items():
            # The value of the run may lie between those of the slider.
            values = {*SLIDERS[name], start}
            ordered = sorted(values, key=lambda value: -math.inf if value is None else value)
            sliders.append(
                {
                    "name": name,
                    "label": labelled(name.removesuffix(".peak")),
                    "values": list(map(_to_json, ordered)),
                    "value": _to_json(start),
                }
            )
        return sliders

    def answer(self, chosen: JsonObject, values: JsonObject) -> JsonObject:
        """Return curves over time, and sentences about the end of the run and the assumptions that
        break down; without curves, the reason."""
        try:
            run = self.run(chosen, values)
            task, solved = solve(run)
            sentences = list(describe_end(run, task, solved))
        except ValueError as error:
            return {"times": [], "curves": {}, "words": [str(error)]}
        curves = {
            # JSON has no NaN.
            name: [v if math.isfinite(v) else None for v in np.ravel(curve).tolist()]
            for name, curve in solved.observables.items()
        }
        return {"times": np.asarray(solved.times).tolist(), "curves": curves, "words": sentences}


def solve(run: Experiment) -> tuple[SymmetricTask, Trajectory]:
    """Solve the flow of a run's reduced task; raises like `odes.symmetric.solve`, and `ValueError`
    if the task is not symmetric."""
    task = reduction.reduce_synthetic(run.problem.task) if isinstance(run.problem, Layer) else None
    task = task or symmetric.merged(symmetric.symmetric_task(run.built[0].classes))
    steps = checks.steps("steps", run.steps)
    # Dense at early times; the same number for all runs, so that they share a program.
    times = np.expm1(np.linspace(0, 1, POINTS) * np.log1p(steps))
    rule, length = run.rule.build(), run.bare.length
    return task, symmetric.solve(task, rule, times, length=length, record=RECORD)


def describe_end(run: Experiment, task: SymmetricTask, solved: Trajectory) -> Iterator[str]:
    """Describe the end of a run, and the assumptions that break down."""
    status = Status(int(solved.status))
    if status is not Status.OK:
        yield f"The solve ended with the status {status.name}."
    with precision("float64"):
        rule = run.rule.build()
        stages = layer.stages_of(task, rule)
        # The equations solved here include T.
        broken = [row.strained for row in layer.broken_assumptions(math.inf, task, rule, stages)]
    regime = layer.regime(int(solved.times[-1]), stages, layer.final_of(solved))
    if regime and stages:
        yield f"Regime: {regime}; the speed peaks at step {stages['peak']:.3g}."
    else:
        yield "Regime: unknown, as the closed form does not describe this update rule."
    if not math.isinf(run.batch):
        share = symmetric_noise(task, run.batch)
        if share > NOISY:
            broken.append(
                f"batch -> infinity (all flows): the gradient of {run.batch:g} examples at the "
                f"start is off by {share:.2g} of its norm, above {NOISY}; `dynsim compare` also "
                "trains on batches"
            )
        yield (
            f"The gradient of {run.batch:g} examples at the start is off by {share:.2g} of its "
            "norm; the curve is that of an infinite batch."
        )
    yield from (f"Strained: {reason}" for reason in broken)
    if not broken:
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
    other_programs = {"length": (math.inf, 256), "momentum": (None, 0.5)}
    axes = {name: v for name, v in other_programs.items() if name in _initial_values(run)}
    # Sequences of finite length and momentum have equations of their own, and so programs.
    for values in itertools.product(*axes.values()):
        solve(run.at(dict(zip(axes, values, strict=True))))


def labelled(name: str) -> str:
    """Return the name and unit of a setting or an observable."""
    about = labels.about(registry.system(SYSTEM), name)
    return labels.label(xr.DataArray(0, name=name, attrs=about))


def _initial_values(run: Experiment) -> dict[str, SliderValue]:
    """Return the sliders that affect a run, with their initial values."""
    values = {}
    for name, positions in SLIDERS.items():
        with contextlib.suppress(LanguageError):
            value = _from_json(run.setting(name))
            if value is None or isinstance(value, int | float):
                values[name] = positions[0] if value is None else value
    return values


def _from_json(value: object) -> object:
    return math.inf if value == "inf" else value


def _to_json(value: SliderValue) -> float | str | None:
    return "inf" if value == math.inf else value
