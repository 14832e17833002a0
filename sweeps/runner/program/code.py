"""Code of users, which may change while a session lives: whose it is, and what it reads."""

import dataclasses
import functools
import gc
import hashlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
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
"""Folders of Python's own modules, and of installed ones."""
_READ: "WeakKeyDictionary[Callable[..., object], str]" = WeakKeyDictionary()
"""What each cached function of a user read when programs were last traced."""
Code = type | FunctionType | BuiltinFunctionType


def code_in(value: object) -> Iterator[Code]:
    """Yield the classes and functions in a value, such as a problem or a partial."""
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from code_in(part)
    elif isinstance(value, MethodType):
        yield from code_in(value.__func__)
        yield from code_in(value.__self__)
    elif isinstance(value, Code):
        yield value
        # What a decorator of another package wraps.
        yield from code_in(getattr(value, "__wrapped__", ()))
    elif dataclasses.is_dataclass(value):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from code_in(getattr(value, field.name, None))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from code_in(item)
    elif isinstance(value, Mapping):
        yield from code_in(list(value.values()))
    elif callable(value):
        yield from code_in(getattr(value, "__wrapped__", type(value)))


def package_of(value: Code) -> str:
    """Return the package of a class or function; "" if its code is that of a package in `KNOWN`. A
    name alone does not decide: `types.new_class` and `functools.wraps` give those of others."""
    if isinstance(value, FunctionType):
        module = value.__globals__.get("__name__") or ""
        is_own = vars(sys.modules.get(module, types)) is value.__globals__
    else:
        # That of some classes in C is a descriptor.
        module = str(getattr(value, "__module__", None) or "builtins")
        located: object = sys.modules.get(module)
        for part in value.__qualname__.split("."):
            located = getattr(located, part, None)
        is_own = located is value or not isinstance(value, type)
    top = module.partition(".")[0]
    return "" if is_own and top in KNOWN else top


def clear_outdated_caches() -> None:
    """Clear those `functools.lru_cache`s of users whose functions read other values than before.
    Python would return what they returned when a global variable still had its old value."""
    kind = type(functools.lru_cache(int))
    for function in gc.get_referrers(kind):
        # `isinstance` would ask proxies for their class.
        if type(function) is kind and not _is_installed(function.__wrapped__):
            now = _hash_of_reads(function.__wrapped__)
            if _READ.setdefault(function, now) != now:
                function.cache_clear()
                _READ[function] = now


def _hash_of_reads(function: object) -> str:
    """Return a hash of the code of a function and of the values that it reads by name, including
    those that the functions it calls read."""
    parts: list[object] = []
    seen: set[int] = set()

    def visit(value: Any, names: set[str]) -> None:
        """`names`: those that the function which reads the value uses."""
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, jax.Array | np.ndarray):
            array = np.asarray(value)
            parts.append((array.shape, array.dtype, hashlib.sha256(array.tobytes()).hexdigest()))
            return
        if not isinstance(value, tuple | list | Mapping | FunctionType | ModuleType | type):
            parts.append(value)
            return
        # A function may call itself, and a list contain itself.
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, tuple | list):
            read = value
        elif isinstance(value, Mapping):
            read = [item for pair in value.items() for item in pair]
        elif _is_installed(value):
            parts.append(value.__name__)
            read = []
        elif isinstance(value, ModuleType):
            read = [getattr(value, name) for name in sorted(names) if hasattr(value, name)]
        elif isinstance(value, type):
            read = [item for name, item in vars(value).items() if not name.startswith("__")]
        else:
            # The code of a function, with that of the functions inside it.
            names, codes = set[str](), [value.__code__]
            while codes:
                code = codes.pop()
                names |= {*code.co_names}
                codes += [const for const in code.co_consts if isinstance(const, CodeType)]
                others = [const for const in code.co_consts if not isinstance(const, CodeType)]
                parts.append((code.co_code, others))
            read = [value.__globals__[name] for name in sorted(names) if name in value.__globals__]
            # A cell is empty before its variable has a value, as in a recursive function.
            cells = [cell for cell in value.__closure__ or () if cell != CellType()]
            read += [value.__defaults__, value.__kwdefaults__]
            read += [cell.cell_contents for cell in cells]
        for item in read:
            visit(item, names)

    visit(function, set())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_installed(value: Any) -> bool:
    """Return whether a module, or that of a function or class, is part of Python or was installed,
    and so does not change within a session."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    if not isinstance(name, str) or name.partition(".")[0] in {*KNOWN, *sys.stdlib_module_names}:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file.startswith(INSTALLED)
