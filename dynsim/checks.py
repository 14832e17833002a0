"""Validation helpers: every message names the field, the value and what is allowed.

Checks of values are skipped for traced arrays (inside `jit`, `vmap` or `grad`), whose values are
not known; shapes are always checked.
"""

import contextlib
import difflib
import functools
import logging
import math
import os
import re
import reprlib
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

NAME = re.compile(r"\w(?:[\w. -]*\w)?")
"""Names that an array may have: a store, or a copy of it, has a folder of that name."""
DEVICE = re.compile(r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")
"""Names that Windows reserves."""
MAX_NAME_BYTES = 200
"""Maximal length of a name in bytes."""
MAX_SHOWN = 400
"""Characters of a list of names, or of a line of code, beyond which it is shortened."""
UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors that JAX raises where Python needs the values of traced arrays."""
OTHER_PRECISION = "to have the same dtypes, got float"
"""Part of the message of JAX about operands of different precision."""
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
"""Packages whose code is never the user's."""
Result = TypeVar("Result")
MAX_REMEMBERED = 64
_WITHOUT_ARRAYS: set[tuple[Any, ...]] = set()
"""Signatures of calls in which the user's function uses no NumPy array of its surroundings."""


def is_traced(tree: Any) -> bool:
    """Return whether any leaf of `tree` is a JAX tracer."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


@contextlib.contextmanager
def code_of_user(where: str, *arguments: Any) -> Iterator[None]:
    """Turn errors of enclosed user code into a `ValueError`. Its message begins with `where`, shows
    the user's line and the shapes of the `arguments`, and ends with the original message. Errors
    raised by dynsim's own checks, or without a line of user code, are not changed."""
    try:
        yield
    except jax.errors.JaxRuntimeError:
        # A device error, such as running out of memory.
        raise
    except Exception as error:
        line = line_of_user(error)
        if not line and isinstance(error, TypeError):
            # The call itself failed if no other frame is between, because the user's function does
            # not accept the arguments. Methods of modules are called through a wrapper of Equinox.
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            if len([frame for frame in frames if _package(frame) not in OTHERS]) <= 2:
                raise ValueError(f"{where}: {error}") from error
        if not line:
            raise
        if isinstance(error, UNTRACEABLE):
            raise ValueError(
                f"{where}: needs the values of arrays, which JAX does not have while it compiles; "
                "use jnp.where or jax.lax.cond in place of `if`, and jax.numpy in place of NumPy "
                f"and float()\n{line}\n{error}"
            ) from error
        shown = ", ".join(eqx.tree_pformat(value, width=sys.maxsize) for value in arguments)
        shown = f" with the arguments {shown}" if shown else ""
        # `call_of_user` cannot copy what an inner function of jax.jit has read.
        hint = (
            "\nA function compiled with jax.jit keeps the NumPy arrays that it uses in the "
            "precision of its first trace; use ARRAY.copy() inside it, or pass the array as an "
            "argument"
        )
        raise ValueError(
            f"{where}: must work while JAX compiles it{shown}; raises {type(error).__name__}\n"
            f"{line}\n{error}{hint if OTHER_PRECISION in str(error) else ''}"
        ) from error


def call_of_user(
    owner: Any, function: Callable[..., Result], *arguments: Any, **options: Any
) -> Result:
    """Call a function of the user. While it is traced, copy the NumPy arrays that it closes over or
    reads from its module, unless the `owner`, its class or the function itself, is dynsim's.

    JAX converts such an array once and reuses the result, whatever the precision, for as long as
    any compiled program holds it. Without copies, float32 training after a float64 theory would use
    float64 arrays, and a float64 theory after float32 training would use rounded ones.
    """
    if not is_traced(arguments) or is_ours(owner):
        return function(*arguments, **options)
    leaves, structure = jax.tree.flatten((function, arguments, options))
    is_array = lambda x: isinstance(x, jax.Array | np.ndarray)  # noqa: E731
    signature = structure, *((x.shape, x.dtype) if is_array(x) else x for x in leaves)
    try:
        is_known = signature in _WITHOUT_ARRAYS
    except TypeError:
        # An object among the arguments has no hash.
        is_known, signature = False, None
    if is_known:
        return function(*arguments, **options)
    returned = []

    # Equinox does not trace a plain function, which may have constants too.
    def called(*arguments: Any) -> Result:
        returned.append(function(*arguments, **options))
        return returned[-1]

    converted = eqx.filter_closure_convert(called, *arguments)
    if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(converted)):
        copied = lambda x: jnp.asarray(np.array(x)) if isinstance(x, np.ndarray) else x  # noqa: E731
        result = jax.tree.map(copied, converted)(*arguments)
        # What the user returns as it is, JAX has not converted: checks see all of its bits. Arrays
        # that JAX has converted are of a class of its own.
        is_own = lambda x: (  # noqa: E731
            isinstance(x, np.ndarray | np.generic) and _top(type(x).__module__) != "jax"
        )
        chosen = lambda own, new: own if is_own(own) else copied(new)  # noqa: E731
        return jax.tree.map(chosen, returned[0], result)
    if len(_WITHOUT_ARRAYS) >= MAX_REMEMBERED:
        _WITHOUT_ARRAYS.clear()
    if signature is not None:
        _WITHOUT_ARRAYS.add(signature)
    return function(*arguments, **options)


def is_ours(owner: Any) -> bool:
    """Return whether a class or function is dynsim's."""
    # A partial function has no module.
    return _top(getattr(owner, "__module__", None)) in OURS


def of_user(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that calls a user's `function` by `call_of_user`."""
    return functools.partial(call_of_user, function, function)


@contextlib.contextmanager
def callbacks_of_user() -> Iterator[None]:
    """Raise the error of a Python callback in a program as a `ValueError` with the user's line. JAX
    only logs it, and raises an error that quotes a traceback of its own."""
    errors: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        error = record.exc_info and record.exc_info[1]
        errors.extend([error] if error else [])
        # False keeps it out of the log.
        return not error

    loggers = [logging.getLogger(f"jax._src.{name}") for name in ("callback", "debugging")]
    for logger in loggers:
        logger.addFilter(collect)
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if not errors:
            raise
        kind, line = type(errors[0]).__name__, line_of_user(errors[0])
        raise ValueError(f"callback: raises {kind}: {errors[0]}{line and f' ({line})'}") from None
    finally:
        for logger in loggers:
            logger.removeFilter(collect)


def _package(frame: FrameType) -> str:
    return _top(frame.f_globals.get("__name__"))


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def line_of_user(error: BaseException) -> str:
    """Return the innermost line of user code that led to the error, with its location. It is empty
    if there is none, or if dynsim's code called from it raised a `ValueError`, which explains
    itself."""
    innermost = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = _package(frame)
        if package in OURS:
            innermost = None if isinstance(error, ValueError) else innermost
        elif package not in OTHERS:
            code = frame.f_code
            innermost = traceback.FrameSummary(code.co_filename, line, code.co_name)
    if innermost is None:
        return ""
    text = innermost.line or ""
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return f"{innermost.filename}, line {innermost.lineno}: {text}"


def integer(field: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int; raise `ValueError` unless it is a whole number >= minimum, and <=
    maximum if there is one."""
    if not _is_whole(value) or value < minimum:
        raise ValueError(f"{field} = {value!r}: must be an integer >= {minimum}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{field} = {value!r}: must be an integer <= {maximum}")
    return int(value)


def steps(field: str, value: Any) -> int:
    """Return a number of steps, or raise `ValueError` unless it is an integer >= 1 that fits into
    32 bits; 1e3 counts as an integer."""
    # 1e3 is how people write a thousand steps.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return integer(field, value, 1, 2**31 - 1)


def count_or_inf(field: str, value: Any, minimum: int) -> int | float:
    """Like `integer` with 32 bits, but `math.inf` is allowed too and returned unchanged."""
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

    Traced values are not checked.
    """
    if is_traced(value):
        return
    try:
        # `np.asarray` would turn None into NaN, and drop an imaginary part or a mask.
        if value is None or np.iscomplexobj(value) or np.ma.is_masked(value):
            raise TypeError
        array = np.asarray(value)
        # Booleans, texts and dates, which NumPy would convert.
        if array.dtype.kind in "bSUmM":
            raise TypeError
        array = array.astype(np.float64)
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
    """Raise `ValueError` unless an array can have that name, which is also a folder's name."""
    is_long = len(value.encode(errors="replace")) > MAX_NAME_BYTES
    if is_long or not NAME.fullmatch(value) or DEVICE.fullmatch(value):
        raise ValueError(
            f"{field} = {reprlib.repr(value)}: must be letters, digits, spaces and . _ -, with a "
            f"letter, a digit or _ at both ends, at most {MAX_NAME_BYTES} bytes, and not a "
            "reserved name of Windows, because a store has a folder of that name"
        )


def regular(field: str, path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` if `path` exists and is not a regular file: a pipe may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{field} = {path}: must be a file, not a folder, a pipe or a device")


def kind(field: str, value: Any, *classes: type) -> None:
    """Raise `ValueError` unless `value` is of one of the classes."""
    if not isinstance(value, classes):
        names = []
        for cls in classes:
            # The name by which users import the class.
            package = cls.__module__.partition(".")[0]
            exported = getattr(sys.modules[package], cls.__qualname__, None) is cls
            prefix = "" if package == "builtins" else f"{package if exported else cls.__module__}."
            names.append(prefix + cls.__qualname__)
        names = " or ".join(names)
        if isinstance(value, type):
            shown = value.__qualname__
            raise ValueError(f"{field} = {shown}: is a class; must be an object of type {names}")
        shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        raise ValueError(f"{field} = {shown}: must be of type {names}")


def key(field: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is one random key, from `jax.random.key` or the older
    `jax.random.PRNGKey`."""
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
    """Return `value` if it is in `allowed`; otherwise raise `ValueError` with a suggestion."""
    if isinstance(value, str) and value in allowed:
        return value
    if not allowed:
        raise ValueError(f"{field} = {value!r}: there is nothing to choose from")
    listed = ", ".join(allowed)
    if len(listed) > MAX_SHOWN:
        # Where a and a-z are both names and -z is the most frequent such ending, they become
        # `a[-z]`.
        ends = Counter(n.removeprefix(a) for a in allowed for n in allowed if n.startswith(f"{a}-"))
        end = max(ends, key=lambda end: ends[end], default="")
        long = {n + end for n in allowed} & {*allowed} if end else set()
        listed = ", ".join(
            f"{n}[{end}]" if n + end in long else n for n in allowed if n not in long
        )
    raise ValueError(f"{field} = {value!r}: {hint(value, allowed)}must be one of {listed}")


def hint(name: object, allowed: Collection[str]) -> str:
    """Return the beginning of a message that suggests `allowed` names: those that differ only in
    case, - and _, otherwise similar ones. Empty if nothing is similar or everything is."""
    if not isinstance(name, str):
        return ""
    normalised = {entry: entry.casefold().replace("-", "_") for entry in allowed}
    word = name.casefold().replace("-", "_")
    near = difflib.get_close_matches(word, normalised.values())
    # A name that differs only in spelling is certain, so that similar ones are not suggested.
    words = [word] if word in normalised.values() else near
    likely = [entry for word in words for entry, letters in normalised.items() if letters == word]
    if not likely or len(likely) == len(normalised) > 1:
        return ""
    return f"did you mean {' or '.join(map(repr, likely))}? It "
