"""Traced programs: without JAX's caches, in a hashable form for comparison, with the Python
functions that they call, and with LAPACK calls for one matrix at a time.

Lowering a program to text takes twice as long as tracing it, and most programs of a session are
traced again unchanged.
"""

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from dynsim.compiling import inside

LAPACK = {
    *("cholesky", "cholesky_update", "eig", "eigh", "geqp3", "geqrf", "hessenberg"),
    *("householder_product", "lu", "ormqr", "qr", "schur", "svd", "symmetric_product"),
    *("triangular_solve", "tridiagonal", "tridiagonal_solve"),
}
"""Operations that call LAPACK on a CPU. One of their operands is a matrix, or a batch of them."""
UNUSED = {"custom_jvp_call": {"jvp_jaxpr_fun"}, "custom_vjp_call": {"fwd_jaxpr_thunk", "bwd"}}
"""Parameters of functions with custom derivatives that differ between traces of the same function.
They define its derivative, which has been taken by the time a program is lowered."""
_TRACE: Any = jax.make_user_context(None)
"""Part of the key of all of JAX's caches of traces."""


@contextlib.contextmanager
def anew() -> Iterator[None]:
    """Trace the enclosed programs again, ignoring JAX's caches.

    JAX keeps traces of functions, such as the bodies of loops, and does not notice when a global
    variable that one of them reads has changed.
    """
    with _TRACE(object()):
        yield


def called(program: Any) -> Iterator[Callable[..., Any]]:
    """Yield the Python functions whose results enter a traced program while it runs."""
    if isinstance(program, ClosedJaxpr):
        # Since JAX 0.12 these are one class.
        program = program.jaxpr
    if isinstance(program, tuple | list):
        for each in program:
            yield from called(each)
    elif isinstance(program, Jaxpr):
        for each in program.eqns:
            if each.primitive.name in ("pure_callback", "io_callback"):
                yield each.params["callback"].callback_func
            yield from called([*each.params.values()])


def reads(traced: jax.stages.Traced) -> list[bool]:
    """Return for each array among a program's arguments whether the results may depend on it. Loops
    and branches count as reading all that they take."""
    return _reads(traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.jaxpr.outvars))


def _reads(program: Jaxpr, wanted: list[bool]) -> list[bool]:
    results = zip(program.outvars, wanted, strict=True)
    live = {each for each, want in results if want and isinstance(each, Var)}
    for each in reversed(program.eqns):
        outputs = [result in live for result in each.outvars]
        if not any(outputs) and not each.effects:
            continue
        needed = [True] * len(each.invars)
        inner = inside(each)
        if len(inner) == 1 and each.primitive.name not in ("scan", "while"):
            # A call of a function: with the same arguments and results.
            taken, made = inner[0].invars, inner[0].outvars
            if (len(taken), len(made)) == (len(each.invars), len(outputs)):
                needed = _reads(inner[0], outputs)
        arguments = zip(each.invars, needed, strict=True)
        live |= {one for one, need in arguments if need and isinstance(one, Var)}
    return [each in live for each in program.invars]


def operations(program: Jaxpr) -> Iterator[str]:
    """Yield the names of all operations of a program, including those of loops and functions."""
    for each in program.eqns:
        yield each.primitive.name
        for inner in inside(each):
            yield from operations(inner)


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


def unbatched(traced: jax.stages.Traced, *arguments: Any) -> jax.stages.Traced:
    """Return a program, traced with these arguments, with a loop in place of each LAPACK call for
    several matrices. A program without such calls is returned as it is.

    On a CPU, jaxlib 0.10 and 0.11 split the matrices of a call among the threads that run
    everything else, and wait for them. If several CPU devices do so at once, they can wait for each
    other for ever.
    """
    found = _unbatched(traced.jaxpr)
    if found is traced.jaxpr:
        return traced
    function, result = jaxpr_as_fun(found), jax.tree.structure(traced.out_info)
    return jax.jit(lambda *given: result.unflatten(function(*jax.tree.leaves(given)))).trace(
        *arguments
    )


def _unbatched(value: Any) -> Any:
    """Replace the operations inside a parameter of an operation; return others as they are."""
    if isinstance(value, ClosedJaxpr):
        # Since JAX 0.12 these are one class.
        inner = _of_jaxpr(value.jaxpr)
        return value if inner is value.jaxpr else value.replace(jaxpr=inner)
    if isinstance(value, Jaxpr):
        return _of_jaxpr(value)
    if isinstance(value, tuple | list):
        made = [_unbatched(each) for each in value]
        if all(new is old for new, old in zip(made, value, strict=True)):
            return value
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def _of_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    made = [_of_operation(each) for each in jaxpr.eqns]
    same = all(new is old for new, old in zip(made, jaxpr.eqns, strict=True))
    return jaxpr if same else jaxpr.replace(eqns=made)


def _of_operation(operation: JaxprEqn) -> JaxprEqn:
    params = {name: _unbatched(value) for name, value in operation.params.items()}
    if any(params[name] is not value for name, value in operation.params.items()):
        return operation.replace(params=params)
    if operation.primitive.name not in LAPACK:
        return operation
    known: list[Any] = [each.aval for each in operation.invars]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in known]
    # All operands have the same batch; vectors, such as pivots, have one dimension less.
    front = max(len(each.shape) for each in shapes) - 2
    batch = shapes[0].shape[:front]
    if math.prod(batch) <= 1:
        return operation

    def call(operands: list[jax.Array]) -> Any:
        return operation.primitive.bind(*operands, **params)

    def looped(*operands: jax.Array) -> Any:
        found = jax.lax.map(call, [x.reshape(-1, *x.shape[front:]) for x in operands])
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)

    # A call of a compiled function is a single operation with the same operands and results.
    (made,) = jax.make_jaxpr(jax.jit(looped))(*shapes).jaxpr.eqns
    return made.replace(invars=operation.invars, outvars=operation.outvars)
