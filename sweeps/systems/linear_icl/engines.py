"""What computes the runs of in-context regression: training and the theories of the ladder."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dynsim import Trajectory
from dynsim.linear_icl.observables import TABLE, TRAINED
from dynsim.linear_icl.simulate import initial_regression, simulate_regression
from dynsim.linear_icl.task import Regression, eigenvalues
from dynsim.training.constant.descent import Descent
from odes.linear_icl import ladder, whole
from odes.solver.tolerances import Tolerances
from odes.theory import Theory
from sweeps.systems.base import Engine, Settings, known
from sweeps.systems.linear_icl.settings import RATES, Fixed

ATOL_SHARE = 1e-4
"""Absolute tolerance of an adaptive solver over its relative one: weights start small."""
TOLERANCES = Tolerances(1e-8, 1e-12)


def _assemble(
    settings: Settings[Fixed], task: Regression, numbers: Mapping[str, Array]
) -> tuple[Regression, tuple[Descent, Array]]:
    optimizer = Descent(**{name: numbers[name] for name in RATES}, kind=settings.fixed.kind)
    if settings.fixed.spectrum == "geometric":
        task = dataclasses.replace(
            task, spectrum=eigenvalues("geometric", task.D, numbers["ratio"])
        )
    return task, (optimizer, numbers["scale"])


def _simulate(
    settings: Settings[Fixed],
    task: Regression,
    rules: tuple[Descent, Array],
    key: PRNGKeyArray,
) -> Trajectory:
    fixed = settings.fixed
    optimizer, scale = rules
    return simulate_regression(
        task,
        optimizer,
        key,
        heads=fixed.heads,
        scale=scale,
        steps=fixed.steps,
        batch=fixed.batch,
        data=fixed.data,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


def _solve(
    settings: Settings[Fixed],
    task: Regression,
    rules: tuple[Descent, Array],
    key: PRNGKeyArray,
    *,
    theory: Theory[Regression, Descent],
) -> Trajectory:
    optimizer, scale = rules
    # Drawn in the precision of the simulation.
    start = initial_regression(task, key, settings.fixed.heads, scale, settings.fixed.dtype)
    options: dict[str, Any] = {}
    if theory.name not in whole.COURSES:
        rtol = settings.rtol
        options["tolerances"] = TOLERANCES if rtol is None else Tolerances(rtol, rtol * ATOL_SHARE)
    times = np.asarray(known(settings.times), settings.dtype)
    return theory.solve(
        task,
        optimizer,
        times,
        init=start,
        record=settings.record,
        dtype=settings.dtype,
        **options,
    )


def _described(
    fixed: Fixed, task: Regression, optimizer: Descent, *, theory: Theory[Regression, Descent]
) -> None:
    ladder.theory(theory, task, optimizer)
    if theory.name in whole.COURSES:
        problem = whole.inapplicable(task, optimizer, name=theory.name, shape=fixed.heads)
        if problem:
            raise ValueError(f"theory {theory.name!r} does not apply: {problem}")


def _weights(task: Regression, fixed: Fixed) -> int:
    each = 2 * fixed.heads.rank * task.D if fixed.heads.attention == "separate" else task.D**2
    return fixed.heads.heads * (1 + each)


def _bytes(task: Regression, settings: Settings[Fixed]) -> int:
    fixed = settings.fixed
    drawn = 0 if np.isinf(fixed.batch) else int(fixed.batch) * (2 * task.D + 1)
    return settings.width * (8 * _weights(task, fixed) + 2 * drawn + settings.num_times * task.D)


def _bytes_solved(task: Regression, settings: Settings[Fixed]) -> int:
    # Arrays of the stages of a solver.
    return settings.width * (20 * _weights(task, settings.fixed) + settings.num_times * task.D)


def _rung(theory: Theory[Regression, Descent]) -> Engine[Fixed]:
    closed = theory.name in whole.COURSES
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        whole.TABLE if closed else TABLE,
        _bytes_solved,
        functools.partial(_described, theory=theory),
        adaptive=not closed,
        tile=64,
        variant=theory.variant,
        title=theory.title,
        assumes=theory.assumes,
    )


def registered() -> dict[str, Engine[Fixed]]:
    """Engines of the theories of other packages that need starting weights at most."""
    found = ladder.registered()
    return {name: _rung(each) for name, each in found.items() if set(each.needs) <= {"init"}}


ENGINES: dict[str, Engine[Fixed]] = {
    "simulation": Engine(
        _simulate, _assemble, TRAINED, _bytes, tile=256, trains=True, goes_on=True
    ),
    **{name: _rung(theory) for name, theory in ladder.THEORIES.items()},
}
"""Engines by name, those of other packages left out."""
