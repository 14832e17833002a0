"""Names and units of a problem from outside, as its class documents them."""

import re

from dynsim import Problem
from dynsim.problem.checks import has_population
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from sweeps.systems.base import Labels, unit_of
from sweeps.systems.problems.parts import hints_of
from sweeps.systems.settings import attributes


def labels_of(problem: Problem) -> Labels:
    """What the docstring of the class says in `Attributes:` of fields, with the units of their
    annotations, and of observables, whose unit stands in square brackets behind the name."""
    hints, found = hints_of(problem), {}
    for name, text in attributes(type(problem)).items():
        called = re.split("[.:;]", text)[0]
        words, _, unit = " ".join(called.split()).partition(" [")
        found[name] = (words, unit.rstrip("]") or unit_of(hints.get(name)))
    return Labels(sharpness_of(problem) | found)


def sharpness_of(problem: Problem) -> dict[str, tuple[str, str]]:
    """What the sharpness of a problem is, by the names of observables."""
    loss = "population loss" if has_population(problem) else "loss of the next batch"
    return {
        SHARPNESS: (f"largest eigenvalue of the Hessian of the {loss}", "1"),
        PRECONDITIONED: (f"sharpness of the {loss} in units in which the edge is 2", "1"),
    }
