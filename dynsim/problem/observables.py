"""The quantities that can be recorded for a problem: names, functions and values."""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from dynsim.problem.base import Measured, Problem, call_user
from dynsim.problem.checks import population_loss_of
from dynsim.training.recording import (
    BATCH_LOSS,
    ETA_TIME,
    NORMS,
    PARAMS,
    PRECONDITIONED,
    RELATIVE_LOSS,
    SHARPNESS,
    Record,
    Recording,
    Table,
    evaluate_observable,
)

PROVIDED = (BATCH_LOSS, RELATIVE_LOSS, *NORMS, SHARPNESS, PRECONDITIONED, ETA_TIME, PARAMS)
"""Quantities that can be recorded for every problem."""


class _Named(NamedTuple):
    """Placeholder for an observable in a table. It is equal for equal names, so that a compiled
    program is reused although a problem creates its functions at every call."""

    name: str

    def __call__(self, *snapshot: Any) -> Array:
        raise TypeError(f"{self.name}: has to be called through `measured`")


def table(problem: Problem) -> Table:
    """Return the table of quantities that can be recorded for a problem.

    Raises:
        ValueError: for an observable with the name of a quantity recorded for every problem.
    """
    # With weights of None, as only the names are needed.
    functions = {name: _Named(name) for name in _observables(problem, None)}
    for name in functions:
        if name in PROVIDED:
            raise ValueError(
                f"{type(problem).__name__}.observables: {name!r} is recorded for every problem; "
                "choose another name"
            )
    systems = (problem.NAME,) if problem.NAME else ()
    return Table(functions, (*systems, *problem.OBSERVABLES_FROM), PROVIDED, problem.REFUSED)


def flow_table(problem: Problem, whole: bool = False) -> Table:
    """Return the quantities that a flow can record: all but those of training, and the sharpness
    only if the flow is one of the `whole` weights."""
    available = {PARAMS, *((SHARPNESS, PRECONDITIONED) if whole else ())}
    refused = dict.fromkeys(PROVIDED, "is of a batch; a flow has none")
    refused[ETA_TIME] = "is recorded by training; `rule.eta_time(times)` has it for any times"
    refused |= dict.fromkeys((SHARPNESS, PRECONDITIONED), "needs all weights, which this has not")
    refused = {name: why for name, why in refused.items() if name not in available}
    provided = tuple(name for name in PROVIDED if name in available)
    return dataclasses.replace(
        table(problem), provided=provided, refused={**problem.REFUSED, **refused}
    )


def resolve_record(problem: Problem, record: Record | None) -> Recording:
    """Resolve what to record, by default `RECORD`. Raises as `table` and `Table.resolve`."""
    names = table(problem)
    return names.resolve(usual(problem, names.functions) if record is None else record)


def usual(problem: Problem, known: Iterable[str]) -> list[str]:
    """Return the names that are recorded by default, restricted to the `known` ones."""
    return [name for name in problem.RECORD if name in known]


def measured(
    problem: Problem, record: Recording, params: PyTree, snapshot: tuple[Any, ...] | None = None
) -> dict[str, Array]:
    """Evaluate the recorded quantities, by name. Pass the `snapshot` of the weights if you have it
    already."""
    own = _observables(problem, params)
    arguments: tuple[Any, ...] = (
        call_user(problem, "snapshot", params) if snapshot is None else snapshot
    )
    values = {
        name: evaluate_observable(
            name, own[name] if isinstance(function, _Named) else function, arguments
        )
        for name, function in record.functions
    }
    if PARAMS in record.provided:
        for path, leaf in jax.tree.leaves_with_path(eqx.filter(params, eqx.is_inexact_array)):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            values[f"{PARAMS}.{name}" if name else PARAMS] = leaf
    return values


def _observables(problem: Problem, params: PyTree) -> dict[str, Measured]:
    has_loss = problem.has("population_loss")
    # A problem's own observable "loss" has precedence.
    loss = {"loss": lambda *_: population_loss_of(problem, params)} if has_loss else {}
    own = call_user(problem, "observables")
    if not isinstance(own, Mapping) or not all(
        isinstance(name, str) and isinstance(function, Callable) for name, function in own.items()
    ):
        raise ValueError(
            f"{type(problem).__name__}.observables: must return functions by name, returned "
            f"{reprlib.repr(own)}"
        )
    return {**loss, **own}
