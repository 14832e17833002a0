"""Fails on a jax build that miscompiles: everything else would then be silently wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize(("dtype", "batch"), [("float32", 40_000), ("float64", 20_000)])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_jit_vmap_of_a_reduction_is_computed_correctly(size: int, dtype: str, batch: int) -> None:
    # jax 0.10.2 on CPU returns wrong values here, without a warning, once the batch exceeds
    # 16384 members in float64 or 32768 in float32.
    rng = np.random.default_rng(0)
    matrix, rows = rng.normal(size=(size, size)), rng.normal(size=(batch, size))
    with jax.enable_x64(dtype == "float64"):
        m, r = jnp.asarray(matrix, dtype), jnp.asarray(rows, dtype)
        got = jax.jit(jax.vmap(lambda row: jnp.sum((m @ row) ** 2)))(r)
    want = ((rows @ matrix.T) ** 2).sum(1)
    # Rounding of a few terms, also where they cancel; a miscompiled sum lacks whole terms.
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
