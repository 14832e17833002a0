"""Wright's omega and the decoder's closed form against SciPy, an ODE solver and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special
from scipy.integrate import quad

from odes import decoder
from odes.decoder import wrightomega

SIZES = [3.0, 30.0, 50.0, 1000.0, 1e6]
TIMES = np.r_[0, np.geomspace(1e-6, 1e8, 120)]
# Precision in which the functions run, and what the issue of them promises.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_omega_is_scipys_and_has_its_derivative(dtype: str) -> None:
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


def test_omega_at_the_ends_of_the_line() -> None:
    w = wrightomega(jnp.array([-jnp.inf, -1e4, jnp.nan]))
    assert w[0] == w[1] == 0
    assert jnp.isnan(w[2])


def scipy_h(t: np.ndarray, M: float) -> np.ndarray:
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
def test_h_is_scipys_from_zero_to_1e8(M: float, dtype: str) -> None:
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
def test_h_solves_its_differential_equation(M: float) -> None:
    end = np.array([1e-4, 1.0, 30.0, 1e4, 1e8])
    solution = integrate.solve_ivp(
        lambda t, h: 1 / ((M - 1) + np.exp(M * h)),
        (0, end[-1]),
        [0.0],
        t_eval=end,
        method="DOP853",
        rtol=1e-13,
        atol=1e-18,
    )
    # DOP853 accumulates a few times its tolerance of 1e-13 over hundreds of steps.
    np.testing.assert_allclose(decoder.h(end, 1.0, M), solution.y[0], rtol=1e-10)


@jax.jit
def derivatives_of_h(s: jax.Array, eta: float, M: float) -> tuple[jax.Array, ...]:
    """By s, by eta_Y, twice by s, by M."""
    over_s = lambda f: jax.vmap(f, (0, None, None))(s, eta, M)
    return (
        over_s(jax.grad(decoder.h)),
        over_s(jax.grad(decoder.h, argnums=1)),
        over_s(jax.grad(jax.grad(decoder.h))),
        jax.jvp(lambda m: decoder.h(s, eta, m), (M,), (1.0,))[1],
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("M", SIZES)
def test_h_has_the_right_gradients(M: float) -> None:
    eta, s = 0.7, jnp.asarray(np.geomspace(1e-6, 1e7, 40))
    h = decoder.h(s, eta, M)
    slope = 1 / ((M - 1) + np.exp(M * h))
    by_s, by_eta, second, forward = derivatives_of_h(s, eta, M)
    np.testing.assert_allclose(by_s, eta * slope, rtol=1e-12)
    np.testing.assert_allclose(by_eta, s * slope, rtol=1e-12)
    np.testing.assert_allclose(second, -M * np.exp(M * h) * eta**2 * slope**3, rtol=1e-10)
    step = 1e-5 * M
    difference = (decoder.h(s, eta, M + step) - decoder.h(s, eta, M - step)) / (2 * step)
    # Central differences: relative 1e-10 from the step, and rounding over the step.
    np.testing.assert_allclose(forward, difference, rtol=1e-6, atol=1e-9 * jnp.abs(h).max() / M)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("M", "eta", "time", "value"),
    [(50, 0.5, 7.0209, 2.0912), (1000, 2.0, 2.8200, 4.4161), (30, 1.0, 3.2016, 1.7273)],
)
def test_the_peak_is_the_published_one_and_a_maximum(
    M: float, eta: float, time: float, value: float
) -> None:
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
def test_transition_times_scale_with_K_over_eta_and_end_where_defined() -> None:
    one, other = decoder.stages(0.5, 1, 50.0), decoder.stages(2.0, 6, 50.0)
    for name in ("rise_end", "peak", "snap"):
        np.testing.assert_allclose(getattr(other, name), 1.5 * getattr(one, name), rtol=1e-14)
    root = 0.5 * one.snap / 2
    np.testing.assert_allclose(jnp.exp(root), 49 * root, rtol=1e-12)
    assert root > 1
    np.testing.assert_allclose(one.rise_end, np.log(50) / 0.5, rtol=1e-15)
    assert np.isnan(decoder.stages(1.0, 1, 3.0).snap)
    assert np.isfinite(decoder.stages(1.0, 1, 4.0).snap)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("M", [3.0, pytest.param(30.0, marks=pytest.mark.full), 1000.0])
def test_gamma_integrates_to_Gamma(M: float) -> None:
    eta, K = 0.8, 4.0
    speed = lambda t: float(decoder.gamma(t / K, eta, M))
    for end in (0.1, 5.0, 200.0):
        by_quadrature, _ = integrate.quad(speed, 0, end, epsabs=0, epsrel=1e-11, limit=200)
        exact = decoder.gamma_integral(end / K, eta, M, K)
        np.testing.assert_allclose(exact, by_quadrature, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_the_integral_of_gamma_is_its_quadrature() -> None:
    """Over t, of which `gamma` reads the visits t/K."""
    eta, M, K, end = 0.7, 30.0, 4.0, 60.0
    want = quad(lambda t: float(decoder.gamma(t / K, eta, M)), 0, end, epsabs=1e-8)[0]
    assert float(decoder.gamma_integral(end / K, eta, M, K)) == pytest.approx(want, rel=1e-9)
