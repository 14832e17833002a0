"""Two-stage ODE and SDE: the table of the reduction, closed forms, corollaries and their roots."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import dynsim
from dynsim import schedules
from dynsim.trajectory import Status
from dynsim.two_stage.annealing import Annealed, Annealing
from dynsim.two_stage.task import Prompts
from odes import two_stage
from odes.solver.tolerances import Tolerances
from odes.two_stage import ReducedState, Rule, field, solve_anchored, thresholds
from odes.two_stage.sde import solve_sde
from tests.systems.runge_kutta import runge_kutta_instead
from tests.systems.two_stage import variance_of_noise

pytestmark = pytest.mark.usefixtures("x64")

# Of one length and with one record where possible: compilation takes seconds.
TIMES = np.r_[0:50:10, 50, 1050, 3050, 6050:10050:100, 12050]
RECORD = ("K1", "K2", "W_norm", "V_norm", "W_trace", "V_trace")


def test_nominal_run_has_the_numbers_of_the_reduction():
    optimizer = Annealed()
    found = two_stage.solve(Prompts(tau_0=0.25), optimizer, TIMES, record=RECORD)
    assert found.ok
    assert found.source == "ode"
    at = list(TIMES).index(50)
    table = {
        "K1": (0.087, 0.048, 5e-4),
        "K2": (0.723, 0.515, 5e-4),
        "W_norm": (8.13, 2.86, 6e-3),
        "V_norm": (7.94, 2.78, 6e-3),
        "W_trace": (1.95, 2.22, 6e-3),
        "V_trace": (0.24, 2.46, 6e-3),
    }
    for name, (first, last, digits) in table.items():
        got = found[name][at], found[name][-1]
        np.testing.assert_allclose(got, [first, last], atol=digits, err_msg=name)
    eta_time = np.asarray(optimizer.build().eta_time(TIMES))
    np.testing.assert_allclose(eta_time[np.argmax(found["K2"] < 0.6)], 87, atol=1.01)
    # The end is interpolated where it is recorded, which may round.
    np.testing.assert_allclose(found.params.b, found["V_trace"][-1], rtol=1e-14)


@pytest.mark.more
def test_restart_where_the_rate_changes_continues_the_run():
    task, optimizer = Prompts(tau_0=0.25), Annealed()
    early, late = [0, 10, 25, 40], [50, 55, 2000, 5000, 8000]
    times = np.array([*early, *late])
    options = {"record": ("state",)}
    # Equal steps from each time to the next, which are the same in parts.
    with runge_kutta_instead():
        whole = two_stage.solve(task, optimizer, times, **options)
        first = two_stage.solve(task, optimizer, [*early, 50], **options)
        rest = two_stage.solve(task, optimizer, late, start=first.params, begin=50, **options)
    assert jax.tree.leaves(first.params) == list(first["state"][-1])
    np.testing.assert_array_equal(rest["state"][0], first["state"][-1])
    np.testing.assert_allclose([*first["state"], *rest["state"][1:]], whole["state"], rtol=1e-12)
    # With the rate of the other stage it would not.
    assert abs(whole["state"][7, 6] / whole["state"][4, 6] - 1) > 0.5


@pytest.mark.more
def test_each_stage_is_anchored_at_the_state_of_training():
    """Exactly at its start; from there on it is the solution of the equations."""
    task, rule, key = Prompts(4, 7), Annealed(decay=0.2, eta_2=0.1, stage_2=0.5), jax.random.key(1)
    early, late = np.array([0, 2, 6]), np.array([6, 10, 31])
    times, record = np.union1d(early, late), ("state", "V_trace", "V_trace_abs")
    assert Annealing.of(rule).first == 6
    trained = {"steps": None, "times": [0, 6], "record": "state", "dtype": "float32"}
    states = np.asarray(dynsim.train(task, rule, key, batch=8, **trained)["state"])
    with runge_kutta_instead():
        found = solve_anchored(task, rule, times, key=key, batch=8, record=record)
        first, second = (
            two_stage.solve(task, rule, at, start=ReducedState(*state), begin=at[0], record=record)
            for state, at in zip(np.float64(states), (early, late), strict=True)
        )
    assert (found.status, found.first_bad_step, found.source) == (Status.OK, -1, "anchored")
    np.testing.assert_array_equal(found.times, times)
    np.testing.assert_array_equal(np.asarray(found["state"])[[0, 2]], states)
    want = [*first["state"][:2], *second["state"]]
    np.testing.assert_allclose(found["state"], want, rtol=1e-12)
    assert found["V_trace"].min() < 0
    np.testing.assert_array_equal(found["V_trace_abs"], abs(found["V_trace"]))


def test_a_stage_that_fails_has_the_status_of_its_solver():
    few = Tolerances(1e-9, 1e-12, max_steps=2)
    given = {"key": jax.random.key(0), "batch": 8, "record": ("state",), "tolerances": few}
    found = solve_anchored(Prompts(4, 7, tau_0=0.25), Annealed(), [0, 25, 50, 8000], **given)
    assert found.status == Status.MAX_STEPS
    assert 0 < found.first_bad_step <= 25
    assert not np.isfinite(found["state"][1]).all()


def test_noise_of_the_paths_follows_the_rate():
    """Nothing to learn: a and b are Ornstein-Uhlenbeck processes like the noise weights."""
    task = Prompts(12, 33, gamma0=0.0, s1=0.0, s2=0.0, r=1e-6, tau_0=0.2)
    optimizer = Annealed(0.2, 0.02, 0.1, tau=0.5).build()
    # The rate changes at the eta-time 2.6 of 12.6, which is no multiple of the step.
    optimizer = dataclasses.replace(optimizer, eta=schedules.steps(0.2, (13, 513), (0.1, 0.1)))
    stages, (num, steps) = Annealing.of(optimizer), (2000, 40)
    run = lambda key: solve_sde(
        task, optimizer, [0, 13, 513.0], key, num_steps=steps, rule=Rule(1, 1, 1, 1),
        record=("W_trace", "V_trace", "state"),
    )  # fmt: skip
    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(4), num))
    assert found.ok.all()
    # Euler's steps, one of which ends where the rate changes: the mean squares of a and b, and the
    # blocks, which see no noise of their own.
    grid = 12.6 * np.arange(steps + 1) / steps
    grid[np.argmin(np.abs(grid - 2.6))] = 2.6
    single, square, kept = want = np.array([0.2**2, 0.2**2, 1.0])
    want = [want]
    for t, step in zip(grid, np.diff(grid), strict=False):
        noise = step * (0.2 if t < 2.6 else 0.02) * stages.noise**2
        kept *= 1 - 0.1 * step
        single, square = (1 - 0.1 * step) ** 2 * single + noise, (1 - 0.2 * step) * square + noise
        if t + step in (2.6, grid[-1]):
            want.append((single, square, kept))
    single, square, kept = np.transpose(want)
    both = np.stack([found["W_trace"], found["V_trace"]])
    # Four standard errors of a variance, of a mean and of correlations: those of the starts and of
    # what noise adds to them by the end, which are four independent numbers for each path.
    np.testing.assert_allclose(both.var(axis=1), [single, single], rtol=4 * (2 / num) ** 0.5)
    assert (np.abs(both.mean(axis=1)) < 4 * np.sqrt(single / num)).all()
    drawn = [*both[..., 0], *(both[..., -1] - kept[-1] * both[..., 0])]
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 4 / num**0.5
    for blocks in found["state"][[0, -1], :, 2:]:
        np.testing.assert_allclose(blocks, np.tile(square, (5, 1)).T, rtol=1e-9)
    # The flow itself: a step of 0.3 at a decay of 0.2 errs by 3 % at most.
    want = variance_of_noise(task, stages, np.r_[0, 13, 513])
    np.testing.assert_allclose(square, want, rtol=0.03)


@pytest.mark.full(
    "test_noise_of_the_paths_follows_the_rate", "test_nominal_run_has_the_numbers_of_the_reduction"
)
def test_onset_of_the_paths():
    times, optimizer, record = np.r_[0, 50:12051:100], Annealed(), ("K2", "V_trace")
    run = lambda key: solve_sde(
        Prompts(tau_0=0.25), optimizer, times, key, num_steps=650, record=record
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(5), 48))
    learned = found["K2"] < 0.6
    onset = np.asarray(optimizer.build().eta_time(times))[learned.argmax(1)]
    onset = np.where(learned.any(1), onset, 130)
    # 91.7 +- 13.8 of as many paths.
    np.testing.assert_allclose(np.mean(onset), 91.7, atol=6)
    np.testing.assert_allclose(np.std(onset), 13.8, atol=4.5)
    assert 0.25 < np.mean(found["V_trace"][:, -1] < 0) < 0.75


hessian = jax.jit(thresholds.growth_rate_hessian)
# Of which no number is 1, nor equal to another.
GENERIC = Prompts(32, 129, r=1.7, gamma0=0.6, s1=0.8, s2=1.3)


def test_growth_rates_of_the_default_task():
    # The theory notes (section 5) have four digits.
    for tau, closed, exact in ((0.25, -0.0021, -0.0042), (0.0559, 0.0805, 0.0759)):
        got = thresholds.growth_rate(Prompts(), tau, 0.025)
        np.testing.assert_allclose(got, closed, atol=6e-5)
        np.testing.assert_allclose(hessian(Prompts(), tau, 0.025), exact, atol=6e-5)


def test_closed_form_is_the_hessian_where_its_assumptions_hold():
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


def test_critical_noise_is_the_root_and_boundaries_are_times_of_growth():
    task, optimizer = Prompts(r=1.7), Annealing.of(Annealed(tau=0.4))
    critical = thresholds.critical_noise(task, 0.025)
    np.testing.assert_allclose(thresholds.growth_rate(task, critical, 0.025), 0, atol=1e-15)
    eta = thresholds.critical_rate(task, optimizer)
    # The stationary noise of steps is that of the flow up to eta lambda / 2.
    np.testing.assert_allclose(optimizer.stationary(eta), critical, rtol=eta * 0.025)
    # Nothing grows above it; below it takes the time of which the boundary is made.
    assert thresholds.growth_time(task, 1.01 * critical, 0.025) == np.inf
    decay, horizon, r = 0.025, 200.0, jnp.linspace(0.8, 2.5, 5)
    tau = thresholds.finite_time_boundary(GENERIC, decay, horizon, r)
    assert tau.shape == (5,)
    for t, x in zip(tau, r, strict=True):
        task = dataclasses.replace(GENERIC, r=float(x))
        sigma = t * 1.3 * np.sqrt(31 * (1.69 * 31 + x**2))
        got = thresholds.growth_rate(task, t, decay) * horizon
        np.testing.assert_allclose(got, np.log(sigma / (x**2 * t)), rtol=1e-10)
        np.testing.assert_allclose(thresholds.growth_time(task, t, decay), horizon, rtol=1e-10)
        assert t < thresholds.critical_noise(task, decay)
    # Noise waits for 20, of the second stage's rate.
    wait, optimizer = thresholds.waiting_time(0.025), Annealing.of(Annealed())
    assert wait == pytest.approx(20)
    times = np.r_[50, 50 + wait / optimizer.eta_2, 1e6]
    start, later, end = variance_of_noise(Prompts(tau_0=0.25), optimizer, times)
    np.testing.assert_allclose((later - end) / (start - end), np.exp(-1), rtol=1e-10)
    np.testing.assert_allclose(end, optimizer.stationary(0.01) ** 2, rtol=2e-4)


STILL = Annealing.of(Annealed(tau=0.0))


@jax.jit
def drift_without_noise(state):
    """What the ODE integrates at L = infinity."""
    model = field.checked_model(GENERIC, finite_length=False, rule=None)
    return field.drift(model, jnp.zeros(()), state, (GENERIC, STILL))


def test_early_signal_and_margin():
    task = GENERIC
    found = drift_without_noise(ReducedState(*map(jnp.asarray, 7 * (0.0,))))
    # a grows by this per unit of eta-time. The rule's mean of |g| misses by 6e-4.
    slope = task.kappa * task.mean_margin**2 / 4
    np.testing.assert_allclose(found.a, slope, rtol=1e-3)
    a = slope * 7.0
    margin = task.kappa / 2 * task.mean_margin**2 * a
    np.testing.assert_allclose(thresholds.unsaturated_margin(task, 7.0), margin, rtol=1e-12)


@pytest.mark.more
def test_stationary_signal_balances_and_has_derivatives():
    task, decay = GENERIC, 0.025
    found = thresholds.stationary_signal(task, decay)
    k = task.kappa / 8 * task.r**2
    np.testing.assert_allclose(decay * found.b, k / (1 + np.exp(2 * k * found.b)), rtol=1e-12)

    def pull(g):
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
