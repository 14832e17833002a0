"""Conversion of runs between objects and text."""

import json
import pathlib
import re
from typing import Any

from sweeps.language.describe import Objects, describe, locate, to_text
from sweeps.language.fields import (
    Field,
    LanguageError,
    Path,
    Table,
    Value,
    check,
    errors_in,
    is_array,
    is_branch,
)
from sweeps.language.grammar import Language


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
    whole: Any = to_text(None, tree, "", language.kind_of, objects)
    if full:
        return whole
    table: Table = {"kind": whole["kind"]}
    for name, field in language.kind_of(type(tree)).fields.items():
        table[name] = to_text(
            field, getattr(tree, name), name, language.kind_of, objects, full=False
        )
    return _without_run_defaults(table, whole, language.run_defaults(table)[0])


def _without_run_defaults(table: Table, whole: Table, defaults: Table) -> Table:
    """Return a table, such that a reader who adds the defaults of its problem gets the whole."""
    explicit = dict(table)
    for name in defaults.keys() & whole.keys() - {"kind"}:
        value, complete, default = explicit.get(name), whole[name], defaults[name]
        if name not in explicit:
            # It has the default of its class, which differs from that of the problem.
            explicit[name] = complete
        elif isinstance(value, dict) and isinstance(complete, dict) and isinstance(default, dict):
            explicit[name] = _without_run_defaults(value, complete, default)
    return explicit


def toml(table: Table, path: Path = ()) -> str:
    """Format a table as TOML."""

    def key(name: str) -> str:
        return name if re.fullmatch("[A-Za-z0-9_-]+", name) else text(name)

    def text(value: Value) -> str:
        # TOML writes values like JSON, except that it has no null and escapes DEL as well.
        json_text = json.dumps("none" if value is None else value, ensure_ascii=False)
        return json_text.replace("\x7f", "\\u007f")

    lines, tables = [f"[{'.'.join(map(key, path))}]"] if path else [], ""
    for name, value in table.items():
        if isinstance(value, dict):
            tables += "\n" + toml(value, (*path, name))
        else:
            lines.append(f"{key(name)} = {text(value)}")
    # Tables come last: what follows the head of one belongs to it.
    return "\n".join([*lines, ""]) + tables


def build(language: Language, table: Table, objects: Objects | None = None) -> Any:
    """Build the run of a table of settings. Its classes check it."""
    return to_object(language, language.root, language.finished(table), (), objects or {})


def check_fields(instance: object) -> None:
    """Check the fields of a frozen dataclass against their annotations, and convert their numbers
    to Python types. Nested parts and functions are not checked again.

    Raises:
        LanguageError: naming the field, its value and what is allowed.
    """
    for name, field in describe(type(instance)).fields.items():
        if not (field.bases or {"function", "object"} & {*field.types}):
            value = check(field, getattr(instance, name), name)
            object.__setattr__(instance, name, to_object(None, field, value, (name,)))


def to_object(
    language: Language | None, field: Field, value: Any, path: Path, objects: Objects | None = None
) -> Any:
    """Convert a value from its text form, including nested values. Classes check their own fields;
    errors name the path. Without a language the value cannot choose a kind."""
    objects, name = objects or {}, ".".join(path)
    if language and is_branch(value):
        kind = language.find(field, value["kind"], name)
        arguments = {
            part: to_object(language, kind.fields[part], inside, (*path, part), objects)
            for part, inside in value.items()
            if part != "kind"
        }
        cls = objects.get(kind.location) or locate(kind.location, name)
        with errors_in(path, kind.fields):
            return cls(**arguments)
    if is_array(value):
        if value["array"] not in objects:
            raise LanguageError(name, "is an array that was not passed", value["array"])
        return objects[value["array"]]
    if isinstance(value, dict):
        return {g: to_object(language, field.one, v, (*path, g), objects) for g, v in value.items()}
    if isinstance(value, list):
        return tuple(to_object(language, field.one, entry, path, objects) for entry in value)

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
    # Of the numbers, only infinity is a word.
    return value if {"text", "path", "object"} & {*field.types} else float(value)
