"""How to run a part of a stored sweep again: what a sweep file of it says."""

import json
import math
from collections.abc import Mapping
from typing import Any

import xarray as xr

from sweeps.runner.files import from_table
from sweeps.runner.spec import Sweep
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
    try:
        described(dataset, {}).check()
    except ValueError:
        return None
    axes = {name: dataset[name] for name in config["axes"]}
    values = {name: each.values.reshape(-1).tolist() for name, each in axes.items()}
    by_word = config.get(BY_WORD, {})
    return {
        "head": _lines(_head(config)),
        "run": _lines(config["run"]),
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


def described(dataset: xr.Dataset, chosen: Mapping[str, Any]) -> Sweep:
    """The sweep of one setting of a stored sweep, at the `chosen` values of axes and the first ones
    of others.

    Raises:
        ValueError: for what no file describes.
    """
    config = json.loads(dataset.attrs.get("config", "{}"))
    names = config.get("axes", [])
    known = names and all(n in dataset.coords and dataset[n].ndim <= 1 for n in names)
    if not known or "functions" in config:
        raise ValueError("no sweep file describes these runs, which were made in Python")
    first = {name: dataset[name].values.reshape(-1)[0].item() for name in names}
    axes = {name: [chosen.get(name, value)] for name, value in first.items()}
    by_word = config.get(BY_WORD, {})
    read = {n: v for name, words in by_word.items() for n, v in words[axes[name][0]].items()}
    return from_table({**_head(config), "run": config["run"] | read, "axes": axes})


def _head(config: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in config.items() if n not in LEFT_OUT and v is not None}


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
