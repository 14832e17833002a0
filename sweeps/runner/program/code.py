"""Code of users, which may change while a session lives: whose it is, and what it reads."""

import dataclasses
import functools
import gc
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from sweeps.language.derived import PACKAGES

KNOWN = {
    *(*PACKAGES, "jax", "jaxlib", "numpy", "optax", "equinox", "diffrax"),
    *("abc", "builtins", "dataclasses", "functools", "jaxtyping", "math", "types", "typing"),
}
"""Packages whose code does not change within a process and is identified by its version."""
INSTALLED = tuple(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
"""Folders of Python's own modules, and of those that were installed."""
_READ: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()
"""What each cached function of a user read when programs were last traced."""


def within(value: Any) -> Iterator[Any]:
    """Yield the classes and functions in a value, such as a problem or a partial."""
    if isinstance(value, functools.partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            yield from within(each)
    elif isinstance(value, MethodType):
        yield from within(value.__func__)
        yield from within(value.__self__)
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        yield value
        # What a decorator of another package wraps.
        yield from within(getattr(value, "__wrapped__", ()))
    elif dataclasses.is_dataclass(value):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from within(getattr(value, field.name, None))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from within(each)
    elif isinstance(value, Mapping):
        yield from within(list(value.values()))
    elif callable(value):
        yield from within(getattr(value, "__wrapped__", type(value)))


def package(value: Any) -> str:
    """Return the package of a class or function; "" if its code is that of a package in `KNOWN`. A
    name alone does not decide: `types.new_class` and `functools.wraps` give those of others."""
    if isinstance(value, FunctionType):
        module = value.__globals__.get("__name__") or ""
        known = vars(sys.modules.get(module, types)) is value.__globals__
    else:
        # That of some classes in C is a descriptor.
        module = str(getattr(value, "__module__", None) or "builtins")
        place = sys.modules.get(module)
        for part in value.__qualname__.split("."):
            place = getattr(place, part, None)
        known = place is value or not isinstance(value, type)
    top = module.partition(".")[0]
    return "" if known and top in KNOWN else top


def renew() -> None:
    """Clear those `functools.lru_cache`s of users whose functions read other values than before.
    Python would return what they returned when a global variable still had its old value."""
    kind = type(functools.lru_cache(int))
    for each in gc.get_referrers(kind):
        # `isinstance` would ask proxies for their class.
        if type(each) is kind and not _is_installed(each.__wrapped__):
            now = _reads(each.__wrapped__)
            if _READ.setdefault(each, now) != now:
                each.cache_clear()
                _READ[each] = now


def _reads(function: Any) -> str:
    """Return a hash of the code of a function and of the values that it reads by name, including
    those that the functions it calls read."""
    parts: list[Any] = []
    seen: set[int] = set()

    def visit(value: Any, names: set[str]) -> None:
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, jax.Array | np.ndarray):
            array = np.asarray(value)
            parts.append((array.shape, array.dtype, hashlib.sha256(array.tobytes()).hexdigest()))
        elif isinstance(value, tuple | list | Mapping | FunctionType | ModuleType | type):
            # A function may call itself, and a list contain itself.
            if id(value) not in seen:
                seen.add(id(value))
                for each, used in _inside(value, names, parts):
                    visit(each, used)
        else:
            parts.append(value)

    visit(function, set())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _inside(value: Any, names: set[str], parts: list[Any]) -> Iterator[tuple[Any, set[str]]]:
    """Yield what a value consists of or reads, with the names that the function which reads it
    uses. Adds what has no parts to `parts`."""
    if isinstance(value, tuple | list):
        yield from ((each, names) for each in value)
    elif isinstance(value, Mapping):
        yield from ((each, names) for pair in value.items() for each in pair)
    elif _is_installed(value):
        parts.append(value.__name__)
    elif isinstance(value, ModuleType):
        yield from ((getattr(value, n), names) for n in sorted(names) if hasattr(value, n))
    elif isinstance(value, type):
        own = {n: each for n, each in vars(value).items() if not n.startswith("__")}
        yield from ((each, names) for each in own.values())
    else:
        used, codes = set[str](), [value.__code__]
        while codes:
            code = codes.pop()
            used |= {*code.co_names}
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
            parts.append((code.co_code, [c for c in code.co_consts if not isinstance(c, CodeType)]))
        read = [value.__globals__[n] for n in sorted(used) if n in value.__globals__]
        # A cell is empty before its variable has a value, as in a recursive function.
        held = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        read += [value.__defaults__, value.__kwdefaults__, *held]
        yield from ((each, used) for each in read)


def _is_installed(value: Any) -> bool:
    """Return whether a module, or that of a function or class, is part of Python or was installed,
    and so does not change within a session."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    if not isinstance(name, str) or name.partition(".")[0] in {*KNOWN, *sys.stdlib_module_names}:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file.startswith(INSTALLED)
