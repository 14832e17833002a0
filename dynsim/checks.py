"""Validation helpers: every message names the field, the value and what is allowed.

Checks run on concrete values only. A traced value (inside `jit`, `vmap` or `grad`) cannot
be looked at, so checks of its value are skipped there; shapes are always checked.
"""

import contextlib
import difflib
import math
import os
import re
import reprlib
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

NAME = re.compile(r"\w(?:[\w. -]*\w)?")
"""Of an array: a store has a folder of that name, and so may any copy of it."""
DEVICE = re.compile(r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")
"""A name that Windows keeps for itself."""
LONGEST = 200
"""Bytes of a name."""
LONG = 400
"""Letters of a list of names, or of a line of code, beyond which it is made shorter."""
UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""What JAX raises where Python needs the values of traced arrays."""
OURS = {"dynsim", "odes", "sweeps"}
OTHERS = {
    *sys.stdlib_module_names,
    "diffrax",
    "equinox",
    "jax",
    "lineax",
    "numpy",
    "optax",
    "optimistix",
}
"""Packages in which no line is a user's."""


def is_traced(tree: Any) -> bool:
    """Whether any leaf of `tree` is a JAX tracer."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


@contextlib.contextmanager
def code_of_user(where: str, *arguments: Any) -> Iterator[None]:
    """Raise `ValueError` for what enclosed code of a user raises; the message begins with `where`,
    shows the line of the user and the shapes of the `arguments`, and ends with the error's own
    words. Errors of dynsim's checks, and those in which no line is a user's, are left alone."""
    try:
        yield
    except jax.errors.JaxRuntimeError:
        # Of the device, such as one whose memory does not suffice.
        raise
    except Exception as error:
        line = line_of_user(error)
        if not line and isinstance(error, TypeError) and _is_of_call(error):
            raise ValueError(f"{where}: {error}") from error
        if not line:
            raise
        if isinstance(error, UNTRACEABLE):
            raise ValueError(
                f"{where}: needs the values of arrays, which JAX does not have while it compiles; "
                "use jnp.where or jax.lax.cond in place of `if`, and jax.numpy in place of NumPy "
                f"and float()\n{line}\n{error}"
            ) from error
        given = ", ".join(eqx.tree_pformat(each, width=sys.maxsize) for each in arguments)
        given = f" with the arguments {given}" if given else ""
        raise ValueError(
            f"{where}: must work while JAX compiles it{given}; raises {type(error).__name__}\n"
            f"{line}\n{error}"
        ) from error


def _is_of_call(error: Exception) -> bool:
    """Whether the code in a `code_of_user` raised the error itself: by a call with arguments that
    the function of the user does not take."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Methods of modules are called through a wrapper of Equinox.
    return len([each for each in frames if _package(each) not in OTHERS]) <= 2


def _package(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


def line_of_user(error: BaseException) -> str:
    """The innermost line of a user that led to the error, with its place; empty where there is
    none, or where one of dynsim came after it and raised a `ValueError`, which says what is wrong
    by itself."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = _package(frame)
        if package in OURS:
            found = None if isinstance(error, ValueError) else found
        elif package not in OTHERS:
            code = frame.f_code
            found = traceback.FrameSummary(code.co_filename, line, code.co_name)
    if found is None:
        return ""
    text = found.line or ""
    text = text if len(text) <= LONG else f"{text[:LONG]}..."
    return f"{found.filename}, line {found.lineno}: {text}"


def integer(field: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int, or raise `ValueError` unless it is a whole number >= minimum, and
    <= maximum if there is one."""
    if not _is_whole(value) or value < minimum:
        raise ValueError(f"{field} = {value!r}: must be an integer >= {minimum}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{field} = {value!r}: must be an integer <= {maximum}")
    return int(value)


def steps(field: str, value: Any) -> int:
    """Return a number of steps, or raise `ValueError` unless it is an integer >= 1 that fits into
    32 bits; 1e3 counts as an integer."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return integer(field, value, 1, 2**31 - 1)


def count_or_inf(field: str, value: Any, minimum: int) -> int | float:
    """Like `integer` with 32 bits, but `math.inf` is allowed as well and returned as it is."""
    if isinstance(value, float) and value == math.inf:
        return math.inf
    if not _is_whole(value) or not minimum <= value < 2**31:
        allowed = f"an integer from {minimum} to {2**31 - 1}, or inf"
        raise ValueError(f"{field} = {value!r}: must be {allowed}")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def real(
    field: str,
    value: Any,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    *,
    open_minimum: bool = False,
    open_maximum: bool = False,
) -> None:
    """Raise `ValueError` unless every entry of `value` is finite and within the bounds.

    Traced values are let through.
    """
    if is_traced(value):
        return
    try:
        if value is None or np.iscomplexobj(value):
            raise TypeError
        given = np.asarray(value)
        if given.dtype.kind in "bSUmM":
            raise TypeError
        array = given.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError):
        shown = reprlib.repr(value)
        raise ValueError(f"{field} = {shown}: must be a real number") from None
    low = array <= minimum if open_minimum else array < minimum
    high = array >= maximum if open_maximum else array > maximum
    bad = ~np.isfinite(array) | low | high
    if bad.any():
        left = "(" if open_minimum or math.isinf(minimum) else "["
        right = ")" if open_maximum or math.isinf(maximum) else "]"
        shown = array[bad].ravel()[0]
        raise ValueError(
            f"{field} = {shown!s}: must be finite and in {left}{minimum:g}, {maximum:g}{right}"
        )


def name(field: str, value: str) -> None:
    """Raise `ValueError` unless an array can have that name: it is the name of a folder as well."""
    long = len(value.encode(errors="replace")) > LONGEST
    if long or not NAME.fullmatch(value) or DEVICE.fullmatch(value):
        raise ValueError(
            f"{field} = {reprlib.repr(value)}: must be letters, digits, spaces and . _ -, with a "
            f"letter, a digit or _ at both ends, at most {LONGEST} bytes, and not a reserved name "
            "of Windows, because a store has a folder of that name"
        )


def regular(field: str, path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` if `path` exists and is not a file: a pipe or a device may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{field} = {path}: must be a file, not a folder, a pipe or a device")


def kind(field: str, value: Any, *classes: type) -> None:
    """Raise `ValueError` unless `value` is of one of the classes."""
    if not isinstance(value, classes):
        names = " or ".join(map(_public, classes))
        if isinstance(value, type):
            shown = value.__qualname__
            raise ValueError(f"{field} = {shown}: is a class; must be an object of type {names}")
        shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        raise ValueError(f"{field} = {shown}: must be of type {names}")


def _public(cls: type) -> str:
    """The name by which users import a class."""
    package = cls.__module__.partition(".")[0]
    if package == "builtins":
        return cls.__qualname__
    exported = getattr(sys.modules[package], cls.__qualname__, None) is cls
    return f"{package if exported else cls.__module__}.{cls.__qualname__}"


def key(field: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is one random key, as `jax.random.key` or, of old,
    `jax.random.PRNGKey` makes it."""
    dtype = getattr(value, "dtype", None)
    if dtype == np.uint32 and np.shape(value) == (2,):
        return
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise ValueError(f"{field} = {value!r}: must be a key, such as jax.random.key(0)")
    if np.shape(value):
        raise ValueError(
            f"{field}: must be one key, got shape {np.shape(value)}; use jax.vmap for several"
        )


def choice(field: str, value: Any, allowed: Sequence[str]) -> str:
    """Return `value`, or raise `ValueError` with what is meant unless it is one of `allowed`."""
    if isinstance(value, str) and value in allowed:
        return value
    listed = ", ".join(allowed)
    if len(listed) > LONG:
        listed = ", ".join(_folded(allowed))
    raise ValueError(f"{field} = {value!r}: {hint(value, allowed)}must be one of {listed}")


def _folded(names: Sequence[str]) -> list[str]:
    """Names without those that are another one and the most frequent ending, which is then in
    brackets behind that one: `a[-z]` for a and a-z."""
    ends = Counter(n.removeprefix(a) for a in names for n in names if n.startswith(f"{a}-"))
    end = max(ends, key=lambda each: ends[each], default="")
    short = [n for n in names if not (end and n.endswith(end) and n.removesuffix(end) in names)]
    return [f"{n}[{end}]" if end and n + end in names else n for n in short]


def hint(name: object, allowed: Collection[str]) -> str:
    """The beginning of a sentence that asks for what is meant: the `allowed` names that are the
    same but for case, - and _, or else those that are similar. Empty where it may be anything."""
    if not isinstance(name, str):
        return ""
    folded = {each: each.casefold().replace("-", "_") for each in allowed}
    word = name.casefold().replace("-", "_")
    near = difflib.get_close_matches(word, folded.values())
    words = [word] if word in folded.values() else near
    likely = [each for word in words for each, letters in folded.items() if letters == word]
    if not likely or len(likely) == len(folded) > 1:
        return ""
    return f"did you mean {' or '.join(map(repr, likely))}? It "
