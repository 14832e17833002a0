"""The options of all commands and the settings of runs, as their classes have them: writes the file
that is read first."""

import importlib
import json
import pkgutil
from collections.abc import Mapping
from typing import Any

from odes import two_stage
from sweeps.commands.table import COMMANDS, OF_PROBLEM, RUN
from sweeps.language.describe import describe
from sweeps.systems import kinds, registry


def written() -> str:
    """What the file has to hold."""
    commands = {}
    classes = {name: command.settings for name, command in COMMANDS.items()}
    for first, others in OF_PROBLEM.items():
        classes |= {f"{first} {word}": settings for word, settings in others.items()}
    for name, settings in classes.items():
        path, _, cls_name = settings.partition(":")
        cls = getattr(importlib.import_module(f"sweeps.{path}"), cls_name)
        kind = describe(cls)
        run: Mapping[str, Any] | None = getattr(cls, "RUN", {}) if RUN in kind.fields else None
        commands[name] = [kind.to_json(), run, getattr(cls, "POSITIONAL", ())]
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
    words = kinds.WORDS.items()
    described = [describe(pkgutil.resolve_name(at), word).to_json() for word, at in words]
    found = {"engines": engines, "kinds": described, "commands": commands}
    return json.dumps(found, indent=0) + "\n"


if __name__ == "__main__":
    kinds.FILE.write_text(written())
