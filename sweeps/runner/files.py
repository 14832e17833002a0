"""Sweep files: a `Sweep` written in TOML."""

import dataclasses
import os
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dynsim import checks
from sweeps import recipes
from sweeps.language.describe import Objects
from sweeps.language.grammar import flattened
from sweeps.language.tree import decode
from sweeps.lines import assignments
from sweeps.runner.spec import Sweep, settings_of
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
    path = Path(path)
    packaged = recipes.FOLDER / f"{path}.toml"
    if not os.path.exists(path) and path.parent == Path() and packaged.exists():
        path = packaged
    checks.regular("sweep file", path)
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise recipes.missing(path) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"sweep file {path}: not readable as TOML ({error})") from None
    try:
        return from_table(table, overrides)
    except ValueError as error:
        raise ValueError(f"sweep file {path}: {error}") from None


def from_table(table: Mapping[str, Any], overrides: Iterable[str] = ()) -> Sweep:
    """The sweep that a parsed TOML table describes; raises `ValueError` as `load` does."""
    given = {**table}
    settings = _overridden(given, overrides)
    for name in given:
        checks.choice("key", name, tuple(field.name for field in dataclasses.fields(Sweep)))
    run, axes = given.pop("run", {}), given.pop("axes", {})
    for name, value in (("axes", axes), ("run", run)):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} = {reprlib.repr(value)}: must be a table of settings")
    if not axes:
        raise ValueError("axes: needs a table with at least one axis")
    whole = settings_of(run, axes, settings)
    made = Sweep(whole, axes, **given)
    varied = {axis.path for axis in made.varied.named.values()}
    for name, value in (pair for each in (*run.items(), *settings) for pair in flattened(*each)):
        if language().resolve(whole, name).path in varied:
            raise ValueError(f"run.{name} = {value!r}: is an axis as well; leave one out")
    return made


def _overridden(table: dict[str, Any], overrides: Iterable[str]) -> list[tuple[str, Any]]:
    """Change what a sweep file says, and return the settings of the run that take the place of its
    own; raises `ValueError` for an override that cannot be read."""
    settings: list[tuple[str, Any]] = []
    for override in overrides:
        key, equals, value = (part.strip() for part in override.partition("="))
        if equals and not value:
            *above, name = key.split(".")
            inside: Any = table
            for each in above:
                inside = inside.get(each) if isinstance(inside, Mapping) else None
            if not isinstance(inside, dict) or name not in inside:
                raise ValueError(f"set = {override!r}: the file has no {key} to remove")
            del inside[name]
            continue
        try:
            found = assignments(override)
        except ValueError as error:
            raise ValueError(f"set = {override!r}: must be KEY = VALUE in TOML ({error})") from None
        for name in ("run", "axes"):
            if name in found and not (isinstance(found[name], Mapping) and found[name]):
                raise ValueError(f"set = {override!r}: must be a table that says something")
        settings += found.pop("run", {}).items()
        if isinstance(table.get("axes"), Mapping):
            found["axes"] = {**table["axes"], **found.get("axes", {})}
        table |= found
    return settings


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
