"""How a program is compiled on a CPU: for speed, or to be ready sooner if it runs only for
milliseconds.

Most theories of a single run are solved in milliseconds, after seconds of compilation. `QUICK`
takes away two thirds of that, and the program then runs for two to ten times as long. Measured with
jax 0.10.1 on two cores, in CPU seconds of a process:

================================  ===============  ================
program                           compile          run
================================  ===============  ================
Eq. 10, an adaptive solve         3.5 -> 1.4       0.004 -> 0.009
flow of the attention layer       3.4 -> 1.2       0.005 -> 0.03
its descent, 1000 steps           2.0 -> 0.4       0.007 -> 0.02
spread across seeds, 1000 steps   6.3 -> 1.7       0.45 -> 1.7
training, 8 seeds, 1000 steps     4.2 -> 0.9       2.3 -> 25
================================  ===============  ================

`REDUCED` takes away a third of the clock time and half of the CPU time, and the program runs for
1.1 to 1.5 times as long: the spread is compiled in 3.6 s of CPU time, and runs for 0.44 s.

On a CPU, the compiler spends the effort for which compiling and running a program are estimated to
take least time together (`Cost.effort`). Training on batches is always optimised: rounding may
grow, so that its result must not depend on the number of runs. A single option would not be free
for it either: without fusion emitters it is compiled in two thirds of the time, and takes 1.5 to 2
times as long.

Options of a single program are used, which change nothing else in the user's process. Those that
XLA_FLAGS sets prevail.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from dynsim import checks
from dynsim.precision import host, on_cpu

Returned = TypeVar("Returned")
Option = str | bool
Options = dict[str, Option]

QUICK: Options = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": "1",
}
"""Options for programs that run for milliseconds. jax 0.12 does not have the fusion emitters; a
flow is then compiled in 1.5 s in place of 2.7."""
REDUCED: Options = {
    "xla_backend_optimization_level": "1",
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": "1",
}
"""Options for programs that run for about as long as they are compiled."""
DRAWN: Options = {"xla_cpu_use_fusion_emitters": False}
"""Options for programs that draw random numbers. They are compiled in half to nine tenths of the
time, and run as fast and to the same bits."""


class Effort(NamedTuple):
    """How much the compiler optimises a program.

    Attributes:
        options: options of the compiler.
        saved: seconds of compilation that they save, per operation. A cached program is compiled
            only once, so this is half of the measured time.
        calls, entries: seconds that the program runs longer, per second of `Cost.calls` and of
            `Cost.entries`: with `QUICK`, its loops over entries are not vectorised.
    """

    options: Options
    saved: float
    calls: float
    entries: float


FULL = "full"
EFFORTS = {
    FULL: Effort({}, 0.0, 0.0, 0.0),
    "reduced": Effort(REDUCED, 2e-4, 0.05, 0.5),
    "quick": Effort(QUICK, 4e-4, 0.2, 8.0),
}
TURNS = 100
"""Assumed number of turns of a loop of unknown length: steps of an adaptive solver."""
CALL, ENTRY, PRODUCT = 1e-7, 1e-10, 4e-11
"""Core seconds per operation, per entry of its result, and per product that a matrix multiplication
sums. They give the order of magnitude for training of the built-in systems."""
MAX_DECISIONS = 256
"""Maximum number of remembered decisions about programs of this process."""


class Cost(NamedTuple):
    """The estimated cost of a program. It counts operations and measures nothing: how a program is
    compiled and cut into tiles affects rounding, so that must not depend on how busy the machine
    is.

    Attributes:
        operations: number of operations in the program.
        calls: core seconds that do not depend on the sizes of arrays.
        entries: core seconds that grow with these sizes.
    """

    operations: int = 0
    calls: float = 0.0
    entries: float = 0.0

    def effort(self, times: int = 1) -> str:
        """Return the name of the effort for which compiling a program and running it so many times
        take least time together."""

        def seconds_saved(name: str) -> float:
            effort = EFFORTS[name]
            longer = effort.calls * self.calls + effort.entries * self.entries
            return effort.saved * self.operations - times * longer

        return max(EFFORTS, key=seconds_saved)


def cost(program: Jaxpr, unknown: int = 1) -> Cost:
    """Return the cost of a program, where an outermost loop of unknown length has `unknown` turns
    and loops of unknown length within it have one."""
    operations, calls, entries = 0, 0.0, 0.0
    for equation in program.eqns:
        name = equation.primitive.name
        is_loop = name == "while"
        inner = [cost(part, 1 if is_loop else unknown) for part in inside(equation)]
        turns = equation.params["length"] if name == "scan" else unknown if is_loop else 1
        operations += sum(part.operations for part in inner) or 1
        calls += turns * sum(part.calls for part in inner)
        entries += turns * sum(part.entries for part in inner)
        # An operation with programs within it costs what these cost.
        if inner:
            continue
        size = sum(math.prod(_shape(variable)) for variable in equation.outvars)
        calls += CALL
        entries += size * ENTRY
        if name == "dot_general":
            summed: tuple[int, ...] = equation.params["dimension_numbers"][0][0]
            shape = _shape(equation.invars[0])
            entries += size * PRODUCT * math.prod(shape[i] for i in summed)
    return Cost(operations, calls, entries)


def inside(operation: JaxprEqn) -> list[Jaxpr]:
    """Return the programs within an operation, such as the body of a loop."""
    return [
        part.jaxpr if isinstance(part, ClosedJaxpr) else part
        for value in operation.params.values()
        for part in (value if isinstance(value, tuple | list) else [value])
        if isinstance(part, Jaxpr | ClosedJaxpr)
    ]


def _shape(variable: Any) -> tuple[int, ...]:
    # Effect tokens have no shape.
    return getattr(variable.aval, "shape", ())


def available(options: Options) -> Options:
    """Return those options that this build of XLA knows and that XLA_FLAGS does not set."""
    return _available(tuple(options.items()), os.environ.get("XLA_FLAGS", ""))


@functools.cache
def _available(options: tuple[tuple[str, Option], ...], flags: str) -> Options:
    # Options of XLA_FLAGS are the choice of the user.
    free = {name: value for name, value in options if name not in flags}

    def nothing() -> None: ...

    def is_known(some: Options) -> bool:
        # Even where the default device is an accelerator, which has other options.
        with jax.default_device(host()):
            empty = jax.jit(nothing).lower()
        try:
            empty.compile(some)
        except jax.errors.JaxRuntimeError:
            return False
        return True

    # One attempt is enough if XLA knows all of them, as it usually does.
    all_known = is_known(free)
    return {name: value for name, value in free.items() if all_known or is_known({name: value})}


def call_compiled(program: Callable[..., Returned], *arguments: Any, **options: Any) -> Returned:
    """Call a function made by `equinox.filter_jit`, compiled for how long it will run."""
    leaves, structure = jax.tree.flatten((arguments, options))
    # Options are those of a whole program. In one that is being traced, new arrays are tracers.
    is_part = checks.is_traced((leaves, jnp.asarray(np.zeros(()))))
    if is_part or not on_cpu():
        return program(*arguments, **options)
    signature = ((x.shape, x.dtype) if eqx.is_array(x) else x for x in leaves)
    key = (program, structure, *signature)
    if key not in _EFFORTS:
        closed, _, _ = eqx.filter_make_jaxpr(program)(*arguments, **options)
        if len(_EFFORTS) >= MAX_DECISIONS:
            _EFFORTS.clear()
        _EFFORTS[key] = cost(closed.jaxpr, TURNS).effort()
    compiler_options = available(EFFORTS[_EFFORTS[key]].options)
    if compiler_options:
        program = _with_options(program, tuple(compiler_options.items()))
    return program(*arguments, **options)


@functools.cache
def _with_options(
    program: Callable[..., Returned], compiler_options: tuple[tuple[str, Option], ...]
) -> Callable[..., Returned]:
    # `filter_jit` passes options of `jax.jit` on, but its types do not say so.
    how: Any = {"compiler_options": dict(compiler_options)}
    # Calls the program, so that JAX reuses the trace from which the cost was estimated.
    return eqx.filter_jit(lambda *arguments, **options: program(*arguments, **options), **how)


_EFFORTS: dict[Any, str] = {}
"""Efforts for programs of this process, by their functions and the shapes and static values of
their arguments."""
