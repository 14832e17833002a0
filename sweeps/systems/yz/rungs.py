"""How a theory of the ladder becomes an engine."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim import Trajectory
from dynsim.yz import finite_length
from dynsim.yz.observables import PREDICTED
from odes.yz import ladder
from sweeps.systems.base import Engine, Settings
from sweeps.systems.solving import integrate
from sweeps.systems.yz import memory
from sweeps.systems.yz.settings import Fixed

BY_CLASS = {
    "lemma3": 24,
    "eq10": 12,
    "theorem4": 3,
    "fixed_attention": 1,
}
"""Arrays of the shape (K, M) that a theory holds which has no array of all weights, by the part of
its name before the first dash."""


def assemble(
    settings: Settings[Fixed], task: Any, numbers: Mapping[str, Array]
) -> tuple[Any, dynsim.Rule]:
    """Task and optimiser of a run."""
    return task, settings.fixed.rule(numbers)


def start_of(fixed: Fixed, task: dynsim.SequenceClasses, key: PRNGKeyArray) -> dynsim.YZ | None:
    """Starting weights of a run: None for zero, so that theories that hold from zero alone work.
    They are drawn in the precision of the simulation."""
    if fixed.init == "zero":
        return None
    return dynsim.initial_weights(task, fixed.init, key, fixed.dtype)


def check_finite(
    fixed: Fixed, task: dynsim.SequenceClasses, optimizer: dynsim.Rule | None = None
) -> None:
    """Raise `ValueError` unless an expansion in 1/T describes runs of this length."""
    del optimizer
    if math.isinf(fixed.length):
        raise ValueError("length = inf: leaves nothing to theories of finite T; use those without")
    finite_length.check_length(task, fixed.length)


def check_applies(
    fixed: Fixed,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Rule,
    *,
    theory: ladder.Theory,
) -> None:
    """Raise `ValueError` unless `theory` describes task, optimiser, start and length."""
    ladder.theory(theory, task, optimizer, fixed.init == "zero")
    if "length" in theory.needs:
        check_finite(fixed, task)


def _solve(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    theory: ladder.Theory,
) -> Trajectory:
    start = start_of(settings.fixed, task, key)
    options: dict[str, Any] = {} if start is None else {"init": start}
    if "length" in theory.needs:
        options["length"] = settings.fixed.length
    return integrate(theory.solve, settings, task, optimizer, **options)


def rung(theory: ladder.Theory) -> Engine[Fixed]:
    """The engine of a theory of the ladder."""
    arrays = BY_CLASS.get(theory.name.split("-")[0])
    all_weights = memory.bytes_of(memory.parameters, memory.classes, memory.SOLVER_STAGES)
    return Engine(
        functools.partial(_solve, theory=theory),
        assemble,
        PREDICTED,
        all_weights if arrays is None else memory.bytes_by_class(arrays),
        functools.partial(check_applies, theory=theory),
        adaptive=True,
        tile=32,
        variant=theory.variant,
        title=theory.title,
        assumes=theory.assumes,
    )
