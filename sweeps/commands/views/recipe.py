"""How to run a part of a stored sweep again: what a sweep file of it says."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from sweeps.language.tree import toml
from sweeps.runner.config import from_config
from sweeps.runner.spec import Sweep
from sweeps.runner.store import PARTS

LEFT_OUT = ("axes", "run", "zip", "title", "system", "contents", "functions", PARTS)
"""Of a configuration: what is written elsewhere, or follows from the rest."""


def recipe(dataset: xr.Dataset) -> dict[str, Any] | None:
    """What a sweep file of some of the runs of a stored sweep says, without the values of axes.

    Returns:
        `head` and `run`, lines of TOML; the `axes`, each with the dimension that it lies on (None
        for one of a single value) and its values in TOML; and groups that are `zip`ped. None for
        what no file describes, such as a sweep that was made of objects in Python.
    """
    try:
        sweep = described(dataset, {})
        sweep.check()
    except ValueError:
        return None
    config = json.loads(dataset.attrs["config"])
    head = {n: v for n, v in config.items() if n not in LEFT_OUT and v is not None}
    run = config["run"]
    for path in [("kind",), *(axis.path for axis in sweep.varied.named.values())]:
        _remove(run, path)
    return {
        "head": toml(head).splitlines(),
        "run": toml(run, ("run",)).splitlines(),
        "axes": {
            name: {
                "dim": str(dataset[name].dims[0]) if dataset[name].dims else None,
                "values": [
                    _toml(config.get(PARTS, {}).get(name, {}).get(value, value))
                    for value in dataset[name].values.reshape(-1).tolist()
                ],
            }
            for name in config["axes"]
        },
        "zip": config["zip"],
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
    parts = {
        name: {label: labels[label] for label in axes[name]}
        for name, labels in config.get(PARTS, {}).items()
    }
    return from_config({**config, "axes": axes, PARTS: parts})


def _remove(table: dict[str, Any], path: Sequence[str]) -> None:
    """Remove a setting that an axis has, or what it is part of that is written in short."""
    first, *rest = path
    if rest and isinstance(table.get(first), dict):
        _remove(table[first], rest)
    else:
        table.pop(first, None)


def _toml(value: Any) -> str:
    """A value of JSON in TOML, which has no null. Text and lists are written the same way."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(n)} = {_toml(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps("none" if value is None else value, ensure_ascii=False)
