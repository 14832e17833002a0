"""The paper's sweeps, and sweep files as text. Imports nothing that takes time, so that a mistyped
file is answered at once."""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.language.fields import LanguageError, Table, allowed, fold, is_spacing, must_be
from sweeps.language.grammar import Language, flattened
from sweeps.lines import assignments

FOLDER = Path(__file__).parent
KEYS = ("run", "axes", "engine", "record", "times", "zip", "rtol", "root", "checkpoint", "title")
"""What a file has at its top: the fields of a `Sweep`."""
Settings = list[tuple[str, Any]]


def names() -> list[str]:
    """Names of the built-in sweeps."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def missing(path: str | Path) -> ValueError:
    """The error for a sweep file that does not exist."""
    return ValueError(f"sweep file {path}: no such file; built-in sweeps: {', '.join(names())}")


def read(path: str | Path) -> dict[str, Any]:
    """The table of a sweep file, or of a built-in sweep by its name.

    Raises:
        ValueError: naming the file, where it cannot be read.
    """
    path = Path(path)
    packaged = FOLDER / f"{path}.toml"
    if not os.path.exists(path) and path.parent == Path() and packaged.exists():
        path = packaged
    # A pipe or a device may never end.
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"sweep file = {path}: must be a file, is a folder, a pipe or a device")
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"sweep file {path}: not readable as TOML ({error})") from None


def overridden(table: dict[str, Any], overrides: Iterable[str]) -> Settings:
    """Change what a sweep file says, and return the settings of the run that take the place of its
    own.

    Raises:
        ValueError: for an override that cannot be read, or a key that no sweep has.
    """
    settings: Settings = []
    if isinstance(table.get("axes"), Mapping):
        table["axes"] = dict(_named("", table["axes"]))
    for override in overrides:
        key, equals, value = (part.strip() for part in override.partition("="))
        if equals and not value:
            # Axes have dotted names, all else is in tables.
            first, _, rest = key.partition(".")
            *above, name = [first, rest] if first == "axes" else key.split(".")
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
            found["axes"] = {**table["axes"], **dict(_named("", found.get("axes", {})))}
        table |= found
    for name in table:
        if name not in KEYS:
            raise LanguageError("key", must_be(name, KEYS, f"one of {', '.join(KEYS)}"), name)
    for name in ("axes", "run"):
        if not isinstance(table.get(name, {}), Mapping):
            raise LanguageError(name, "must be a table of settings", table[name])
    if not table.get("axes"):
        raise ValueError("axes: needs a table with at least one axis")
    return settings


def _named(above: str, axes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Axes by their dotted names, also where TOML made tables of names without quotes."""
    for name, value in axes.items():
        if _has_axes(value):
            yield from _named(f"{above}{name}.", value)
        else:
            yield f"{above}{name}", value


def _has_axes(value: object) -> bool:
    """Whether a table is part of a dotted name: all in it are lists of values, or such tables."""
    if not isinstance(value, Mapping) or is_spacing(value):
        return False
    return all(
        isinstance(each, list) or _has_axes(each) or is_spacing(each) for each in value.values()
    )


def settings_of(
    language: Language, run: Mapping[str, Any], axes: Mapping[str, Any], others: Settings
) -> Table:
    """The settings of a run in text form.

    Args:
        language: of the settings.
        run: settings by name.
        axes: of its sweep, one of which may be the problem.
        others: settings by name that take the place of those of `run`.

    Raises:
        ValueError: for a name or a value that is not allowed, or if no problem is given.
    """
    named = [name for pair in (*run.items(), *others) for name, _ in flattened(*pair)]
    if "problem" not in map(fold, (*named, *axes)):
        # Without one, no other name would be known.
        field = language.resolve({}, "problem").field
        kinds = allowed(field, language.words(field))
        raise LanguageError("run.problem", f"is missing ({field.doc}); must be {kinds}")
    return language.assign(language.assign({}, run.items()), others)


def check(language: Language, path: str | Path, overrides: Iterable[str]) -> None:
    """Raise `ValueError` for what is wrong in the words of a sweep file."""
    table = read(path)
    try:
        settings = overridden(table, overrides)
        settings_of(language, table.get("run", {}), table["axes"], settings)
    except ValueError as error:
        raise ValueError(f"sweep file {path}: {error}") from None
