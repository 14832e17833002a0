"""Conversion between runs as objects and as text, and functional updates of runs."""

import contextlib
import copy
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from dynsim import checks
from sweeps.language.describe import Objects, locate, plain
from sweeps.language.fields import Field, LanguageError, Table, Value, is_array, is_branch
from sweeps.language.grammar import Language, Path


def encode(
    language: Language, tree: Any, objects: Objects | None = None, *, full: bool = True
) -> Any:
    """The text form of a run, of a part of it, or of any other value of a setting.

    Args:
        language: that defines the words for classes. Other classes are called module:name.
        tree: the object, or a table or list with objects. What is text already stays as it is.
        objects: collects what the text only names.
        full: whether to include what its parts have by default.

    Raises:
        LanguageError: if a value is not allowed.
    """
    given = functools.partial(plain, kind_of=language.kind_of, objects=objects, full=full)
    if not dataclasses.is_dataclass(tree):
        if isinstance(tree, Mapping):
            return {n: encode(language, each, objects, full=full) for n, each in tree.items()}
        if isinstance(tree, list | tuple):
            return [encode(language, each, objects, full=full) for each in tree]
        return given(Field(types=("object",)), tree, "")
    kind = language.kind_of(type(tree))
    if full:
        return given(Field(bases=(kind.location,)), tree, "")
    table = {name: given(field, getattr(tree, name), name) for name, field in kind.fields.items()}
    return {"kind": kind.word, **table}


def canonical(language: Language, tree: Any, objects: Objects | None = None) -> str:
    """The text that identifies a run in a store: JSON that is the same in every process."""
    table = encode(language, tree, objects)
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


def decode(
    language: Language,
    table: Table,
    objects: Objects | None = None,
    likely: Mapping[str, object] | None = None,
) -> Any:
    """The run that a table describes. Names may be short, as everywhere.

    Args:
        language: of the settings.
        table: of a run.
        objects: what the text only names.
        likely: other settings by name, of which the table has none.

    Raises:
        LanguageError: if anything in the table is not allowed, or something is missing.
    """
    if "kind" in table:
        language.find(language.root, table["kind"], "kind")
    settings = [(name, value) for name, value in table.items() if name != "kind"]
    return build(language, language.assign({}, [*settings, *(likely or {}).items()]), objects)


def build(language: Language, given: Table, objects: Objects | None = None) -> Any:
    """The run with the given settings. Its classes check it."""
    return _built(language, language.root, language.finished(given), (), objects or {})


def _built(language: Language, field: Field, value: Any, path: Path, objects: Objects) -> Any:
    name = ".".join(path)
    if is_branch(value):
        kind = language.find(field, value["kind"], name)
        given = {
            part: _built(language, kind.fields[part], each, (*path, part), objects)
            for part, each in value.items()
            if part != "kind"
        }
        cls = objects.get(kind.location) or locate(kind.location, name)
        with _errors_in(path, kind.fields):
            return cls(**given)
    if is_array(value):
        if value["array"] not in objects:
            raise LanguageError(name, "is an array that is not given here", value["array"])
        return objects[value["array"]]
    if isinstance(value, dict):
        return {g: _built(language, field.one, v, (*path, g), objects) for g, v in value.items()}
    if isinstance(value, list):
        return tuple(_built(language, field.one, each, path, objects) for each in value)
    if isinstance(value, str) and value not in field.words:
        if value in objects:
            return objects[value]
        if "function" in field.types:
            return locate(value, name)
        if "object" in field.types and (":" in value or value.startswith("<")):
            raise LanguageError(name, "can be given in Python alone", value)
        return value if {"text", "object"} & {*field.types} else float(value)
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
