"""Wright's omega, the decoder's closed form and the inverse Gram matrix against SciPy, NumPy,
their derivatives and limits."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from odes import coefficients, decoder
from odes.decoder import wrightomega

SIZES = [3.0, 30.0, 50.0, 1000.0, 1e6]
TIMES = np.r_[0, np.geomspace(1e-6, 1e8, 120)]
# Precision in which the functions run, and what the issue of them promises.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_omega_is_scipys_and_has_its_derivative(dtype):
    x = np.r_[np.linspace(-80, 80, 2001), np.geomspace(80, 1e15, 200)].astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        w = wrightomega(jnp.asarray(x))
        slope = jax.vmap(jax.grad(wrightomega))(jnp.asarray(x))
    want = special.wrightomega(x.astype(np.float64))
    # A few units in the last place of a relative error; exp(-80) is where float32 still has one.
    tolerance = 1e-14 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(w, want, rtol=tolerance)
    np.testing.assert_allclose(slope, want / (1 + want), rtol=tolerance)
    assert w.dtype == dtype
    ends = wrightomega(jnp.array([-jnp.inf, -1e4, jnp.nan]))
    np.testing.assert_array_equal(ends, [0, 0, np.nan])


def scipy_h(t, M):
    """h with eta_Y = 1 from SciPy's omega, in the form that does not cancel at this t.

    M h = A - omega loses digits when both are large, ln(M-1) + ln(omega) when both are small;
    for the smallest t neither is any good and three terms of the power series are exact.
    """
    A = (M * t + 1) / (M - 1)
    omega = special.wrightomega(A - np.log(M - 1))
    u = np.where(omega > 1, np.log(M - 1) + np.log(omega), A - omega)
    series = t - t**2 / (2 * M) + t**3 * (1 / (2 * M**2) - 1 / (6 * M))
    return np.where(t < 1e-3, series, u) / M


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("M", SIZES)
def test_h_is_scipys_from_zero_to_1e8(M, dtype):
    with jax.enable_x64(dtype == "float64"):
        t = jnp.asarray(TIMES, dtype)
        h = decoder.h(t, 1.0, M)
        speed = decoder.gamma(t, 1.0, M)
    assert h.dtype == dtype
    assert np.isfinite(h).all()
    assert np.isfinite(speed).all()
    # For t < 1e-3 the series leaves out a relative t^3, below 1e-9 / M.
    np.testing.assert_allclose(h, scipy_h(TIMES, M), rtol=TOLERANCE[dtype])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("M", SIZES)
def test_h_has_the_right_gradients(M):
    eta, s = 0.7, jnp.asarray(np.geomspace(1e-6, 1e7, 40))
    h = decoder.h(s, eta, M)
    slope = 1 / ((M - 1) + np.exp(M * h))
    over_s = lambda f: jax.jit(jax.vmap(f, (0, None, None)))(s, eta, M)
    np.testing.assert_allclose(over_s(jax.grad(decoder.h)), eta * slope, rtol=1e-12)
    np.testing.assert_allclose(over_s(jax.grad(decoder.h, argnums=1)), s * slope, rtol=1e-12)
    second = over_s(jax.grad(jax.grad(decoder.h)))
    np.testing.assert_allclose(second, -M * np.exp(M * h) * eta**2 * slope**3, rtol=1e-10)
    by_M, step = jax.jvp(lambda m: decoder.h(s, eta, m), (M,), (1.0,))[1], 1e-5 * M
    difference = (decoder.h(s, eta, M + step) - decoder.h(s, eta, M - step)) / (2 * step)
    # Central differences: relative 1e-10 from the step, and rounding over the step.
    np.testing.assert_allclose(by_M, difference, rtol=1e-6, atol=1e-9 * jnp.abs(h).max() / M)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("M", "eta", "time", "value"),
    [(50, 0.5, 7.0209, 2.0912), (1000, 2.0, 2.8200, 4.4161), (30, 1.0, 3.2016, 1.7273)],
)
def test_the_peak_is_the_published_one_and_a_maximum(M, eta, time, value):
    stages = decoder.stages(eta, 1, M)
    # The notes give four decimals.
    np.testing.assert_allclose(stages.peak, time, atol=6e-5)
    np.testing.assert_allclose(stages.peak_gamma, value, atol=6e-5)
    found = optimize.minimize_scalar(
        lambda t: -float(decoder.gamma(t, eta, M)), bounds=(0.1, 30), method="bounded"
    )
    # A maximum is located to the square root of the precision of its value.
    np.testing.assert_allclose(stages.peak, found.x, rtol=1e-5)
    np.testing.assert_allclose(decoder.gamma(stages.peak, eta, M), stages.peak_gamma, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_transition_times_scale_with_K_over_eta_and_end_where_defined():
    one, other = decoder.stages(0.5, 1, 50.0), decoder.stages(2.0, 6, 50.0)
    for name in ("rise_end", "peak", "snap"):
        np.testing.assert_allclose(getattr(other, name), 1.5 * getattr(one, name), rtol=1e-14)
    root = 0.5 * one.snap / 2
    np.testing.assert_allclose(jnp.exp(root), 49 * root, rtol=1e-12)
    assert root > 1
    np.testing.assert_allclose(one.rise_end, np.log(50) / 0.5, rtol=1e-15)
    assert np.isnan(decoder.stages(1.0, 1, 3.0).snap)
    assert np.isfinite(decoder.stages(1.0, 1, 4.0).snap)


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
def test_the_inverse_and_its_derivatives_are_those_of_the_matrix():
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
def test_batches_on_two_devices_do_not_wait_for_each_other():
    """They do for ever in jaxlib 0.10 without `one_by_one`; here it takes seconds."""
    command = [sys.executable, "-c", BATCHES]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    # Identity matrices stay as they are.
    assert float(ran.stdout) == pytest.approx(128 * 32)
