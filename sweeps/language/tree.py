"""Conversion of runs between objects and text."""

import json
import pathlib
import re
from typing import Any

from sweeps.language.describe import Objects, describe, locate, plain
from sweeps.language.fields import (
    Field,
    LanguageError,
    Table,
    Value,
    check,
    errors_in,
    is_array,
    is_branch,
)
from sweeps.language.grammar import Language, Path


def encode(
    language: Language, tree: Any, objects: Objects | None = None, *, full: bool = True
) -> Any:
    """Return the text form of a run, of a part of it, or of any other value of a setting.

    Args:
        language: defines the names of classes. Other classes are written as module:name.
        tree: the object, or a table or list with objects. Text is returned unchanged.
        objects: collects objects that the text refers to by name.
        full: whether to include default values; otherwise `tree` must be a run.

    Raises:
        LanguageError: if a value is not allowed.
    """
    whole: Any = plain(None, tree, "", language.kind_of, objects)
    if full:
        return whole
    table: Table = {"kind": whole["kind"]}
    for name, field in language.kind_of(type(tree)).fields.items():
        table[name] = plain(field, getattr(tree, name), name, language.kind_of, objects, full=False)
    return _without_run_defaults(table, whole, language.run_defaults(table)[0])


def _without_run_defaults(table: Table, whole: Table, defaults: Table) -> Table:
    """Return a table without values that equal the run defaults of its problem."""
    told = dict(table)
    for name in defaults.keys() & whole.keys() - {"kind"}:
        mine, all_of_it, usual = told.get(name), whole[name], defaults[name]
        if name not in told:
            told[name] = all_of_it
        elif isinstance(mine, dict) and isinstance(all_of_it, dict) and isinstance(usual, dict):
            told[name] = _without_run_defaults(mine, all_of_it, usual)
    return told


def toml(table: Table, path: Path = ()) -> str:
    """Format a table as TOML."""
    lines, tables = [f"[{'.'.join(map(_key, path))}]"] if path else [], ""
    for name, value in table.items():
        if isinstance(value, dict):
            tables += "\n" + toml(value, (*path, name))
        else:
            lines.append(f"{_key(name)} = {_toml(value)}")
    return "\n".join([*lines, ""]) + tables


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Value) -> str:
    # TOML writes these values like JSON, except that it has no null and escapes DEL as well.
    text = json.dumps("none" if value is None else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def build(language: Language, given: Table, objects: Objects | None = None) -> Any:
    """Build the run with the given settings. Its classes check it."""
    return built(language, language.root, language.finished(given), (), objects or {})


def check_fields(made: Any) -> None:
    """Check the fields of a frozen dataclass against their annotations, and convert their numbers
    to Python types. Nested parts and functions are not checked again.

    Raises:
        LanguageError: naming the field, its value and what is allowed.
    """
    for name, field in describe(type(made)).fields.items():
        if not (field.bases or {"function", "object"} & {*field.types}):
            value = check(field, getattr(made, name), name)
            object.__setattr__(made, name, built(None, field, value, (name,)))


def built(
    language: Language | None, field: Field, value: Any, path: Path, objects: Objects | None = None
) -> Any:
    """Convert a value from its text form, including nested values. Classes check their own fields;
    errors name the path. Without a language the value cannot choose a kind."""
    objects, name = objects or {}, ".".join(path)
    if language and is_branch(value):
        kind = language.find(field, value["kind"], name)
        given = {
            part: built(language, kind.fields[part], each, (*path, part), objects)
            for part, each in value.items()
            if part != "kind"
        }
        cls = objects.get(kind.location) or locate(kind.location, name)
        with errors_in(path, kind.fields):
            return cls(**given)
    if is_array(value):
        if value["array"] not in objects:
            raise LanguageError(name, "is an array that was not passed", value["array"])
        return objects[value["array"]]
    if isinstance(value, dict):
        return {g: built(language, field.one, v, (*path, g), objects) for g, v in value.items()}
    if isinstance(value, list):
        return tuple(built(language, field.one, each, path, objects) for each in value)
    # Allowed words of a field do not refer to objects.
    if not isinstance(value, str) or value in field.words:
        return value
    if value in objects:
        return objects[value]
    if "function" in field.types and ":" in value:
        return locate(value, name)
    if "object" in field.types and (":" in value or value.startswith("<")):
        raise LanguageError(name, "can be given only in Python", value)
    if "path" in field.types and "text" not in field.types:
        return pathlib.Path(value)
    return value if {"text", "path", "object"} & {*field.types} else float(value)
