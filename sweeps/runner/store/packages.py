"""The packages besides dynsim whose code decides the numbers of a sweep, with a hash of it: two
halves of a sweep can be told apart between which somebody has edited their own problem."""

import functools
import hashlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynsim import plugins
from odes.theory import GROUP as THEORIES
from sweeps.output import PACKAGES
from sweeps.runner.spec import Sweep

OURS = {*PACKAGES, "odes", "sweeps", *sys.builtin_module_names, *sys.stdlib_module_names}
"""What is known otherwise."""
NAMED = re.compile(r"([A-Za-z_][\w.]*):\w+")
"""Something of a module, as settings name it."""


def outside(sweep: Sweep) -> dict[str, str]:
    """The packages by name: version, if they are installed, and a hash of their source."""
    tops = {module.partition(".")[0] for module in _modules(sweep)}
    return {name: _described(name) for name in sorted(tops - (OURS - {"__main__"})) if name}


def _modules(sweep: Sweep) -> Iterator[str]:
    """The modules of what a sweep is made of."""
    run: Any = sweep.run
    parts = [type(run), type(getattr(run, "problem", run)), sweep.rules.run]
    parts += [function for _, function in sweep.rules.observables.resolve(sweep.record).functions]
    for part in parts:
        while isinstance(part, functools.partial):
            part = part.func
        yield getattr(part, "__module__", None) or ""
    for value in (sweep.system.name, *map(str, sweep.as_json()["run"].values())):
        if (found := NAMED.fullmatch(value)) and found[1] in sys.modules:
            yield found[1]
    for name, point in plugins.entry_points(THEORIES).items():
        if name.rpartition(".")[2] == sweep.engine:
            yield point.value.partition(":")[0]


def _described(top: str) -> str:
    words = []
    for name in importlib.metadata.packages_distributions().get(top, [])[:1]:
        words.append(importlib.metadata.version(name))
    if path := getattr(sys.modules.get(top), "__file__", None):
        one = Path(path)
        files = sorted(one.parent.rglob("*.py")) if one.name == "__init__.py" else [one]
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.read_bytes())
        words.append(f"source {digest.hexdigest()[:12]}")
    return ", ".join(words) or "without a source"
