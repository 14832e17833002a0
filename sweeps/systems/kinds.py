"""Systems and classes of this project by name, and the language that describes runs.

Names and metadata of classes are read from a file, because deriving them imports JAX, which takes
seconds. `python -m tests.sweeps.commands.table` updates it; `WORD=MODULE:CLASS` adds a class under
the word that selects it as a `kind`.
"""

import contextlib
import functools
import importlib.metadata
import json
import pkgutil
from pathlib import Path
from typing import Any

from sweeps.language.fields import Field, Kind, Table
from sweeps.language.grammar import Groups, Language

FILE = Path(__file__).with_name("metadata.json")
GROUP = "dynsim.systems"
"""Entry-point group in which other packages register a `System` under its name."""
BUILT_IN = ("yz", "qkv", "two_stage", "transformer", "linear_icl", "sparse_attention", "joma")
"""Systems of this project; the function NAME of `sweeps.systems.built_in` makes each one."""


_GROUPS: dict[Any, Groups] = {}
"""Results of `_groups`, by the text of the problem's settings and its class."""


@functools.cache
def metadata() -> dict[str, Any]:
    """Return the contents of the file: "kinds", the first of which is the run; "commands", with
    their settings; and "engines", the names of theories, other engines and observables by
    problem."""
    return json.loads(FILE.read_text())


@functools.cache
def language() -> Language:
    """Return the language with all classes of this project."""
    kinds = map(Kind.from_json, metadata()["kinds"])
    return Language(kinds, _of_package, _of_packages, _groups)


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all systems: this project's first, then those of other packages."""
    points = importlib.metadata.entry_points(group=GROUP)
    return tuple(dict.fromkeys((*BUILT_IN, *(point.name for point in points))))


def _of_package(word: str) -> Kind | None:
    """Return the kind of the problem that another package registers under a name."""
    if word not in names() or word in BUILT_IN:
        return None
    from sweeps.language.describe import describe

    # Imported here, because the registry describes runs in this language.
    system = pkgutil.resolve_name("sweeps.systems.registry:system")
    return describe(system(word).problems[0], word)


def _groups(language: Language, field: Field, part: Table) -> Groups:
    """Return `Kind.groups` of a problem of another package."""
    location = language.find(field, part["kind"], "problem").location
    key = json.dumps(part, sort_keys=True), language.classes.get(location)
    if key not in _GROUPS:
        _GROUPS[key] = ()
        # Code of others can raise anything; the error appears when the problem is trained.
        with contextlib.suppress(Exception):
            find = pkgutil.resolve_name("sweeps.systems.experiment:groups_of")
            _GROUPS[key] = find(language, field, part)
    return _GROUPS[key]


def _of_packages(base: str) -> list[str]:
    """Return the names that packages register for subclasses of a class; only for problems."""
    problem = base == "dynsim.problem.base:Problem"
    return [word for word in names() if problem and word not in BUILT_IN]
