"""Phase diagrams: what training does over two axes, and where theory draws its lines."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

import dynsim
from dynsim import checks
from odes.formulas import decoder, growth
from odes.yz import ladder
from sweeps import output
from sweeps.runner import axes, hosts
from sweeps.runner.run import run, valid
from sweeps.runner.spec import Sweep
from sweeps.studies.phase import regions
from sweeps.studies.transitions.peaks import effective_rates
from sweeps.systems.yz.problem import Problem
from sweeps.systems.yz.settings import Training

RECORD = ("loss", "entropy", "speed")
NUM_TIMES = 10
"""Recorded steps of a run: the peak of f . g is located between two of them."""
DESCENT = "symmetric-descent"
STAGES = ("rise_end", "peak", "snap")
"""Of `odes.formulas.decoder.Stages`, those at which a line is drawn."""


@dataclasses.dataclass(frozen=True)
class Phase(Problem):
    """Colour a plane of two axes by what training did, with theory's transition lines on it.

    Attributes:
        x: axis across, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER, logarithmic.
        y: axis up, written the same way.
        resolution: number of values of an axis that does not say it.
        horizon: optimiser steps after which is looked.
        engine: simulation; symmetric (descent of a symmetric task with T and batch infinite, exact
            and fast); or a theory.
        against: what is drawn beside it, with the difference: best (the most exact flow that
            describes the runs), none, or an engine; auto is best for a simulation, else none.
        observable: what the colour shows, recorded at the horizon.
        seeds: number of runs at each point of a simulation.
        length: sequence length T, the query included; inf for P(l|n) in place of counts.
        batch: sequences per step.
        init: starting weights, zero or uniform on +-1/sqrt(M).
        momentum: heavy-ball coefficient mu in [0, 1) of sgd, 0.9 if left out.
        out: directory for phase.png, phase.npz and the stored sweeps, which resume.
    """

    x: str = "eta_y:1e-3:1e2"
    y: str = "eta_z:1e-2:1e2"
    resolution: int = 64
    horizon: int = 100
    engine: str = "simulation"
    against: str = "auto"
    observable: str = "entropy"
    seeds: int = 1
    length: int | float = 128
    batch: int | float = 128
    init: str = "zero"
    momentum: float | None = None
    out: Path = Path("out/phase")

    def training(self) -> Training:
        """The training of which every point is a variation."""
        names = [field.name for field in dataclasses.fields(Problem)]
        given = {name: getattr(self, name) for name in (*names, "length", "batch", "init")}
        if self.momentum is None:
            given["momentum"] = 0.9 if self.optimizer == "sgd" else 0.0
        return Training(**given, steps=self.horizon)

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values by axis, the one across first."""
        found = dict(axis(word, self.resolution) for word in (self.x, self.y))
        if len(found) < 2:
            raise ValueError(f"x, y = {self.x!r}, {self.y!r}: must be different axes")
        return found


def axis(word: str, resolution: int) -> tuple[str, tuple[float, ...]]:
    """Name and values of "eta_y:1e-2:1e2:256"; `ValueError` for what cannot be read."""
    name, *numbers = word.split(":")
    name = Training.AXES.resolve(name)
    checks.choice("axis", name, Training.AXES.names)
    try:
        first, last = (float(number) for number in numbers[:2])
        count = int(numbers[2]) if len(numbers) > 2 else resolution
    except ValueError:
        count = 0
    if count < 2 or len(numbers) > 3:
        raise ValueError(f"axis = {word!r}: must be NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER")
    checks.real(f"axis {name}", [first, last], 0, open_minimum=True)
    values = np.geomspace(first, last, count)
    if Training.AXES.is_whole(name):
        values = np.unique(np.rint(values)).astype(int)
    return name, tuple(values.tolist())


def sweep(config: Phase, engine: str) -> Sweep:
    """The sweep behind one panel."""
    found: dict[str, Any] = dict(config.axes())
    training = config.training()
    if engine == "simulation":
        found["seed"] = {"range": checks.integer("seeds", config.seeds, 1)}
    elif training.init != "zero":
        found["seed"] = {"range": 1}
    steps = checks.integer("horizon", config.horizon, 2)
    times = tuple(dynsim.log_times(steps, min(NUM_TIMES, steps)).tolist())
    record = tuple(dict.fromkeys((*RECORD, config.observable)))
    return Sweep(found, training, engine, record, times)


def engines(config: Phase) -> tuple[str, ...]:
    """The engines to draw: one, or two to be compared."""
    first = DESCENT if config.engine == "symmetric" else config.engine
    against = config.against
    if against == "auto":
        against = "best" if first == "simulation" else "none"
    if against == "none":
        return (first,)
    if against != "best":
        return first, against
    # Which theories apply does not depend on where in the plane one looks.
    training = sweep(config, "simulation").training({n: v[0] for n, v in config.axes().items()})
    found = ladder.applicable(
        training.make_task(),
        training.make_optimizer(),
        variants=True,
        zero_start=config.init == "zero",
    )
    # The reduced flow is the matched one, at a small part of its cost.
    best = "symmetric" if "symmetric" in found else found[0]
    return (first,) if best == first else (first, best)


def compute(config: Phase) -> dict[str, xr.Dataset]:
    """Run or resume the sweeps of a diagram; datasets by engine."""
    output.check_directory(config.out)
    wanted = {name: sweep(config, name) for name in engines(config)}
    for each in wanted.values():
        each.check()
    hosts.use_all_cores()
    return {name: run(each, config.out / name).load() for name, each in wanted.items()}


def at_horizon(dataset: xr.Dataset, observable: str) -> xr.DataArray:
    """The observable at the horizon, averaged over classes and the valid seeds."""
    values = valid(dataset)[observable].isel(time=-1)
    return values.mean([d for d in values.dims if d in ("seed", "class")])


def region_map(dataset: xr.Dataset) -> xr.DataArray:
    """The region of each point, the most common one over seeds."""
    return regions.most_common(regions.of_dataset(dataset))


def lines(config: Phase) -> dict[str, np.ndarray]:
    """Closed-form quantities on the plane, (y, x): `rise_end`, `peak` and `snap`, the times t0',
    t_peak and t0 over the horizon (Theorem 1b, Lemma 9), and `bound`, Theorem 4's B at the horizon.

    Theorem 4 assumes a single common token. Its C0 is evaluated with the norm of a class over its
    most probable common token, which is what it would be without the others: a guide to the eye
    for other tasks, and left out (NaN) where a task has no common token. Momentum is read as
    eta / (1 - mu). The closed forms say nothing of Adam, for which all is NaN.
    """
    plane = Sweep(config.axes(), config.training())
    shape = tuple(dim.size for dim in plane.dims)
    found = {name: np.full(shape, np.nan) for name in (*STAGES, "bound")}
    if config.optimizer != "adam":
        with jax.enable_x64(True):
            # Regions of one task each, on which the other axes are arrays.
            for region in axes.layout(plane.dims, math.prod(shape)).regions():
                parts = zip(plane.dims, region, strict=True)
                values = np.ix_(*(dim.axes[dim.name][part] for dim, part in parts))
                point = {
                    dim.name: value.item() if dim.static else value
                    for dim, value in zip(plane.dims, values, strict=True)
                }
                for name, value in closed_forms(plane.point(point)).items():
                    found[name][region] = value
    return {name: values.T for name, values in found.items()}


def closed_forms(training: Training) -> dict[str, jax.Array | float]:
    """What `lines` holds, for one task; learning rates and momentum may be arrays."""
    task = training.make_task()
    eta_y, eta_z = effective_rates(task, training.make_optimizer())
    stages = decoder.stages(eta_y, task.K, task.M)
    probs, common = np.asarray(task.probs), np.asarray(task.common())
    bound: Any = np.nan
    if common[0].any():
        rho_0 = np.linalg.norm(probs[0]) / probs[0][common[0]].max()
        bound = growth.bound(
            training.steps,
            eta_y,
            eta_z,
            task.K,
            task.M,
            c0=growth.c0(rho_0, task.K),
            classes_per_query=task.K / task.num_queries,
        )
    return {**{name: getattr(stages, name) / training.steps for name in STAGES}, "bound": bound}
