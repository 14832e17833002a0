"""Which sweep it is: the hash of a configuration, and how two of them differ."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash of a sweep's `as_json`, of all that decides the numbers: not the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = list(decisive["axes"].items())
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines "field: old -> new" for what differs between two configurations."""
    lines = []
    for name in sorted({*old, *new} - {"title"}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if name == "axes" and list(a) != list(b) and set(a) == set(b):
                lines.append(f"order of the axes: {', '.join(a)} -> {', '.join(b)}")
            lines += [f"{name}.{line}" for line in differences(a, b)]
        elif a != b:
            lines.append(f"{name}: {a!r} -> {b!r}")
    return lines
