"""How to run a part of a stored sweep again: what a sweep file of it says."""

import json
import math
from typing import Any

import xarray as xr

from sweeps.runner.files import from_table
from sweeps.runner.store.base import BY_WORD

LEFT_OUT = ("axes", "run", "zip", "title", "functions", "code", BY_WORD)
"""Of a configuration: what is written elsewhere, or follows from the rest."""


def recipe(dataset: xr.Dataset) -> dict[str, Any] | None:
    """What a sweep file of some of the runs of a stored sweep says, without the values of axes.

    Returns:
        `head` and `run`, lines of TOML; the `axes`, each with the dimension that it lies on (None
        for one of a single value) and its values; groups that are `zip`ped; and `by_word`, the
        settings that belong to words of axes. None for what no file describes, such as a sweep
        that was made of objects in Python.
    """
    config = json.loads(dataset.attrs.get("config", "{}"))
    if any(name not in dataset.coords for name in config.get("axes", [""])):
        return None
    axes = {name: dataset[name] for name in config["axes"]}
    if "functions" in config or any(each.ndim > 1 for each in axes.values()):
        return None
    values = {name: each.values.reshape(-1).tolist() for name, each in axes.items()}
    head = {name: value for name, value in config.items() if name not in LEFT_OUT}
    head = {name: value for name, value in head.items() if value is not None}
    by_word = config.get(BY_WORD, {})
    run = config["run"]
    read = {n: v for name, words in by_word.items() for n, v in words[values[name][0]].items()}
    first = {name: found[:1] for name, found in values.items()}
    try:
        from_table({**head, "run": run | read, "axes": first}).check()
    except ValueError:
        return None
    return {
        "head": _lines(head),
        "run": _lines(run),
        "axes": {
            name: {"dim": str(each.dims[0]) if each.dims else None, "values": _words(values[name])}
            for name, each in axes.items()
        },
        "zip": config["zip"],
        BY_WORD: {
            name: {word: _lines(read) for word, read in words.items()}
            for name, words in by_word.items()
        },
    }


def _lines(table: dict[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]


def _words(values: list[Any]) -> list[str]:
    return [_toml(value) for value in values]


def _toml(value: Any) -> str:
    """A value of JSON in TOML, whose text and lists are written the same way."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(n)} = {_toml(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
