"""Traced programs: without JAX's caches, with fingerprints for comparison, with the Python
functions that they call, and with LAPACK calls for one matrix at a time.

Lowering a program to text takes twice as long as tracing it, and most programs of a session are
traced again unchanged.
"""

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
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
def without_trace_cache() -> Iterator[None]:
    """Trace the enclosed programs again, ignoring JAX's caches.

    JAX caches traces of functions, such as the bodies of loops, and does not notice when a global
    variable that one of them reads has changed.
    """
    with _TRACE(object()):
        yield


def callbacks(value: object) -> Iterator[Callable[..., object]]:
    """Yield the Python functions whose results enter a traced program while it runs."""
    if isinstance(value, ClosedJaxpr):
        # Since JAX 0.12 this is the same class as the next one.
        value = value.jaxpr
    if isinstance(value, tuple | list):
        for item in value:
            yield from callbacks(item)
    elif isinstance(value, Jaxpr):
        for eqn in value.eqns:
            if eqn.primitive.name in ("pure_callback", "io_callback"):
                yield eqn.params["callback"].callback_func
            yield from callbacks([*eqn.params.values()])


def reads(traced: jax.stages.Traced) -> list[bool]:
    """Return for each array among a program's arguments whether the results may depend on it. Loops
    and branches count as reading all their arguments."""
    return _reads(traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.jaxpr.outvars))


def _reads(jaxpr: Jaxpr, wanted: list[bool]) -> list[bool]:
    results = zip(jaxpr.outvars, wanted, strict=True)
    live = {var for var, want in results if want and isinstance(var, Var)}
    for eqn in reversed(jaxpr.eqns):
        outputs = [var in live for var in eqn.outvars]
        if not any(outputs) and not eqn.effects:
            continue
        needed = [True] * len(eqn.invars)
        inner = inside(eqn)
        if (
            len(inner) == 1
            and eqn.primitive.name not in ("scan", "while")
            # A call of a function has the arguments and results of the operation.
            and len(inner[0].invars) == len(eqn.invars)
            and len(inner[0].outvars) == len(outputs)
        ):
            needed = _reads(inner[0], outputs)
        arguments = zip(eqn.invars, needed, strict=True)
        live |= {var for var, need in arguments if need and isinstance(var, Var)}
    return [var in live for var in jaxpr.invars]


def operations(jaxpr: Jaxpr) -> Iterator[str]:
    """Yield the names of all operations of a program, including those of loops and functions."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in inside(eqn):
            yield from operations(inner)


def jaxpr_fingerprint(traced: jax.stages.Traced) -> Hashable | None:
    """Return a value that is equal for traces that lower to the same text. It covers operations and
    their parameters, constants, shapes, and the names of arguments and results. Objects of JAX are
    compared by their own equality. Returns None if something is not hashable."""
    names = jax.tree.structure((traced.in_avals, traced.out_info))
    try:
        fingerprint = names, _hashable(traced.jaxpr)
        hash(fingerprint)
    except TypeError:
        return None
    return fingerprint


def _hashable(value: object) -> Hashable:
    # Since JAX 0.12 these are one class.
    if isinstance(value, ClosedJaxpr):
        return _hashable_jaxpr(value.jaxpr), _hashable(value.consts)
    if isinstance(value, Jaxpr):
        return _hashable_jaxpr(value)
    if hasattr(value, "__array__"):
        # By its bytes, because 0.0 equals -0.0 and NaN equals nothing.
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()
    if isinstance(value, tuple | list):
        return type(value), *map(_hashable, value)
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    return value


def _hashable_jaxpr(jaxpr: Jaxpr) -> Hashable:
    # Variables are numbered in the order of their first use, as they are new in each trace.
    numbers: dict[Var, int] = {}

    def atom(var: Var | Literal) -> Hashable:
        if isinstance(var, Literal):
            return _hashable(var.val), var.aval
        return numbers.setdefault(var, len(numbers)), var.aval

    def atoms(variables: Iterable[Var | Literal]) -> Hashable:
        return tuple(map(atom, variables))

    inputs = atoms(jaxpr.constvars), atoms(jaxpr.invars)
    eqns = []
    for eqn in jaxpr.eqns:
        unused = UNUSED.get(eqn.primitive.name, ())
        params = _hashable({name: eqn.params[name] for name in eqn.params if name not in unused})
        eqns.append((eqn.primitive, eqn.ctx, params, atoms(eqn.invars), atoms(eqn.outvars)))
    return inputs, tuple(eqns), atoms(jaxpr.outvars)


def unbatch_lapack(traced: jax.stages.Traced, *arguments: Any) -> jax.stages.Traced:
    """Return a program, traced with these arguments, with a loop in place of each LAPACK call for
    several matrices. A program without such calls is returned as it is.

    On a CPU, jaxlib 0.10 and 0.11 split the matrices of a call among the threads that run
    everything else, and wait for them. If several CPU devices do so at once, they can wait for each
    other for ever.
    """
    jaxpr = _unbatch(traced.jaxpr)
    if jaxpr is traced.jaxpr:
        return traced
    function, result = jaxpr_as_fun(jaxpr), jax.tree.structure(traced.out_info)
    return jax.jit(lambda *inputs: result.unflatten(function(*jax.tree.leaves(inputs)))).trace(
        *arguments
    )


def _unbatch(value: Any) -> Any:
    """Replace the operations inside a parameter of an operation; return others as they are."""
    if isinstance(value, ClosedJaxpr):
        # Since JAX 0.12 this is the same class as the next one.
        inner = _unbatch_jaxpr(value.jaxpr)
        return value if inner is value.jaxpr else value.replace(jaxpr=inner)
    if isinstance(value, Jaxpr):
        return _unbatch_jaxpr(value)
    if isinstance(value, tuple | list):
        items = [_unbatch(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _unbatch_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    eqns = [_unbatch_eqn(eqn) for eqn in jaxpr.eqns]
    same = all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else jaxpr.replace(eqns=eqns)


def _unbatch_eqn(eqn: JaxprEqn) -> JaxprEqn:
    params = {name: _unbatch(value) for name, value in eqn.params.items()}
    if any(params[name] is not value for name, value in eqn.params.items()):
        return eqn.replace(params=params)
    if eqn.primitive.name not in LAPACK:
        return eqn
    avals: list[Any] = [var.aval for var in eqn.invars]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    # All operands have the same batch; vectors, such as pivots, have one dimension less.
    front = max(len(each.shape) for each in shapes) - 2
    batch = shapes[0].shape[:front]
    if math.prod(batch) <= 1:
        return eqn

    def call(operands: list[jax.Array]) -> Any:
        return eqn.primitive.bind(*operands, **params)

    def loop(*operands: jax.Array) -> Any:
        results = jax.lax.map(call, [x.reshape(-1, *x.shape[front:]) for x in operands])
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)

    # A call of a compiled function is a single operation with the same operands and results.
    (replacement,) = jax.make_jaxpr(jax.jit(loop))(*shapes).jaxpr.eqns
    return replacement.replace(invars=eqn.invars, outvars=eqn.outvars)
