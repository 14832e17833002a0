"""The interface of systems for sweeps, comparison and diagrams: theories, and labels of results.

A run is a pytree, `odes.Training`: a problem, a rule, and static settings. A sweep gives its
numbers a leading axis. `odes.Theory` has the methods that compute it; training is a subclass,
`sweeps.systems.training.Simulation`. Labels name the recorded quantities.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from dynsim import Problem, Trajectory
from dynsim.problem.checks import has_population
from dynsim.training.recording import PRECONDITIONED, SHARPNESS, NamedFunction
from odes.theory import AnyTheory, Training
from sweeps.language.describe import docs_of
from sweeps.systems.diagrams import Diagram

RecordEntries = tuple[str | NamedFunction, ...]
"""Names of observables, and functions of the user with their names."""


class Labels(NamedTuple):
    """Descriptions of the axes and observables of a system.

    Attributes:
        about: long name and unit, where the name alone is insufficient.
        inner_dims: names of the axes of observables that are arrays.
        values: coordinate values along such an axis, if it has any.

    Example:
        >>> from sweeps.systems import registry
        >>> isinstance(registry.system("yz").labels, sweeps.Labels)
        True
    """

    about: Mapping[str, tuple[str, str]] = MappingProxyType({})
    inner_dims: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    values: Mapping[str, np.ndarray] = MappingProxyType({})


def docstring_labels(problem: Problem) -> dict[str, tuple[str, str]]:
    """Read the names and units of observables from the class's docstring: those under
    `Attributes:`, with their unit in square brackets."""
    fields = {field.name for field in dataclasses.fields(problem)}
    labels = {}
    for observable, text in docs_of(type(problem)).items():
        # `Attributes` also describes settings, and class variables that all problems have.
        if observable in fields or hasattr(Problem, observable):
            continue
        name, _, unit = re.split("[.:;]", text)[0].partition(" [")
        labels[observable] = (name, unit.rstrip("]") or "1")
    loss = "population loss" if has_population(problem) else "loss of the next batch"
    return labels | {
        SHARPNESS: (f"largest eigenvalue of the Hessian of the {loss}", "1"),
        PRECONDITIONED: (f"sharpness of the {loss} in units in which the edge is 2", "1"),
    }


class Row(NamedTuple):
    """A row of the table of `dynsim explain`.

    Attributes:
        quantity: what is predicted.
        prediction: its value; NaN if it has none.
        error: estimated error of the prediction, 0 if it is exact, NaN if unknown.
        strained: the assumption that breaks down, the theories that make it, and by how much; empty
            if none does.
        worst: optimiser step at which it is worst, NaN if it breaks down in the whole run.

    Example:
        >>> sweeps.Row("plateau ends at step", 120.0).prediction
        120.0
    """

    quantity: str
    prediction: float | str
    error: float = math.nan
    strained: str = ""
    worst: float = math.nan


class Prediction(NamedTuple):
    """The solution from which `dynsim explain` starts, and what it tests against it.

    Attributes:
        theory: title of the theory.
        training: the training that it describes. If its problem is a `dynsim.Problem`, the loss is
            compared with descent, and at a finite batch linear noise with trainings.
        solved: the loss, and any other observables, over optimiser steps.
        sizes: sizes to print after the name of the problem.
        exact: whether the theory makes each step of descent, so that its numbers have no error.
        has_limit: whether it assumes small steps or large batches.

    Example:
        >>> solved = odes.descent(DeepLinear(), dynsim.sgd(0.1), [0, 9], key=jax.random.key(0))
        >>> training = odes.Training(DeepLinear(), dynsim.sgd(0.1), steps=9)
        >>> prediction = sweeps.Prediction("descent", training, solved, exact=True)
    """

    theory: str
    training: Training
    solved: Trajectory
    sizes: str = ""
    exact: bool = False
    has_limit: bool = True


def rates(training: Training) -> Float[np.ndarray, "*P"]:
    """Return the learning rate, or the sum over all groups."""
    peaks = [np.asarray(schedule.peak) for schedule in training.rule.schedules.values()]
    return functools.reduce(np.add, peaks)


class System(NamedTuple):
    """A registered system.

    Attributes:
        name: its name in sweep files and on the command line.
        problems: classes of its problems; the first one has the name of the system.
        theories: its theories by name, and training, which is called "simulation".
        labels: names and units for its results.
        more: theories that other packages register, looked up on demand.
        like: a problem with the observables of all of them, made without touching a device; None if
            observables differ between runs.
        stiffness: function of the runs, whose numbers have shape (P,), that returns values (P,)
            that grow with the number of steps of an adaptive solver.
        predict: function of an `Experiment` that returns the `Prediction` of `dynsim explain`; None
            for the first theory that describes the run and predicts its loss.
        rows: function (experiment, prediction) -> further rows of the table of `dynsim explain`,
            such as transition times, or assumptions of the theories that break down in the run.
        defaults: default options and run settings of commands, by the name of the command, such as
            {"figure scaling": {"rate": "eta:1:12", "size": "N:4:64"}}.
        diagram: regions, lines and defaults of its phase diagrams, looked up on demand.

    Example:
        >>> from sweeps.systems import registry
        >>> registry.system("yz").name
        'yz'
    """

    name: str
    problems: tuple[type[Problem], ...]
    theories: Mapping[str, AnyTheory]
    labels: Labels = Labels()
    more: Callable[[], Mapping[str, AnyTheory]] = dict
    like: Problem | None = None
    stiffness: Callable[[Training], np.ndarray] = rates
    predict: Callable[[Any], Prediction] | None = None
    rows: Callable[[Any, Prediction], Iterable[Row]] = lambda run, prediction: ()
    defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    diagram: Callable[[], Diagram] = Diagram


def names_of(record: RecordEntries) -> tuple[str, ...]:
    """Return the names of recorded quantities."""
    return tuple(entry if isinstance(entry, str) else entry.name for entry in record)


def static_times(times: tuple[int, ...] | int) -> tuple[int, ...]:
    """Return the recorded steps of a run whose rule does not choose them."""
    if isinstance(times, int):
        raise TypeError("times: the runs of this system set their own")
    return times
