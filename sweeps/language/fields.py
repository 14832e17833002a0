"""Fields of the classes that describe a run: their types, ranges, units and allowed words.

This module imports neither JAX nor the described classes, so that a command line can report a
mistyped option at once.
"""

import contextlib
import contextvars
import difflib
import functools
import importlib.util
import math
import operator
import pathlib
import re
import reprlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
"""A JSON value. Infinity is written as the word `inf`."""
Table: TypeAlias = dict[str, Value]
Path: TypeAlias = tuple[str, ...]
"""The names on the way from a run to a setting."""
MISSING: Final = object()
"""Sentinel for a value that was not given."""


class LanguageError(ValueError):
    """A mistake in the description of a run, with the message `path = value: reason`."""

    def __init__(self, path: str, reason: str, value: object = MISSING) -> None:
        super().__init__(path, reason, value)
        self.path, self.reason = path, reason
        self.value = value["kind"] if is_branch(value) else value

    def __str__(self) -> str:
        value = "" if self.value is MISSING else f" = {reprlib.repr(self.value)}"
        return f"{self.path}{value}: {self.reason}"


class Field(NamedTuple):
    """A field of a kind.

    Attributes:
        types: any of "number", "integer", "integer or inf", "boolean", "text", "path", "array",
            "function", "none" and "object" (anything).
        words: the words that a `Literal` allows.
        bases: classes whose subclasses are allowed, as module:name.
        groups: whether a table with one value per group of weights is also allowed, by the
            annotation `Mapping`, or `dict` for arbitrary names.
        named: whether names other than those of groups are allowed in it.
        listed: whether the value is a list.
        bounds: range of a number, by "ge", "gt", "le" and "lt".
        unit: unit of a number.
        form: pattern of text, as in `dynsim.decoding.Form`.
        traced: whether runs of one compiled program may have different values.
        declared: the class that first declares the field.
        doc: its description in the docstring.
        required: whether it has no default.
        default: default value in text form.
    """

    types: Sequence[str] = ()
    words: Sequence[str] = ()
    bases: Sequence[str] = ()
    groups: bool = False
    named: bool = False
    listed: bool = False
    bounds: Mapping[str, float | str] = {}
    unit: str = ""
    form: Sequence[Any] = ()
    traced: bool = False
    declared: str = ""
    doc: str = ""
    required: bool = False
    default: Value = None

    @property
    def one(self) -> "Field":
        """Return the field of a single value: of one group, or of one entry of a list."""
        return self._replace(groups=False, named=False, listed=False)


class Kind(NamedTuple):
    """A class that can be part of a run.

    Attributes:
        word: its name in text, either a short word or module:name.
        location: where to import it from, as module:name.
        about: the first paragraph of its docstring.
        bases: the class and its base classes, as module:name.
        abstract: whether it cannot be instantiated.
        fields: fields by name.
        groups: names of groups of weights that can have their own learning rates; empty if only
            the weights know them, None if there are none.
        run_defaults: defaults for the settings of a run if this kind is chosen.
        endings: a field, and suffixes of words. A word with such a suffix chooses this kind, and
            becomes the value of the field. The third entry, if any, is a hint for other files.
        short: a field. A plain number chooses this kind and becomes the value of the field.
    """

    word: str
    location: str
    about: str
    bases: Sequence[str]
    abstract: bool
    fields: Mapping[str, Field]
    groups: Sequence[str] | None = ()
    run_defaults: Mapping[str, Value] = {}
    endings: Sequence[Any] | None = None
    short: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the kind as a JSON value, whose fields omit defaults."""
        defaults = Field()._asdict()
        fields = {
            name: {n: v for n, v in field._asdict().items() if v != defaults[n]}
            for name, field in self.fields.items()
        }
        return {**self._asdict(), "fields": fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Kind":
        """Return the kind of a JSON value, whose fields omit defaults."""
        fields = {name: Field(**field) for name, field in value["fields"].items()}
        return cls(**{**value, "fields": fields})


class Setting(NamedTuple):
    """A setting of a run.

    Attributes:
        path: path from the run.
        kinds: for each name in the path, the kind that has this field; empty for a group.
        field: the field of its value.
        value: its value, or the default; `MISSING` if it is required and has none yet.
        shared: whether this is the value of one group, taken from a value for all groups.
    """

    path: Path
    kinds: Path
    field: Field
    value: Any
    shared: bool

    @property
    def name(self) -> str:
        """The path, joined by dots."""
        return ".".join(self.path)

    @property
    def kind(self) -> str:
        """The word of the chosen kind; empty if the value does not choose one."""
        return self.value["kind"] if is_branch(self.value) else ""

    @property
    def suffixes(self) -> list[str]:
        """The path and its suffixes, joined by dots."""
        return [".".join(self.path[i:]) for i in range(len(self.path))]


def is_branch(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a table that chooses a kind."""
    return isinstance(value, Mapping) and "kind" in value


def is_array(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value refers to an array by its digest."""
    return isinstance(value, Mapping) and {*value} == {"array", "shape", "dtype"}


def is_by_group(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a table with one value per group."""
    return isinstance(value, Mapping) and not is_branch(value) and not is_array(value)


def is_number(value: object) -> TypeGuard[float | str]:
    """Return whether a value is a number, or the word for infinity."""
    if isinstance(value, str):
        return value in ("inf", "-inf")
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.cache
def normalise(name: str) -> str:
    """Drop `-`, `_`, `.` and blanks of a name, and ignore case."""
    if not isinstance(name, str):
        raise LanguageError("setting", "must be the name of a setting", name)
    return name.translate(dict.fromkeys(map(ord, "-_. "))).casefold()


def closest(name: object, names: Iterable[str]) -> str:
    """Return a question that suggests similar names; empty if there are none."""
    known = {normalise(name): name for name in names}
    # At most three, at least 70 % alike.
    matches = difflib.get_close_matches(normalise(str(name)), known, 3, 0.7)
    near = [known[match] for match in matches]
    # Abbreviations suffice: omit longer paths with the same end.
    short = [name for name in near if not any(name.endswith(f".{other}") for other in near)]
    return f"did you mean {' or '.join(short)}?" if short else ""


def must_be(value: object, names: Collection[str], text: str) -> str:
    """Return an error message with the allowed values, after a suggestion from `names`."""
    hint = closest(value, names)
    return f"{hint} It must be {text}" if hint else f"must be {text}"


def check(field: Field, value: object, path: str, kinds: Collection[str] = ()) -> Value:
    """Return the text form of a value that does not choose a kind. An integer of any type becomes
    an `int` for an integer field, and a `float` for a number field.

    Raises:
        LanguageError: if the field does not allow the value. The message lists `kinds` too.
    """
    types = {*field.types}
    # Convert what has a text form of another type.
    if getattr(value, "shape", None) == ():
        value = value.item()  # pyright: ignore[reportAttributeAccessIssue]  (a NumPy number)
    if isinstance(value, pathlib.Path) and "path" in types:
        value = str(value)

    if "none" in types and (value is None or (isinstance(value, str) and value == "none")):
        return None
    if "object" in types or (is_array(value) and {"array", "number"} & types):
        return value  # pyright: ignore[reportReturnType]  (a scalar, or the name of an object)
    if field.listed and isinstance(value, list | tuple):
        return [check(field.one, entry, f"{path}[{i}]") for i, entry in enumerate(value)]
    if not field.listed and (text := _as_text(field, value, path)) is not None:
        return text

    reason = must_be(value, field.words, allowed(field, kinds))
    if isinstance(value, float) and math.isnan(value):
        reason += "; nan is not a number"
    raise LanguageError(path, reason, value)


_imports = contextvars.ContextVar("imports", default=True)


@contextlib.contextmanager
def without_imports() -> Iterator[None]:
    """Context, or decorator, in which the text of a run cannot import what it names, as module:name
    raises `LanguageError`: a store may come from somebody else. Classes that this process has
    already described stay known."""
    token = _imports.set(False)
    try:
        yield
    finally:
        _imports.reset(token)


def check_module(name: str, path: str) -> None:
    """Raise `LanguageError` for `path` if the module of module:name cannot be found, or must not be
    imported. Does not import the module itself, which may take seconds."""
    if not _imports.get():
        raise LanguageError(path, "names code, which opening a store does not import", name)
    module = name.partition(":")[0]
    main = pathlib.Path(getattr(sys.modules["__main__"], "__file__", None) or "").stem
    if module in sys.modules or module == main:
        return
    try:
        spec = importlib.util.find_spec(module)
    # Importing a parent package can raise anything; the later import reports it.
    except (Exception, SystemExit):
        return
    if spec is None:
        error = ModuleNotFoundError(f"No module named {module!r}")
        raise LanguageError(path, f"cannot be imported ({error!r})", name)


def _as_text(field: Field, value: object, path: str) -> bool | int | float | str | None:
    """Return the text form of a single value, or None if the field does not allow it."""
    if isinstance(value, bool):
        return value if "boolean" in field.types else None
    # The words for infinity are numbers or, where those are not allowed, text.
    if is_number(value) and (number := _as_number(field, value)) is not None:
        return number
    if not isinstance(value, str):
        return None
    for word in field.words:
        if normalise(word) == normalise(value):
            return word
    is_text = {"text", "path"} & {*field.types}
    if is_text and (not field.form or re.fullmatch(field.form[0], value)):
        return value
    if "function" in field.types and ":" in value:
        # The function is imported later, which may take seconds.
        check_module(value, path)
        return value
    return None


def _as_number(field: Field, value: float | str) -> int | float | str | None:
    """Return the text form of a number, or None if the field does not allow it."""
    try:
        number = float(value)
    # An integer beyond the largest float.
    except OverflowError:
        return None
    inside = all(getattr(operator, end)(number, float(at)) for end, at in field.bounds.items())
    if not inside or math.isnan(number):
        return None
    if "number" in field.types:
        return str(number) if math.isinf(number) else number
    if math.isinf(number):
        return "inf" if "integer or inf" in field.types else None
    # Integers without a range of their own have 32 bits.
    integer = "integer" in field.types or ("integer or inf" in field.types and number < 2**31)
    return int(value) if integer and number.is_integer() else None


def allowed(field: Field, kinds: Collection[str] = ()) -> str:
    """Describe the values that a field allows."""
    ends = {end: f"{float(at):.10g}" for end, at in field.bounds.items()}
    low = f"[{ends['ge']}" if "ge" in ends else f"({ends.get('gt', '-inf')}"
    high = f"{ends['le']}]" if "le" in ends else f"{ends.get('lt', 'inf')})"
    number = f"a number in {low}, {high}" if ends else "a number"
    integer = f"an integer >= {ends['ge']}" if "ge" in ends else "an integer"
    if {"ge", "le"} <= ends.keys():
        integer = f"an integer from {ends['ge']} to {ends['le']}"
    names = {
        "number": f"{number}, in {field.unit}" if field.unit else number,
        "integer": integer,
        "integer or inf": f"an integer from {ends.get('ge', 0)} to {2**31 - 1}, or inf",
        "boolean": "true or false",
        "text": field.form[1] if field.form else "text",
        "path": "the path of a file or folder",
        "array": "an array",
        "function": "a function module:name",
    }
    choices = [f"one of {', '.join(field.words)}"] if field.words else []
    if not (choices or field.types or kinds):
        choices = ["the name of a kind, or a table with one as its `kind`"]
    # An array instead of a number stands for many runs.
    types = [name for name in field.types if name != "array" or "number" not in field.types]
    choices += [names.get(name, name) for name in types]
    choices += [f"one of {', '.join(kinds)}"] if kinds else []
    text = "a list, each entry " * field.listed + ", or ".join(choices)
    return text + ", or one of these for each group" * field.groups


@contextlib.contextmanager
def errors_in(path: Path, fields: Collection[str]) -> Iterator[None]:
    """Context that adds the path to errors of a class."""
    try:
        yield
    except (ValueError, TypeError) as error:
        # Errors of dynsim's classes begin with the field: "eta = 0: must be positive".
        start, _, reason = str(error).partition(": ")
        if start.split(" ")[0] in fields:
            raise LanguageError(".".join((*path, start)), reason) from error
        raise LanguageError(".".join(path) or "the run", str(error)) from error
