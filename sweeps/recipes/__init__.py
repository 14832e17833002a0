"""Built-in sweeps, and sweep files as text. All imports are fast, so that errors in a file are
reported at once."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.language.axes import Axes
from sweeps.language.fields import LanguageError, must_be
from sweeps.language.grammar import Language
from sweeps.language.values import is_spacing
from sweeps.lines import assignments, explained, read_toml

Toml = dict[str, Any]
"""A table of a TOML file."""
FOLDER = Path(__file__).parent
KEYS = ("run", "axes", "theory", "record", "times", "zip", "rtol", "root", "checkpoint", "title")
"""Top-level keys of a file: the fields of a `Sweep`."""


def names() -> list[str]:
    """Return the names of the built-in sweeps."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(path: str | Path) -> Toml:
    """Read the table of a sweep file, or of a built-in sweep by name. Raises `ValueError` if it
    cannot be read."""
    path = Path(path)
    # A file of the same name in the current folder comes first.
    built_in = FOLDER / f"{path}.toml"
    if not os.path.exists(path) and path.parent == Path() and os.path.exists(built_in):
        path = built_in
    # Reading a pipe or a device may never end.
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError("must be a file, not a folder, a pipe or a device")
    try:
        return read_toml(path)
    except FileNotFoundError:
        raise ValueError(f"no such file; built-in sweeps: {', '.join(names())}") from None
    except OSError as error:
        raise ValueError(explained(error)) from None
    except ValueError as error:
        raise ValueError(f"not readable as TOML ({error})") from None


def parsed(table: Mapping[str, Any], overrides: Iterable[str] = ()) -> Toml:
    """Return the arguments of a `Sweep` from the table of a sweep file. Its run lists the settings
    of the file first, and then those of the overrides, each "KEY = VALUE" in TOML.

    Raises:
        ValueError: for an override that is not valid TOML, or an unknown key.
    """
    arguments: Toml = {"run": {}, "axes": {}, **table}
    _check(arguments)
    arguments["axes"] = dict(_axes_by_name(arguments["axes"]))
    settings: Toml = {}
    for override in overrides:
        key, equals, value = (part.strip() for part in override.partition("="))
        if equals and not value:
            # An empty value removes a key. Only the names of axes have dots; other keys are in
            # tables.
            first, _, rest = key.partition(".")
            *above, name = [first, rest] if first == "axes" else key.split(".")
            inner: object = arguments
            for part in above:
                inner = inner.get(part) if isinstance(inner, Mapping) else None
            if not isinstance(inner, dict) or name not in inner:
                raise ValueError(f"set = {override!r}: the file has no {key} to remove")
            del inner[name]
            continue
        try:
            new = assignments(override)
        except ValueError as error:
            raise ValueError(f"set = {override!r}: must be KEY = VALUE in TOML ({error})") from None
        for name in ("run", "axes"):
            if name in new and not (isinstance(new[name], Mapping) and new[name]):
                raise ValueError(f"set = {override!r}: must be a non-empty table")
        _check(new)
        settings |= new.pop("run", {})
        arguments["axes"] |= dict(_axes_by_name(new.pop("axes", {})))
        arguments |= new
    if not arguments["axes"]:
        raise ValueError("axes: needs a table with at least one axis")
    return {**arguments, "run": [arguments["run"], settings]}


def _check(table: Toml) -> None:
    for name, value in table.items():
        if name not in KEYS:
            raise LanguageError("key", must_be(name, KEYS, f"one of {', '.join(KEYS)}"), name)
        if name in ("axes", "run") and not isinstance(value, Mapping):
            raise LanguageError(name, "must be a table of settings", value)


def _axes_by_name(axes: Toml, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield axes by dotted name; TOML makes nested tables of names without quotes."""
    for name, value in axes.items():
        if _has_axes(value):
            yield from _axes_by_name(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _has_axes(value: object) -> bool:
    """Return whether a table stems from a dotted name: it has only lists and such tables."""
    if not isinstance(value, Mapping) or is_spacing(value):
        return False
    return all(
        isinstance(inner, list) or _has_axes(inner) or is_spacing(inner) for inner in value.values()
    )


def check(language: Language, path: str | Path, overrides: Iterable[str]) -> None:
    """Raise `ValueError` if the run or the axes of a sweep file are invalid. Imports only modules
    that the file names."""
    with naming(path):
        sweep = parsed(read(path), overrides)
        Axes(language, sweep["run"], sweep["axes"], sweep.get("zip", ()))


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Context in which errors name a sweep file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"sweep file {path}: {error}") from None
