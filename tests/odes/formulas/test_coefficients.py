"""The inverse of the Gram matrix of attention against NumPy, with its derivatives, and on several
devices at once."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from odes import coefficients

BATCHES = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from odes.coefficients import gram_inverse
jax.config.update("jax_num_cpu_devices", 2)
mesh, spec = Mesh(np.array(jax.devices()), ("run",)), PartitionSpec("run")
f = jax.device_put(np.full((128, 32, 32), np.eye(32), "float32"), NamedSharding(mesh, spec))

def turn(f, _):
    return jax.vmap(gram_inverse)(f) / 2 + f / 2, None

many = lambda f: jax.lax.scan(turn, f, None, length=5)[0]
run = jax.jit(jax.shard_map(many, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
print(float(run(f).sum()))
"""


@pytest.mark.usefixtures("x64")
def test_the_inverse_and_its_derivatives_are_those_of_the_matrix() -> None:
    rng = np.random.default_rng(0)
    f, change, weights = rng.normal(size=(3, 3, 5))
    weights = weights[:, :3]
    gram = f @ f.T
    inverse = np.linalg.inv(gram)
    np.testing.assert_allclose(coefficients.gram_inverse(jnp.asarray(f)), inverse, rtol=1e-12)
    # d (G^-1) = -G^-1 dG G^-1, and once more for the second derivative along the same line.
    first, second = change @ f.T + f @ change.T, 2 * change @ change.T
    slope = -inverse @ first @ inverse
    bend = 2 * inverse @ first @ inverse @ first @ inverse - inverse @ second @ inverse

    def along(t):
        return jnp.sum(weights * coefficients.gram_inverse(jnp.asarray(f + t * change)))

    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(
            jax.jit(derivative(along))(0.0), np.sum(weights * slope), rtol=1e-11
        )
        for twice in (jax.grad, jax.jacfwd):
            got = jax.jit(twice(derivative(along)))(0.0)
            np.testing.assert_allclose(got, np.sum(weights * bend), rtol=1e-11)


@pytest.mark.more
def test_batches_on_two_devices_do_not_wait_for_each_other() -> None:
    """They do for ever in jaxlib 0.10 without `one_by_one`; here it takes seconds."""
    ran = subprocess.run(
        [sys.executable, "-c", BATCHES], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    # Identity matrices stay as they are.
    assert float(ran.stdout) == pytest.approx(128 * 32)
