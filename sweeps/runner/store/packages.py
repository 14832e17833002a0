"""The packages besides dynsim whose code decides the numbers of a sweep, with a hash of it: two
halves of a sweep can be told apart between which somebody has edited their own problem."""

import functools
import hashlib
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
    run: Any = sweep.first
    parts = [*type(run).__mro__, *type(getattr(run, "problem", run)).__mro__, sweep.rules.run]
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
    version, digest = plugins.version(top), hashlib.sha256()
    module: Any = sys.modules.get(top)
    # A notebook has neither.
    file: Any = getattr(module, "__file__", None)
    for root in map(Path, list(getattr(module, "__path__", ())) or [file] * bool(file)):
        for each in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(f"{each.relative_to(root)}\n".encode() + each.read_bytes())
    source = f"source {digest.hexdigest()[:12]}"
    return f"{version}, {source}" if version else source
