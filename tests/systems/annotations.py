"""What checks functions against their annotations while tests run."""

import inspect
from collections.abc import Callable
from typing import Any

import beartype

# An int is a float, as type checkers say.
CHECK = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_CHECKED: dict[tuple[str, str, inspect.Signature], Callable[..., Any]] = {}


def checked(empty: Callable[..., Any]) -> Callable[..., Any]:
    """A function without a body, as jaxtyping makes one of a signature, with its arguments and its
    result checked. Checks are written at the first call, as most functions are called in few files,
    and once: a function inside another one is made anew by each call, with one signature."""
    found = None

    def check(*given: Any, **named: Any) -> Any:
        nonlocal found
        if found is None:
            found = _written(empty)
        return found(*given, **named)

    return check


def _written(empty: Callable[..., Any]) -> Callable[..., Any]:
    key = empty.__module__, empty.__qualname__, inspect.signature(empty)
    try:
        found = _CHECKED.get(key)
    except TypeError:  # A default value cannot be hashed.
        return CHECK(empty)
    if found is None:
        found = _CHECKED[key] = CHECK(empty)
    return found
