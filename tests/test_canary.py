"""Fails on a jax build that miscompiles: everything else would then be silently wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from odes.yz import population
from tests.systems.layers import simulate

Options = dict[str, int | bool | str]


@pytest.mark.parametrize(("dtype", "batch"), [("float32", 40_000), ("float64", 20_000)])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_jit_vmap_of_a_reduction_is_computed_correctly(
    size: int, dtype: str, batch: int, optimised: Options
):
    # jax 0.10.2 on CPU returns wrong values here, without a warning, once the batch exceeds
    # 16384 members in float64 or 32768 in float32.
    rng = np.random.default_rng(0)
    matrix, rows = rng.normal(size=(size, size)), rng.normal(size=(batch, size))
    with jax.enable_x64(dtype == "float64"):
        m, r = jnp.asarray(matrix, dtype), jnp.asarray(rows, dtype)
        mapped = jax.vmap(lambda row: jnp.sum((m @ row) ** 2))
        got = jax.jit(mapped, compiler_options=optimised)(r)
    want = ((rows @ matrix.T) ** 2).sum(1)
    # Rounding of a few terms, also where they cancel; a miscompiled sum lacks whole terms.
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", [pytest.param("flow", marks=pytest.mark.full), "training"])
@pytest.mark.more
def test_optimised_code_computes_the_same(kind: str, optimised: Options):
    task, record = dynsim.SynSmall().build(), ("loss", "entropy", "z_top_distinct", "speed", "xi")

    def flow(eta: jax.Array) -> dynsim.Trajectory:
        times = np.array([0.0, 10.0, 100.0])
        return population.solve(task, dynsim.sgd(eta, eta, momentum=0.9), times, record=record)

    def sampled(eta: jax.Array) -> dynsim.Trajectory:
        key = jax.random.key(0)
        optimizer = dynsim.adam(eta, eta)
        return simulate(task, optimizer, key, steps=20, length=32, batch=8, record=record)

    # The solver takes other steps after other rounding. Adam's quotient amplifies that of float32
    # where a gradient is all but zero.
    run, tolerance = (flow, 1e-7) if kind == "flow" else (sampled, 1e-3)
    both, etas = jax.vmap(run), jnp.array([0.1, 0.5])
    want, got = jax.jit(both)(etas), jax.jit(both, compiler_options=optimised)(etas)
    for name in record:
        scale = np.abs(want[name]).max()
        np.testing.assert_allclose(
            got[name], want[name], rtol=0, atol=tolerance * scale, err_msg=name
        )
