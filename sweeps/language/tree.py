"""Conversion between runs as objects and as text, and functional updates of runs."""

import contextlib
import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from dynsim import checks
from sweeps.language.describe import locate, plain
from sweeps.language.fields import Field, LanguageError, Table, Value, is_array, is_branch
from sweeps.language.grammar import Language, Path

Arrays: TypeAlias = Mapping[str, np.ndarray]
"""Arrays by digest."""


def encode(language: Language, tree: Any, arrays: dict[str, np.ndarray] | None = None) -> Any:
    """The text form of a run, or of a part of it, with all its fields.

    Args:
        language: that defines the words for classes. Other classes are called module:name.
        tree: the object.
        arrays: collects arrays by digest.

    Raises:
        LanguageError: if a value is not allowed, or has no text form.
    """
    field = Field(bases=(language.kind_of(type(tree)).location,))
    return plain(field, tree, "", language.kind_of, arrays)


def canonical(language: Language, tree: Any, arrays: dict[str, np.ndarray] | None = None) -> str:
    """The text that identifies a run in a store: JSON that is the same in every process."""
    table = encode(language, tree, arrays)
    return json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False)


def toml(table: Table, path: Path = ()) -> str:
    """A table as TOML."""
    lines, tables = [f"[{'.'.join(map(_toml, path))}]"] if path else [], ""
    for name, value in table.items():
        if isinstance(value, dict):
            tables += "\n" + toml(value, (*path, name))
        else:
            lines.append(f"{_toml(name)} = {_toml(value)}")
    return "\n".join([*lines, ""]) + tables


def _toml(value: Value) -> str:
    # TOML writes these values like JSON, except that it has no null.
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def decode(language: Language, table: Table, arrays: Arrays | None = None) -> Any:
    """The run that a table describes. Names may be short, as everywhere.

    Raises:
        LanguageError: if anything in the table is not allowed, or something is missing.
    """
    if "kind" in table:
        language.find(language.root, table["kind"], "kind")
    settings = [(name, value) for name, value in table.items() if name != "kind"]
    return build(language, language.assign({}, settings), arrays)


def build(language: Language, given: Table, arrays: Arrays | None = None) -> Any:
    """The run with the given settings. Its classes check it."""
    return _built(language, language.root, language.finished(given), (), arrays or {})


def _built(language: Language, field: Field, value: Any, path: Path, arrays: Arrays) -> Any:
    name = ".".join(path)
    if is_branch(value):
        kind = language.find(field, value["kind"], name)
        given = {
            part: _built(language, kind.fields[part], each, (*path, part), arrays)
            for part, each in value.items()
            if part != "kind"
        }
        cls = locate(kind.location, name)
        with _errors_in(path, kind.fields):
            return cls(**given)
    if is_array(value):
        if value["array"] not in arrays:
            raise LanguageError(name, "is not among the arrays", value["array"])
        return arrays[value["array"]]
    if isinstance(value, dict):
        return {g: _built(language, field.one, v, (*path, g), arrays) for g, v in value.items()}
    if isinstance(value, list):
        return tuple(_built(language, field.one, each, path, arrays) for each in value)
    if isinstance(value, str) and value not in field.words:
        if "function" in field.types:
            return locate(value, name)
        return value if "text" in field.types else float(value)
    return value


def put(tree: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """A copy of a tree with new values, such as `{("rule", "eta"): 0.1}`.

    Every part that contains a new value is constructed again, so that its class converts and checks
    all new values together. With traced values the constructor is skipped.

    Args:
        tree: a run, or a part of it.
        values: by path.
        path: of `tree`, for error messages.

    Raises:
        LanguageError: if there is no such path, or a class does not allow the values.
    """
    if () in values:
        return values[()]
    names = getattr(tree, "__dataclass_fields__", ())
    fields = tree if isinstance(tree, Mapping) else {name: getattr(tree, name) for name in names}
    inside: dict[str, dict[Path, Any]] = {}
    for (part, *rest), value in values.items():
        if part not in fields:
            raise LanguageError(".".join((*path, part)), "does not exist")
        inside.setdefault(part, {})[tuple(rest)] = value
    new = {part: put(fields[part], each, (*path, part)) for part, each in inside.items()}
    if isinstance(tree, Mapping):
        return {**tree, **new}
    if not checks.is_traced(list(values.values())):
        with _errors_in(path, fields):
            return dataclasses.replace(tree, **new)
    made = copy.copy(tree)
    for name, each in new.items():
        object.__setattr__(made, name, each)
    return made


@contextlib.contextmanager
def _errors_in(path: Path, fields: Mapping[str, Any]) -> Iterator[None]:
    """A context in which the errors of a class get the path to it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        start, _, reason = str(error).partition(": ")
        if start.split(" ")[0] in fields:
            raise LanguageError(".".join((*path, start)), reason) from error
        raise LanguageError(".".join(path) or "the run", str(error)) from error
