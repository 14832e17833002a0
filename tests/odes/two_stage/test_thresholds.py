"""Scalar corollaries of the two-stage theory: against the loss and the ODE."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from dynsim.two_stage.annealing import Annealed, Annealing
from dynsim.two_stage.task import Prompts
from odes import two_stage
from odes.two_stage import field, thresholds
from odes.two_stage.loss import ReducedState
from tests.systems.runge_kutta import runge_kutta_instead
from tests.systems.two_stage import variance_of_noise

pytestmark = pytest.mark.usefixtures("x64")


hessian = jax.jit(thresholds.growth_rate_hessian)
# Of which no number is 1, nor equal to another.
GENERIC = Prompts(32, 129, r=1.7, gamma0=0.6, s1=0.8, s2=1.3)


def test_growth_rates_of_the_default_task() -> None:
    # The theory notes (section 5) have four digits.
    for tau, closed, exact in ((0.25, -0.0021, -0.0042), (0.0559, 0.0805, 0.0759)):
        got = thresholds.growth_rate(Prompts(), tau, 0.025)
        np.testing.assert_allclose(got, closed, atol=6e-5)
        np.testing.assert_allclose(hessian(Prompts(), tau, 0.025), exact, atol=6e-5)


def test_closed_form_is_the_hessian_where_its_assumptions_hold() -> None:
    # At large d and small r the row V[0,1:] does nothing; the loss is convex where L is finite.
    task = Prompts(3000, 513, r=0.5, gamma0=0.5, s1=0.8, s2=1.1)
    got, want = thresholds.growth_rate(task, 1e-3, 0.0), hessian(task, 1e-3, 0.0)
    # The row shifts logits by r / (s2 sqrt(d - 1)) of their noise, whose square is 8e-5.
    np.testing.assert_allclose(got, want, rtol=2e-4)
    # The coupling to P starves Q by the residuals of P.
    joint = dataclasses.replace(task, coupling=1.0)
    a = 1.5
    got = hessian(joint, 1e-3, 0.0, a)
    g = np.abs(np.random.default_rng(0).normal(size=200_000))
    margin = task.kappa / 2 * task.mean_margin * a * (0.5 + 0.8 * g)
    drive = 2 * np.mean(1 / (1 + np.exp(margin)))
    assert drive < 0.6
    # The variance of the outputs at L = 513, of which 0.6 % is seen.
    np.testing.assert_allclose(thresholds.growth_rate(task, 1e-3, 0.0, drive), got, rtol=0.01)


@pytest.mark.full("test_growth_rates_of_the_default_task")
def test_small_b_grows_at_that_rate_in_the_ode() -> None:
    task, decay = Prompts(), 0.025
    optimizer = Annealed(0.05, 0.05, decay, tau=0.1)
    # Equal steps of 2/3, which the fourth order makes far more accurate than the rate.
    with runge_kutta_instead():
        found = two_stage.solve(
            task,
            optimizer,
            [0, 400.0],
            start=ReducedState(0.0, 1e-5, *(5 * (0.1**2,))),
            record=("V_trace",),
        )
    rate = np.log(found["V_trace"][1] / found["V_trace"][0]) / 20
    # The loss moves the noise of V by some per cent meanwhile.
    np.testing.assert_allclose(rate, thresholds.growth_rate_hessian(task, 0.1, decay), rtol=0.03)


def test_critical_noise_is_the_root() -> None:
    task, optimizer = Prompts(r=1.7), Annealing.of(Annealed(tau=0.4))
    critical = thresholds.critical_noise(task, 0.025)
    np.testing.assert_allclose(thresholds.growth_rate(task, critical, 0.025), 0, atol=1e-15)
    eta = thresholds.critical_rate(task, optimizer)
    # The stationary noise of steps is that of the flow up to eta lambda / 2.
    np.testing.assert_allclose(optimizer.stationary(eta), critical, rtol=eta * 0.025)
    # Nothing grows above it; below it takes the time of which the boundary is made.
    assert thresholds.growth_time(task, 1.01 * critical, 0.025) == np.inf
    tau = thresholds.finite_time_boundary(task, 0.025, 200.0, 1.7)
    np.testing.assert_allclose(thresholds.growth_time(task, tau, 0.025), 200, rtol=1e-12)


def test_boundary_of_a_finite_time() -> None:
    decay, horizon, r = 0.025, 200.0, jnp.linspace(0.8, 2.5, 5)
    tau = thresholds.finite_time_boundary(GENERIC, decay, horizon, r)
    assert tau.shape == (5,)
    for t, x in zip(tau, r, strict=True):
        task = dataclasses.replace(GENERIC, r=float(x))
        sigma = t * 1.3 * np.sqrt(31 * (1.69 * 31 + x**2))
        got = thresholds.growth_rate(task, t, decay) * horizon
        np.testing.assert_allclose(got, np.log(sigma / (x**2 * t)), rtol=1e-10)
        assert t < thresholds.critical_noise(task, decay)


@pytest.mark.full("test_boundary_of_a_finite_time", "test_growth_rates_of_the_default_task")
def test_the_ode_learns_well_below_the_boundary_and_not_well_above() -> None:
    tau = thresholds.finite_time_boundary(Prompts(), 0.025, 200.0, 1.65)
    for factor, learned in ((0.7, True), (1.4, False)):
        noise = factor * float(tau)
        task, optimizer = Prompts(r=1.65, tau_0=noise), Annealed(0.1, 0.1, 0.025, tau=noise)
        K2 = two_stage.solve(task, optimizer, [0, 2000.0], record=("K2",))["K2"][-1]
        assert (K2 < 0.6) == learned


STILL = Annealing.of(Annealed(tau=0.0))


@jax.jit
def drift_without_noise(state: ReducedState) -> ReducedState:
    """What the ODE integrates at L = infinity."""
    model = field.checked_model(GENERIC, finite_length=False, rule=None)
    return field.drift(model, jnp.zeros(()), state, (GENERIC, STILL))


def test_early_signal_and_margin() -> None:
    task = GENERIC
    found = drift_without_noise(ReducedState(*map(jnp.asarray, 7 * (0.0,))))
    # a grows by this per unit of eta-time. The rule's mean of |g| misses by 6e-4.
    slope = task.kappa * task.mean_margin**2 / 4
    np.testing.assert_allclose(found.a, slope, rtol=1e-3)
    a = slope / (4 * 0.025)
    margin = task.kappa / 2 * task.mean_margin**2 * a
    np.testing.assert_allclose(thresholds.unsaturated_margin(task, 0.025), margin, rtol=1e-12)


@pytest.mark.more
def test_stationary_signal_balances_and_has_derivatives() -> None:
    task, decay = GENERIC, 0.025
    found = thresholds.stationary_signal(task, decay)
    k = task.kappa / 8 * task.r**2
    np.testing.assert_allclose(decay * found.b, k / (1 + np.exp(2 * k * found.b)), rtol=1e-12)

    def pull(g: float) -> float:
        slope = task.kappa / 2 * task.mean_margin * (0.6 + 0.8 * g)
        return slope / (1 + math.exp(slope * float(found.a))) * 2 * scipy.stats.norm.pdf(g)

    # Twelve nodes miss by 2e-5.
    np.testing.assert_allclose(decay * found.a, scipy.integrate.quad(pull, 0, 12)[0], rtol=1e-4)
    # Nothing moves there, with either sign of b, up to what is added under roots.
    still = drift_without_noise(ReducedState(found.a, -found.b, *map(jnp.asarray, 5 * (0.0,))))
    np.testing.assert_allclose(jax.tree.leaves(still), 0, atol=1e-6 * decay * float(found.b))
    signal = jax.jit(lambda decay: jnp.stack(thresholds.stationary_signal(task, decay)))
    want = (signal(0.0251) - signal(0.0249)) / 0.0002
    # Differences miss by the third derivative times 1e-8 / 6.
    np.testing.assert_allclose(jax.jacfwd(signal)(decay), want, rtol=1e-4)


def test_waiting_time_is_that_of_the_noise() -> None:
    optimizer = Annealing.of(Annealed())
    wait = thresholds.waiting_time(0.025)
    assert wait == pytest.approx(20)
    start, later, end = variance_of_noise(
        Prompts(tau_0=0.25), optimizer, np.r_[50, 50 + wait / optimizer.eta_2, 1e6]
    )
    np.testing.assert_allclose((later - end) / (start - end), np.exp(-1), rtol=1e-10)
    np.testing.assert_allclose(end, optimizer.stationary(0.01) ** 2, rtol=2e-4)
