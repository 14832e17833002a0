"""Names and units of a problem from outside, as its class documents them."""

import re

from dynsim import Problem
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
    return Labels(found)
