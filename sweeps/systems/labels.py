"""Names and units of observables, as the class of a problem documents them."""

import dataclasses
import re

from dynsim import Problem
from dynsim.problem.checks import has_population
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from sweeps.language.describe import docs_of


def of_class(problem: Problem) -> dict[str, tuple[str, str]]:
    """What the docstring of the class says in `Attributes:` of observables, whose unit stands in
    square brackets behind the name."""
    found = {}
    fields = {field.name for field in dataclasses.fields(problem)}
    for name, text in docs_of(type(problem)).items():
        if name not in fields and not hasattr(Problem, name):
            words, _, unit = re.split("[.:;]", text)[0].partition(" [")
            found[name] = (words, unit.rstrip("]") or "1")
    loss = "population loss" if has_population(problem) else "loss of the next batch"
    return found | {
        SHARPNESS: (f"largest eigenvalue of the Hessian of the {loss}", "1"),
        PRECONDITIONED: (f"sharpness of the {loss} in units in which the edge is 2", "1"),
    }
