"""Hashable forms of traced programs, for comparison. Lowering a program to text takes twice as long
as tracing it, and most programs of a session are traced again unchanged."""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

UNUSED = {"custom_jvp_call": {"jvp_jaxpr_fun"}, "custom_vjp_call": {"fwd_jaxpr_thunk", "bwd"}}
"""Parameters of functions with custom derivatives that differ between traces of the same function.
They define its derivative, which has been taken by the time a program is lowered."""


def form(traced: jax.stages.Traced) -> Hashable | None:
    """Return a value that is equal for traces that lower to the same text. It covers operations and
    their parameters, constants, shapes, and the names of arguments and results. Objects of JAX are
    compared by their own equality. Returns None if something is not hashable."""
    names = jax.tree.structure((traced.in_avals, traced.out_info))
    try:
        found = names, _form(traced.jaxpr)
        hash(found)
    except TypeError:
        return None
    return found


def _form(value: Any) -> Any:
    # Since JAX 0.12 these are one class.
    if isinstance(value, ClosedJaxpr):
        return _of_operations(value.jaxpr), _form(value.consts)
    if isinstance(value, Jaxpr):
        return _of_operations(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()
    if isinstance(value, tuple | list):
        return type(value), *map(_form, value)
    if isinstance(value, dict):
        return tuple((name, _form(each)) for name, each in value.items())
    return value


def _of_operations(jaxpr: Jaxpr) -> Any:
    places: dict[Any, int] = {}

    def place(each: Var | Literal) -> Any:
        if isinstance(each, Literal):
            return _form(each.val), each.aval
        return places.setdefault(each, len(places)), each.aval

    def placed(variables: Any) -> tuple[Any, ...]:
        return tuple(map(place, variables))

    begin = placed(jaxpr.constvars), placed(jaxpr.invars)
    operations = []
    for each in jaxpr.eqns:
        unused = UNUSED.get(each.primitive.name, ())
        told = _form({name: each.params[name] for name in each.params if name not in unused})
        operations.append(
            (each.primitive, each.ctx, told, placed(each.invars), placed(each.outvars))
        )
    return begin, tuple(operations), placed(jaxpr.outvars)
