"""A Runge-Kutta method of equal steps in place of the solver, for tests of what surrounds a theory:
sweeps, figures, commands, documents. It traces and compiles in a fraction of the time; the solver
itself, and every theory through it, is tested in `tests/odes` and `tests/systems`."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from odes.solver.integrate import Save, Solved, Timescale, VectorField, judge
from tests.systems.solvers import solved_by

STEPS = 30
"""From each recorded time to the next."""
FIELDS = (
    "odes.solver.flows",
    "odes.yz.population",
    "odes.joma",
)


def integrate(
    vector_field: VectorField,
    initial: PyTree,
    times: Float[Array, " S"],
    args: PyTree,
    *,
    save: Save,
    timescale: Timescale,
    begin: Any = 0.0,
    **_: Any,
) -> Solved:
    """As `odes.solver.integrate`, by the classical method of fourth order."""

    def advance(y: PyTree, t: Float[Array, ""], step: Float[Array, ""]) -> PyTree:
        # As a loop over its stages, so that the field is there once.
        def stage(carry: PyTree, weights: Float[Array, "2"]) -> tuple[PyTree, None]:
            slope, total = carry
            at, share = weights
            here = jax.tree.map(lambda a, b: a + at * step * b, y, slope)
            slope = vector_field(t + at * step, here, args)
            return (slope, jax.tree.map(lambda a, b: a + share * b, total, slope)), None

        still = jax.tree.map(jnp.zeros_like, y)
        weights = jnp.array([[0, 1 / 6], [0.5, 1 / 3], [0.5, 1 / 3], [1, 1 / 6]], t.dtype)
        (_, mean), _ = jax.lax.scan(stage, (still, still), weights)
        return jax.tree.map(lambda a, b: a + step * b, y, mean)

    return _recorded(advance, initial, times, args, save, timescale, begin)


def integrate_sde(
    vector_field: VectorField,
    diffusion: VectorField,
    initial: PyTree,
    times: Float[Array, " S"],
    args: PyTree,
    key: PRNGKeyArray,
    *,
    save: Save,
    timescale: Timescale,
    begin: Any = 0.0,
    **_: Any,
) -> Solved:
    """As `odes.solver.integrate_sde`, with other steps."""

    def advance(y: PyTree, t: Float[Array, ""], step: Float[Array, ""]) -> PyTree:
        draws = jax.random.fold_in(key, jnp.asarray(1e6 * t, jnp.int32))
        leaves, structure = jax.tree.flatten(y)
        noise = jax.random.normal(draws, (len(leaves),), t.dtype) * jnp.sqrt(step)
        return jax.tree.map(
            lambda a, f, g, b: a + step * f + g * b,
            *(y, vector_field(t, y, args), diffusion(t, y, args)),
            jax.tree.unflatten(structure, list(noise)),
        )

    return _recorded(advance, initial, times, args, save, timescale, begin)


def _recorded(
    advance: Any,
    initial: PyTree,
    times: Float[Array, " S"],
    args: PyTree,
    save: Save,
    timescale: Timescale,
    begin: Any,
) -> Solved:
    """Equal steps to each of the times, where `save` is evaluated."""
    ends = timescale.flow_time(times)
    first = jnp.asarray(timescale.flow_time(jnp.asarray(begin, times.dtype)), ends.dtype)

    def piece(y: PyTree, span: Float[Array, "2"]) -> tuple[PyTree, PyTree]:
        step = (span[1] - span[0]) / STEPS
        at = span[0] + step * jnp.arange(STEPS)
        y, _ = jax.lax.scan(lambda y, t: (advance(y, t, step), None), y, at)
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(y)])
        return y, (save(span[1], y, args), jnp.all(finite))

    spans = jnp.stack([jnp.concatenate([first[None], ends[:-1]]), ends], axis=1)
    final, (saved, finite) = jax.lax.scan(piece, initial, spans)
    return Solved(times, saved, final, *judge(times, finite))


@contextlib.contextmanager
def runge_kutta_instead() -> Iterator[None]:
    """No program of the solver is taken for one of these, nor the other way round."""
    with solved_by("runge_kutta"), pytest.MonkeyPatch.context() as patch:
        for module in (*FIELDS, "odes.two_stage.field"):
            patch.setattr(importlib.import_module(module), "integrate", integrate)
        patch.setattr(importlib.import_module("odes.two_stage.sde"), "integrate_sde", integrate_sde)
        yield
