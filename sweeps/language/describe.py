"""Metadata of classes, and the text form of objects.

The types, ranges and units of fields come from their annotations, and the descriptions from the
docstring. Three class variables are optional:

* `GROUPS`: names of groups of weights that can have their own learning rates.
* `RUN_DEFAULTS`: defaults of a run with this class: `{"rule": {"kind": "sgd", "eta": 0.5}}`.
* `ENDINGS`: a field and suffixes: with `("path", (".npz",))`, `a.npz` chooses this class. A third
  entry says what to do with other files.
* `SHORT`: a field: a plain number chooses this class and becomes the value of the field.
"""

import contextlib
import dataclasses
import functools
import hashlib
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeAlias

import docstring_parser
import jax
import numpy as np

from dynsim import Problem, checks, decoding, numeric, plugins
from sweeps.language.fields import Field, Kind, LanguageError, Value, check

TRACED = "traced"
"""Annotation of an integer that may differ between runs of one compiled program."""
PLAIN = (str, float, int, np.generic, np.ndarray, jax.Array, types.NoneType)
"""Types whose values represent themselves in text."""
Objects: TypeAlias = dict[str, Any]
"""Arrays by digest; functions, classes and other objects by their names in text."""


@functools.cache
def describe(cls: type, word: str = "") -> Kind:
    """Return the metadata of a frozen dataclass or an Equinox module.

    Args:
        cls: a class whose constructor takes its fields.
        word: a short name. Without one the class is called module:name.

    Raises:
        LanguageError: if the class, or one of its fields, has no text form.
    """
    location = name_of(cls)
    hints, docs, fields = typing.get_type_hints(cls, include_extras=True), docs_of(cls), {}
    # Keyword-only ones last, as in a signature.
    members = sorted(dataclasses.fields(cls), key=lambda member: member.kw_only is True)
    for member in (member for member in members if member.init):
        hint = hints[member.name]
        if converter := member.metadata.get("converter"):
            # The constructor takes what the converter takes.
            arguments = typing.get_type_hints(converter, include_extras=True)
            argument = next((arguments[name] for name in arguments if name != "return"), Any)
            hint = hint if argument is Any else argument
        field = _field_of(hint, bool(member.metadata.get("static")))
        declared = [b for b in cls.__mro__ if member.name in vars(b).get("__annotations__", ())]
        field = field._replace(declared=name_of(declared[-1]), doc=docs.get(member.name, ""))
        default = member.default
        if member.default_factory is not dataclasses.MISSING:
            default = member.default_factory()
        if default is dataclasses.MISSING:
            fields[member.name] = field._replace(required=True)
        else:
            text = to_text(field, default, f"{location}.{member.name}", full=False)
            fields[member.name] = field._replace(default=text)
    # A problem that is built from settings may have groups as well.
    own = any(getattr(cls, n, None) is not getattr(Problem, n) for n in ("groups", "build"))
    about = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
    return Kind(
        word=word or location,
        location=location,
        # The default docstring of a dataclass is its signature.
        about="" if about.startswith(f"{cls.__name__}(") else about,
        bases=tuple(map(name_of, cls.__mro__[:-1])),
        abstract=bool(getattr(cls, "__abstractmethods__", ())),
        fields=fields,
        groups=getattr(cls, "GROUPS", () if not issubclass(cls, Problem) or own else None),
        run_defaults=getattr(cls, "RUN_DEFAULTS", {}),
        endings=getattr(cls, "ENDINGS", None),
        short=vars(cls).get("SHORT", ""),
    )


def name_of(thing: Any) -> str:
    """Return a class's or function's name as module:name, equal in a script and its importers."""
    module = thing.__module__
    main = _CALLED.get() or main_name()
    return f"{main if module in ('__main__', '__mp_main__') else module}:{thing.__qualname__}"


def locate(name: str, path: str) -> Any:
    """Return the class or function with the name module:name.

    Raises:
        LanguageError: for `path`, if it cannot be imported.
    """
    if "<" in name:
        raise LanguageError(path, "must be defined at the top of a module", name)
    module, _, rest = name.partition(":")
    if not module or not rest:
        raise LanguageError(path, "must be module:NAME", name)
    try:
        with plugins.x64_unchanged(name):
            return pkgutil.resolve_name(f"{'__main__' if module == main_name() else module}:{rest}")
    # Importing third-party code can raise anything, including SystemExit.
    except (Exception, SystemExit) as error:
        line = checks.line_of_user(error)
        reason = f"cannot be imported ({error!r})" + (f"\n{line}" if line else "")
        raise LanguageError(path, reason, name) from error


_CALLED: ContextVar[str] = ContextVar("dynsim_main", default="")


@contextlib.contextmanager
def called(main: str) -> Iterator[None]:
    """Context in which classes and functions of a script that another process runs, and has sent
    to this one, have the name that they have there."""
    token = _CALLED.set(main)
    try:
        yield
    finally:
        _CALLED.reset(token)


def main_name() -> str:
    """Return the name under which others import the module that runs as a script."""
    main = sys.modules["__main__"]
    if spec := getattr(main, "__spec__", None):
        return spec.name
    file = Path(getattr(main, "__file__", None) or "<stdin>")
    # An installed command has no suffix and is not imported by others.
    return file.stem if file.suffix == ".py" else "__main__"


def docs_of(cls: type) -> dict[str, str]:
    """Return descriptions of fields, from the docstrings of a class and its base classes."""
    google = docstring_parser.DocstringStyle.GOOGLE
    texts = [vars(base).get("__doc__") or "" for base in reversed(cls.__mro__)]
    lines = [line for text in texts for line in docstring_parser.parse(text, google).params]
    return {line.arg_name: " ".join((line.description or "").split()).rstrip(".") for line in lines}


def _field_of(annotation: object, static: bool) -> Field:
    parts = list(dict.fromkeys(decoding.parts_of(annotation)))
    origins = {typing.get_origin(part) or part for part in parts}
    # Annotations of jaxtyping wrap an array type.
    arrays = origins | {getattr(part, "array_type", None) for part in parts}
    number = float in parts and decoding.WHOLE not in parts
    types_by_name = {
        "number": number,
        "integer": int in parts and float not in parts,
        # Infinity is a float, also in a field that is otherwise an integer.
        "integer or inf": float in parts and decoding.WHOLE in parts,
        "boolean": bool in parts,
        "text": str in origins,
        "path": Path in origins,
        "array": bool({jax.Array, np.ndarray} & arrays),
        "function": bool({Callable, type} & origins),
        "none": types.NoneType in parts,
    }
    allowed = tuple(name for name, is_allowed in types_by_name.items() if is_allowed)
    literals = [part for part in parts if typing.get_origin(part) is Literal]
    words = tuple(word for part in literals for word in typing.get_args(part))
    classes = [p for p in parts if isinstance(p, type) and dataclasses.is_dataclass(p)]

    bounds: dict[str, float | str] = {**decoding.bounds_of(parts)}
    # Numbers with a range are checked to be finite.
    if number and (bounds or decoding.FINITE in parts) and not {"le", "lt"} & {*bounds}:
        bounds["lt"] = "inf"
    is_traced = not static and {"number", "array"} & {*allowed} and tuple not in parts
    return Field(
        types=allowed if allowed or words or classes else ("object",),
        words=words,
        bases=tuple(map(name_of, classes)),
        groups=bool({dict, Mapping} & {*parts}),
        named=dict in parts and Mapping not in parts,
        listed=tuple in parts,
        bounds=bounds,
        unit=next((part.symbol for part in parts if isinstance(part, decoding.Unit)), ""),
        form=next((part for part in parts if isinstance(part, decoding.Form)), ()),
        traced=TRACED in parts or bool(is_traced),
    )


def to_text(
    field: Field | None,
    value: Any,
    path: str,
    kind_of: Callable[[type], Kind] = describe,
    objects: Objects | None = None,
    full: bool = True,
) -> Value:
    """Return the text form of a value.

    Args:
        field: field of the value; None for any value, which may be a table or a list of others.
        value: an object, or a value in text form.
        path: of the field, for error messages.
        kind_of: returns the kind of a class.
        objects: collects objects that the text refers to by name. Names of objects other than
            functions or classes are in angle brackets.
        full: whether to include fields that have their default values.

    Raises:
        LanguageError: if the field does not allow the value.
    """
    inside = functools.partial(to_text, kind_of=kind_of, objects=objects, full=full)
    if _is_instance_of_dataclass(value) and (field is None or field.bases):
        kind, table = kind_of(type(value)), {}
        if _collect(objects, kind.location, type(value)) != kind.location:
            raise LanguageError(path, "is ambiguous: two classes have this name", kind.location)
        for name, part in kind.fields.items():
            text = inside(part, getattr(value, name), f"{path}.{name}".lstrip("."))
            if full or part.required or text != part.default:
                table[name] = text
        others = {n for n, text in table.items() if text != kind.fields[n].default} - {kind.short}
        return table[kind.short] if kind.short and not others else {"kind": kind.word, **table}
    if isinstance(value, Mapping) and (field is None or field.groups):
        one = field.one if field else None
        return {name: inside(one, part, f"{path}.{name}") for name, part in value.items()}
    if field is None and isinstance(value, list | tuple):
        return [inside(None, entry, path) for entry in value]

    field = field or Field(types=("object",))
    if isinstance(value, np.ndarray | jax.Array) and value.ndim:
        array = numeric.as_numpy(path, value)
        head = f"{array.shape}{array.dtype}".encode()
        digest = hashlib.sha256(head + array.tobytes()).hexdigest()[:32]
        value = {"array": _collect(objects, digest, array)}
        value |= {"shape": list(array.shape), "dtype": str(array.dtype)}
    # A schedule can be called, but has numbers of its own.
    elif callable(value) and not _is_instance_of_dataclass(value):
        value = _collect(objects, stable_repr(value), value)
    elif isinstance(value, Path):
        value = str(value)
    elif "object" in field.types and not isinstance(value, PLAIN):
        value = _collect(objects, f"<{stable_repr(value)}>", value)
    return check(field, value, path)


def _is_instance_of_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def stable_repr(value: object) -> str:
    """Return a value as text that is the same in other processes. Functions and objects are
    identified by name; their behaviour is part of the compiled program."""
    text = repr(value)
    # The default of Python contains an address in memory.
    if (not callable(value) or _is_instance_of_dataclass(value)) and " at 0x" not in text:
        return text
    return name_of(value if hasattr(value, "__qualname__") else type(value))


def _collect(objects: Objects | None, name: str, value: object) -> str:
    """Return the name under which an object is collected; a different one if another object has
    `name`."""
    if objects is None:
        return name
    number, free = 1, name
    # An array has the digest of its contents as its name.
    while objects.setdefault(free, value) is not value and not isinstance(value, np.ndarray):
        number += 1
        free = f"{name}#{number}"
    return free
