"""Sweep files: a `Sweep` written in TOML."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dynsim import checks
from sweeps import recipes
from sweeps.language.describe import Objects
from sweeps.language.tree import decode
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import PARTS
from sweeps.runner.store.manifest import HASHED
from sweeps.systems.kinds import language


def load(path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep from a TOML file.

    Args:
        path: of the file; the bare name of one of the paper's sweeps, such as "fig6", also does.
        overrides: "key = value" in TOML, such as "run.steps = 50", in place of what the file says.
            Text needs no quotes, `run` and `axes` given as tables change the keys that they name,
            and "key =" removes a key.

    Raises:
        ValueError: naming the file and what is wrong in it.
    """
    checks.kind("path", path, str, os.PathLike)
    table = recipes.read(path)
    with recipes.named(path):
        return from_table(table, overrides)


def from_table(table: Mapping[str, Any], overrides: Iterable[str] = ()) -> Sweep:
    """The sweep that a parsed TOML table describes; raises `ValueError` as `load` does."""
    return Sweep(**recipes.parsed(table, overrides))


def from_config(config: Mapping[str, Any], objects: Objects | None = None) -> Sweep:
    """The sweep of a store's configuration, `Sweep.as_json`.

    Args:
        config: of the store.
        objects: what its text only names, such as arrays and functions.

    Raises:
        ValueError: where a file that it names has changed.
    """
    given = {n: config[n] for n in (f.name for f in dataclasses.fields(Sweep)) if n in config}
    parts, run = config.get(PARTS, {}), decode(language(), config["run"], objects)
    axes = {name: parts.get(name, values) for name, values in config["axes"].items()}
    made = Sweep(**{**given, "run": run, "axes": axes})
    held, now = config.get("contents", {}), made.contents
    for name in sorted({*held, *now}):
        if held.get(name) != now.get(name):
            raise ValueError(
                f"{HASHED.get(name, name)}: changed since the store was made, from "
                f"{held.get(name)} to {now.get(name)}"
            )
    return made
