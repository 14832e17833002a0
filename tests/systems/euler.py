"""Euler's method in place of the solver, for tests of what is solved: it takes a tenth of the time
to trace and to compile, most of all in reverse."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PyTree

from dynsim import Status
from odes.solver import flows
from odes.solver.integrate import Save, Solved, Timescale, VectorField
from odes.yz import population
from tests.systems.solvers import solved_by

STEPS = 200


def euler(
    vector_field: VectorField,
    initial: PyTree,
    times: Float[Array, "2"],
    args: PyTree,
    *,
    save: Save,
    timescale: Timescale,
    **_: Any,
) -> Solved:
    """`odes.solver.integrate` from the first of two times, which is zero, to the other one."""
    start, end = timescale.flow_time(times)
    step = (end - start) / STEPS

    def advance(y: PyTree, t: Float[Array, ""]) -> tuple[PyTree, None]:
        return jax.tree.map(lambda a, b: a + step * b, y, vector_field(t, y, args)), None

    final, _ = jax.lax.scan(advance, initial, start + step * jnp.arange(STEPS))
    ends = save(start, initial, args), save(end, final, args)
    saved = jax.tree.map(lambda *rows: jnp.stack(rows), *ends)
    return Solved(times, saved, final, jnp.int32(Status.OK), jnp.int32(-1))


@contextlib.contextmanager
def euler_instead() -> Iterator[None]:
    """No program of another solver is taken for one of these, nor the other way round."""
    with solved_by("euler"), pytest.MonkeyPatch.context() as patch:
        for module in (flows, population):
            patch.setattr(module, "integrate", euler)
        yield
