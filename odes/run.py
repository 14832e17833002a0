"""How theories are run: check the arguments, convert them to arrays of one precision, compile and
solve.

`run` does so for a problem, after the theory has built it and checked its own assumptions.
`in_program` is its last part; equations of tasks that are no problems, such as those of
`odes.symmetric`, use it alone.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Real

from dynsim import Problem, checks, numeric
from dynsim.compiling import call_compiled
from dynsim.precision import DType, Number, Result, as_jax_arrays, cast, precision, to_host
from dynsim.problem.build import split
from dynsim.problem.checks import check_single, checked_init
from dynsim.training.rule import Rule
from dynsim.trajectory import Times


def run(
    program: Callable[..., Result],
    problem: Problem,
    rule: Rule,
    times: Times,
    key: PRNGKeyArray | None,
    init: PyTree,
    dtype: DType,
    *numbers: PyTree,
    random: bool = True,
    **options: Any,
) -> Result:
    """Run a theory of a problem, in the order in which every theory is run: check the arguments
    that all have in common, convert them to arrays of one precision, compile, and solve. Before it,
    a theory builds the problem and the rule, and checks what it assumes.

    Args:
        program: `program(problem, rule, key, init, times, *numbers, **options)` returns one or
            several `Trajectory`s, with their status, from traced arrays. It must be the same
            function in each call, which would otherwise compile again. It makes the starting
            weights (`dynsim.problem.train.started`), which are drawn in 32 bits, and therefore gets
            the problem in the precision of the caller.
        problem, rule: as `built`. Their arrays, and the numbers of the rule, are traced.
        times, key, init: as the caller passes them.
        dtype: precision of the solve.
        numbers: further numbers, which are traced.
        random: whether a run depends on its starting weights or on random numbers, so that it needs
            a key or `init`. Otherwise the program gets neither.
        options: static options.

    Raises:
        ValueError: for numbers with axes, invalid starting weights or times, and missing starting
            weights, before anything is compiled.
    """
    # Check.
    check_single("rule", rule)
    init = checked_init(problem, init, dtype)
    if random and key is None and init is None:
        raise ValueError("key = None: starting weights are random; pass a key, or `init`")
    check_times(times)
    if not random:
        # Either of them would compile a second program with the same result.
        key = init = None

    # Convert. `in_program` calls this function after it has set the precision, because JAX would
    # cut 64-bit arrays to 32 bits before.
    traced, static = split(problem)

    def arguments() -> tuple[PyTree, ...]:
        return (
            eqx.combine(as_jax_arrays(traced), static),
            rule.astype(dtype).tabulated(times),
            key,
            as_jax_arrays(init),
            cast(times, dtype),
            *jax.tree.map(lambda number: cast(number, dtype), numbers),
        )

    # Compile and solve. A failure sets the status, because one failed run must not stop others.
    inputs = problem, rule, times, key, init, numbers
    return in_program(program, arguments, inputs, dtype, **options)


def in_program(
    program: Callable[..., Result],
    arguments: Callable[[], tuple[PyTree, ...]],
    inputs: tuple[PyTree, ...],
    dtype: DType,
    **options: Any,
) -> Result:
    """Return `program(*arguments(), **options)`, compiled in precision `dtype`.

    `program` has to be the same function in each call to avoid recompilation. `arguments` makes its
    arguments in that precision; anything that is not an array is static, as are the options. The
    user's `inputs` are searched for tracers, whose precision is already set.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(precision(dtype, inputs))
        converted = arguments()
        if any(map(jnp.iscomplexobj, filter(eqx.is_array, jax.tree.leaves(converted)))):
            # diffrax warns of complex arguments too, but only a complex state is a problem for it.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Complex dtype support in Diffrax")
        result = call_compiled(_compiled, program, *converted, **options)
    return to_host(result)


# At module level, so that all calls share one cache: a `filter_jit` of each call would be empty.
@eqx.filter_jit
def _compiled(program: Callable[..., Result], *arguments: PyTree, **options: Any) -> Result:
    return program(*arguments, **options)


def dtype_of(array: Array) -> DType:
    """Return the precision of a program, from one of its arrays."""
    return "float32" if array.dtype == jnp.float32 else "float64"


def check_times(times: Times, begin: Real[Number, ""] = 0.0) -> None:
    """Raise `ValueError` unless `times` are finite, increasing and >= `begin` >= 0."""
    checks.real("begin", begin, 0)
    if checks.is_traced((times, begin)):
        return
    array = numeric.as_numpy("times", times)
    try:
        # Integers become floats; text and complex numbers raise.
        array = array.astype(np.float64, casting="same_kind")
    except TypeError:
        array = np.array(np.nan)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"times = {times!r}: must be a non-empty list of finite times")
    if array[0] < begin or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must be increasing and >= {begin:g}")
