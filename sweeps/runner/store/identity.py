"""Which sweep it is: the hash of a configuration, and how two of them differ."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

INFINITY = "inf"
"""How configurations spell it, because JSON has no name for it."""
MOST_SHOWN = 8
"""Values of an axis that a line shows."""


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash of a sweep's `as_json`, of all that decides the numbers: not the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = [
        # By their bytes: the values of an axis can be millions.
        [name, hashlib.sha256(np.asarray(numbers(values), "<f8").tobytes()).hexdigest()]
        for name, values in config["axes"].items()
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def numbers(values: list[Any]) -> list[float]:
    """The values of an axis in a configuration as numbers."""
    return [float(value) for value in values] if INFINITY in values else values


def spelt(values: list[float]) -> list[Any]:
    """Numbers as a configuration has them."""
    return [INFINITY if v == math.inf else v for v in values] if math.inf in values else values


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
            lines.append(f"{name}: {_shown(a)} -> {_shown(b)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        first = ", ".join(map(repr, value[: MOST_SHOWN - 1]))
        return f"[{first}, ..., {value[-1]!r}] ({len(value)} values)"
    return repr(value)
