"""The engines of the attention layer: simulation, descent and every theory of the ladder."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim import Trajectory
from dynsim.yz.observables import PREDICTED, TRAINED
from odes import symmetric
from odes.solver.tolerances import DEFAULT_TOLERANCES
from odes.symmetric.observables import DESCENDED, PLACED
from odes.symmetric.placement import Placed
from odes.symmetric.state import SymmetricTask
from odes.yz import ladder
from sweeps.systems.base import Engine, Settings, known
from sweeps.systems.yz.settings import Fixed

ATOL_SHARE = 0.01
"""Absolute tolerance of an adaptive solver over its relative one, as in its defaults."""
STATE_COPIES = {"sgd": 2, "momentum": 3, "adam": 4}
"""Arrays of the size of the parameters that a step holds: weights, gradient, moments."""
SOLVER_STAGES = 9
"""Sets of such arrays that an adaptive solver holds."""


def _assemble(
    settings: Settings[Fixed], task: Any, numbers: Mapping[str, Array]
) -> tuple[Any, dynsim.Optimizer]:
    return task, dynsim.Optimizer(**numbers, kind=settings.fixed.kind)


def _start(fixed: Fixed, task: dynsim.SequenceClasses, key: PRNGKeyArray) -> dynsim.YZ | None:
    """Starting weights of a run: None for zero, so that theories that hold from zero alone work.
    They are drawn in the precision of the simulation."""
    if fixed.init == "zero":
        return None
    return dynsim.initial_weights(task, fixed.init, key, fixed.dtype)


def _simulate(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
    init: dynsim.YZ | None = None,
) -> Trajectory:
    fixed = settings.fixed
    return dynsim.simulate(
        task,
        optimizer,
        key,
        steps=fixed.steps,
        length=fixed.length,
        batch=fixed.batch,
        init=init or fixed.init,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
    )


def _descend(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
) -> Trajectory:
    infinite = settings.fixed._replace(length=math.inf, batch=math.inf)
    start = _start(settings.fixed, task, key)
    return _simulate(settings._replace(fixed=infinite), task, optimizer, key, start)


def _solve(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
    *,
    theory: ladder.Theory,
) -> Trajectory:
    start = _start(settings.fixed, task, key)
    options = {} if start is None else {"init": start}
    return integrate(theory.solve, settings, task, optimizer, **options)


def _solve_symmetric(
    settings: Settings[Fixed],
    task: SymmetricTask | Placed,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
) -> Trajectory:
    del key
    return integrate(symmetric.solve, settings, task, optimizer)


def integrate(
    solve: Callable[..., Trajectory],
    settings: Settings[Any],
    task: dynsim.SequenceClasses | SymmetricTask | Placed,
    optimizer: dynsim.Optimizer,
    **options: Any,
) -> Trajectory:
    """A theory's solve as the settings ask for it, in times, record, precision and tolerance."""
    if settings.rtol is not None:
        options["tolerances"] = DEFAULT_TOLERANCES[settings.dtype]._replace(
            rtol=settings.rtol, atol=settings.rtol * ATOL_SHARE
        )
    times = np.asarray(settings.times, settings.dtype)
    return solve(task, optimizer, times, record=settings.record, dtype=settings.dtype, **options)


def _descend_symmetric(
    settings: Settings[Fixed], task: SymmetricTask, optimizer: dynsim.Optimizer, key: PRNGKeyArray
) -> Trajectory:
    del key
    return symmetric.descend(
        task,
        optimizer,
        steps=settings.fixed.steps,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
    )


def _merged(task: dynsim.SequenceClasses, record: tuple[str, ...]) -> SymmetricTask | Placed:
    """The reduced task, with the full one where something is recorded that takes full weights."""
    found = symmetric.placed(task, merged=True)
    return found if _takes_full_weights(record) else found.reduced


def _takes_full_weights(record: tuple[str, ...]) -> bool:
    return not set(record) <= set(DESCENDED.names())


def _applies(
    fixed: Fixed,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    *,
    theory: ladder.Theory,
) -> None:
    ladder.theory(theory, task, optimizer, fixed.init == "zero")


def _memory(
    parameters: Callable[[dynsim.SequenceClasses], int],
    examples: Callable[[dynsim.SequenceClasses, Fixed], float],
    stages: int = 1,
) -> Callable[[dynsim.SequenceClasses, Settings[Fixed]], int]:
    """An estimate of bytes: weights, gradient and moments, in each stage of an adaptive solver;
    the forward and the backward pass over the examples of a step, which keep a few arrays of
    (examples, M); and what is recorded."""

    def bytes_per_run(task: dynsim.SequenceClasses, settings: Settings[Fixed]) -> int:
        copies = STATE_COPIES[settings.fixed.kind] * stages
        passes = 4 * int(examples(task, settings.fixed)) * task.M
        recorded = settings.num_times * len(settings.record) * task.K
        return settings.width * (copies * parameters(task) + passes + recorded)

    return bytes_per_run


def _parameters(task: dynsim.SequenceClasses) -> int:
    return (task.M + task.num_queries) * task.M


def registered() -> dict[str, Engine[Fixed]]:
    """Engines of the theories of other packages that need task and optimiser alone."""
    return {name: rung(each) for name, each in ladder.registered().items() if not each.needs}


def _reduced_memory(task: dynsim.SequenceClasses, settings: Settings[Fixed]) -> int:
    """Of the reduced flow, and of the full layer where something is measured on it."""
    bytes_per_run = _memory(_reduced_parameters, _none, SOLVER_STAGES)(task, settings)
    if _takes_full_weights(settings.record):
        bytes_per_run += _memory(_parameters, _classes)(task, settings)
    return bytes_per_run


def _reduced_parameters(task: dynsim.SequenceClasses) -> int:
    # Four numbers for a kind of distinct token, three for a kind of common token.
    return 4 * task.support.shape[1]


def _batch(task: dynsim.SequenceClasses, fixed: Fixed) -> float:
    return fixed.batch if math.isfinite(fixed.batch) else task.K


def _classes(task: dynsim.SequenceClasses, fixed: Fixed) -> int:
    del fixed
    return task.K


def _none(task: dynsim.SequenceClasses, fixed: Fixed) -> int:
    del task, fixed
    return 0


def rung(theory: ladder.Theory) -> Engine[Fixed]:
    """The engine of a theory of the ladder."""
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        PREDICTED,
        _memory(_parameters, _classes, SOLVER_STAGES),
        functools.partial(_applies, theory=theory),
        adaptive=True,
        tile=32,
        variant=theory.variant,
        title=theory.title,
        assumes=theory.assumes,
    )


_SYMMETRIC = ladder.THEORIES["symmetric"]
ENGINES: dict[str, Engine[Fixed]] = {
    "simulation": Engine(
        _simulate,
        _assemble,
        TRAINED,
        _memory(_parameters, _batch),
        trains=True,
    ),
    "descent": Engine(
        _descend,
        _assemble,
        TRAINED,
        _memory(_parameters, _classes),
        title="descent, T and batch infinite",
        assumes="T, batch -> infinity",
    ),
    **{name: rung(theory) for name, theory in ladder.THEORIES.items()},
    "symmetric": rung(_SYMMETRIC)._replace(
        run=_solve_symmetric,
        observables=PLACED,
        bytes_per_run=_reduced_memory,
        tile=64,
        prepare=_merged,
    ),
    "symmetric-descent": Engine(
        _descend_symmetric,
        _assemble,
        DESCENDED,
        _memory(_reduced_parameters, _none),
        functools.partial(_applies, theory=_SYMMETRIC),
        tile=4096,
        prepare=_merged,
        trains=True,
        batched=True,
        variant=True,
        title="descent, T and batch infinite, reduced",
        assumes="T, batch -> infinity, symmetric task, zero weights at the start",
    ),
}
"""Engines by the name under which a sweep asks for them: training, training with T and batch
infinite (on all parameters, or on those that a symmetric task leaves), every rung of the ladder."""
