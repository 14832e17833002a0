"""Sweep files: a `Sweep` written in TOML."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynsim import checks
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.base import field_names


def load(path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep from a TOML file.

    Args:
        path: of the file; the bare name of one of the paper's sweeps, such as "fig6", also does.
        overrides: "key = value" in TOML, such as "run.steps = 50", replacing what the file says.

    Raises:
        ValueError: naming the file and what is wrong in it.
    """
    path = Path(path)
    packaged = Path(__file__).parents[1] / "recipes" / f"{path}.toml"
    if not path.exists() and path.parent == Path() and packaged.exists():
        path = packaged
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        known = ", ".join(
            sorted(p.stem for p in (Path(__file__).parents[1] / "recipes").glob("*.toml"))
        )
        raise ValueError(
            f"sweep file {path}: no such file; sweeps that come along: {known}"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"sweep file {path}: not readable as TOML ({error})") from None
    for override in overrides:
        try:
            found = tomllib.loads(override)
            for name in ("run", "axes"):
                if name in found and not (isinstance(found[name], Mapping) and found[name]):
                    raise ValueError(f"set = {override!r}: must be a table that says something")
            _merge(table, found)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"set = {override!r}: must be KEY = VALUE in TOML ({error})") from None
    try:
        return from_table(table)
    except ValueError as error:
        raise ValueError(f"sweep file {path}: {error}") from None


def from_table(table: Mapping[str, Any]) -> Sweep:
    """The sweep that a parsed TOML table describes; raises `ValueError` as `load` does."""
    allowed = ("system", *field_names(Sweep))
    for name in table:
        checks.choice("key", name, allowed)
    given = dict(table)
    if not isinstance(given.get("axes"), Mapping) or not given["axes"]:
        raise ValueError("axes: needs a table with at least one axis")
    fields = given.pop("run", {})
    if not isinstance(fields, Mapping):
        raise ValueError(f"run = {fields!r}: must be a table of settings")
    if "system" in given:
        kind = registry.system(given.pop("system")).run
    else:
        kind = registry.system_for(fields.get("task", "")).run
    run = dict(fields)
    for name, value in run.items():
        if name in given["axes"]:
            raise ValueError(f"run.{name} = {value!r}: is an axis as well; leave one out")
        if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
            raise ValueError(f"run.{name} = {value!r}: must be one value; several make an axis")
        number = name in kind.AXES.names and isinstance(value, str | bool)
        # As JSON, which has no infinity, spells it.
        if value == "inf":
            run[name] = math.inf
        elif number:
            raise ValueError(f"run.{name} = {value!r}: must be a number")
    fields = field_names(kind)
    made = kind(**{name: value for name, value in run.items() if name in fields})
    for name in set(run) - set(fields):
        contents = made.contents()
        checks.choice("run", name, (*fields, *contents))
        if contents[name] != run[name]:
            raise ValueError(
                f"run.{name} = {run[name]!r}: what the run names holds {contents[name]!r} by now"
            )
    for name in ("record", "times"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    groups = given.get("zip", ())
    listed = isinstance(groups, list | tuple)
    if not listed or not all(isinstance(group, list | tuple) for group in groups):
        raise ValueError(f"zip = {groups!r}: must be a list of lists of axes")
    given["zip"] = tuple(map(tuple, groups))
    return Sweep(run=made, **given)


def _merge(table: dict[str, Any], other: Mapping[str, Any]) -> None:
    for name, value in other.items():
        # A table that describes an axis, like {linspace = ...}, replaces the old description.
        nested = name in ("run", "axes")
        if nested and isinstance(value, Mapping) and isinstance(table.get(name), dict):
            table[name] |= value
        else:
            table[name] = value
