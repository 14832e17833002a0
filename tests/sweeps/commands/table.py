"""The options of all commands and the settings of runs, as their classes have them: writes the file
that is read first."""

import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from odes import two_stage
from sweeps.commands.table import COMMANDS, OF_PROBLEM, RUN
from sweeps.language.describe import describe
from sweeps.language.fields import Field, Kind
from sweeps.systems import kinds, registry


def to_json(kind: Kind) -> dict[str, Any]:
    """A kind as `Kind.from_json` reads it."""
    usual = Field()._asdict()
    fields = {
        name: {n: v for n, v in field._asdict().items() if v != usual[n]}
        for name, field in kind.fields.items()
    }
    return {**kind._asdict(), "fields": fields}


def written(more: Mapping[str, str] = MappingProxyType({})) -> str:
    """What the file has to hold, with more classes by their words, each as module:Class."""
    commands = {}
    classes = {name: command.settings for name, command in COMMANDS.items()}
    for first, others in OF_PROBLEM.items():
        classes |= {f"{first} {word}": settings for word, settings in others.items()}
    for name, settings in classes.items():
        path, _, cls_name = settings.partition(":")
        cls = getattr(importlib.import_module(f"sweeps.{path}"), cls_name)
        kind = describe(cls)
        run: Mapping[str, Any] | None = getattr(cls, "RUN", {}) if RUN in kind.fields else None
        commands[name] = [to_json(kind), run, getattr(cls, "POSITIONAL", ())]
    engines = {}
    for name in kinds.BUILT_IN:
        system = registry.system(name)
        names = [each for each, engine in system.engines.items() if not engine.trains]
        others = [each for each in system.engines if each not in names]
        if name == "two_stage":
            # Those that need more than a run are compared, and are no engines.
            names = list(dict.fromkeys((*names, *(each.name for each in two_stage.THEORIES))))
        for cls in system.problems:
            known = system.engines["simulation"].observables
            observables = [*dict.fromkeys((*known.functions, *known.provided))]
            engines[kinds.language().kind_of(cls).word] = [names, others, observables]
    words = {kind.word: kind.location for kind in kinds.language().kinds} | more
    described = [to_json(describe(pkgutil.resolve_name(words[each]), each)) for each in words]
    found = {"engines": engines, "kinds": described, "commands": commands}
    return json.dumps(found, indent=0) + "\n"


if __name__ == "__main__":
    kinds.FILE.write_text(written(dict(each.split("=") for each in sys.argv[1:])))
