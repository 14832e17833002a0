"""The systems and classes of this project by name, and the language in which runs are described.

The words and the metadata of classes are read from a file, because describing classes imports JAX,
which takes seconds. `python -m tests.sweeps.commands.table` brings it up to date, and with
`WORD=MODULE:CLASS` adds a class by the word that chooses it as a `kind`.
"""

import functools
import importlib.metadata
import json
import pkgutil
from pathlib import Path
from typing import Any

from sweeps.language.fields import Kind
from sweeps.language.grammar import Language

FILE = Path(__file__).with_name("metadata.json")
GROUP = "dynsim.systems"
"""Entry points by which other packages register a `System`, under its name."""
BUILT_IN = ("yz", "qkv", "two_stage", "transformer", "linear_icl", "sparse_attention", "joma")
"""Systems of this project: each is made by the function NAME of `sweeps.systems.built_in`."""


@functools.cache
def metadata() -> dict[str, Any]:
    """What the file holds: "kinds", of which the first one is that of a run; "commands", with their
    settings; and "engines", the names of theories, other engines and observables by problem."""
    return json.loads(FILE.read_text())


@functools.cache
def language() -> Language:
    """The language with all classes of this project."""
    kinds = map(Kind.from_json, metadata()["kinds"])
    return Language(kinds, _of_package, _of_packages)


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all systems, those of this project first, then those that other packages have."""
    points = importlib.metadata.entry_points(group=GROUP)
    return tuple(dict.fromkeys((*BUILT_IN, *(point.name for point in points))))


def _of_package(word: str) -> Kind | None:
    """The kind of the problem that another package registers under a name."""
    if word not in names() or word in BUILT_IN:
        return None
    from sweeps.language.describe import describe

    # The registry knows runs, which are described in this language.
    system = pkgutil.resolve_name("sweeps.systems.registry:system")
    return describe(system(word).problems[0], word)


def _of_packages(base: str) -> list[str]:
    """The words that packages register for subclasses of a class: problems alone."""
    problem = base == "dynsim.problem.base:Problem"
    return [word for word in names() if problem and word not in BUILT_IN]
