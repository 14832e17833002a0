"""Two-stage ODE and SDE: against the table of the reduction, closed forms and another solver."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import schedules
from dynsim.trajectory import Status
from dynsim.two_stage.annealing import Annealed, Annealing
from dynsim.two_stage.task import Prompts
from odes import two_stage
from odes.solver.tolerances import Tolerances
from odes.two_stage import ReducedState, Rule, measured, solve_anchored
from odes.two_stage.sde import solve_sde
from odes.two_stage.thresholds import stationary_signal
from tests.systems.runge_kutta import runge_kutta_instead
from tests.systems.two_stage import variance_of_noise

pytestmark = pytest.mark.usefixtures("x64")

# Of one length and with one record where possible: compilation takes seconds.
TIMES = np.r_[0:50:10, 50, 1050, 3050, 6050:10050:100, 12050]
RECORD = ("K1", "K2", "W_norm", "V_norm", "W_trace", "V_trace")
TIGHT = Tolerances(1e-9, 1e-12)


@pytest.mark.more
def test_nominal_run_has_the_numbers_of_the_reduction() -> None:
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
def test_restart_where_the_rate_changes_continues_the_run() -> None:
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
def test_each_stage_is_anchored_at_the_state_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly at its start; from there on it is the solution of the equations."""
    task, rule, key = Prompts(4, 7), Annealed(decay=0.2, eta_2=0.1, stage_2=0.5), jax.random.key(1)
    early, late = np.array([0, 2, 6]), np.array([6, 10, 31])
    times, record = np.union1d(early, late), ("state", "V_trace", "V_trace_abs")
    assert Annealing.of(rule).first == 6
    trained = {"steps": None, "times": [0, 6], "record": "state", "dtype": "float32"}
    states = np.asarray(dynsim.train(task, rule, key, batch=8, **trained)["state"])
    anchored = functools.partial(solve_anchored, task, rule, times, key=key, batch=8, record=record)
    with runge_kutta_instead():
        found = anchored()
        first, second = (
            two_stage.solve(task, rule, at, start=ReducedState(*state), begin=at[0], record=record)
            for state, at in zip(np.float64(states), (early, late), strict=True)
        )
        failed = []
        for stage in (0, 1):
            # A state whose loss is not finite, of which a step of length zero is not a number.
            made = {"state": states.astype(float)}
            made["state"][stage, 0] = 1e200
            monkeypatch.setattr(measured, "train", lambda *_, made=made, **__: made)
            failed.append(anchored())
    assert (found.status, found.first_bad_step, found.source) == (Status.OK, -1, "anchored")
    np.testing.assert_array_equal(found.times, times)
    np.testing.assert_array_equal(np.asarray(found["state"])[[0, 2]], states)
    want = [*first["state"][:2], *second["state"]]
    np.testing.assert_allclose(found["state"], want, rtol=1e-12)
    assert found["V_trace"].min() < 0
    np.testing.assert_array_equal(found["V_trace_abs"], abs(found["V_trace"]))
    assert [(each.status, each.first_bad_step) for each in failed] == [
        (Status.DIVERGED, 0),
        (Status.DIVERGED, 6),
    ]


@pytest.mark.full("test_each_stage_is_anchored_at_the_state_of_training")
def test_a_stage_that_takes_too_many_steps_fails() -> None:
    few = Tolerances(1e-9, 1e-12, max_steps=2)
    task, times = Prompts(tau_0=0.25), np.array([0, 25, 50, 8000, 12050])
    found = solve_anchored(
        task, Annealed(), times, key=jax.random.key(0), batch=8, record=("state",), tolerances=few
    )
    assert found.status == Status.MAX_STEPS
    assert not np.isfinite(found["state"][1]).all()


@pytest.mark.full("systems/test_two_stage.py::test_drift_of_the_reduced_ode")
def test_symmetry_of_scale() -> None:
    c = 1.7
    task, optimizer = Prompts(), Annealed()
    scaled_task = Prompts(gamma0=c, s1=c, s2=c, r=1.4 * c, tau_0=0.25 / c**2)
    scaled = Annealed(0.2 / c**4, 0.01 / c**4, 0.025 * c**4, 0.25 / c**2)
    # Equal steps have the symmetry as well.
    with runge_kutta_instead():
        found = two_stage.solve(task, optimizer, TIMES, record=RECORD)
        other = two_stage.solve(scaled_task, scaled, TIMES, record=RECORD)
    for name in RECORD:
        power = 0 if name.startswith("K") else 2
        np.testing.assert_allclose(c**power * other[name], found[name], rtol=1e-6, err_msg=name)


@pytest.mark.full("test_noise_of_the_paths_follows_the_rate")  # whose blocks go by the same drift
def test_noise_that_the_loss_does_not_see_is_ornstein_uhlenbeck() -> None:
    task = Prompts(s1=0.0, s2=0.0, tau_0=0.4)
    optimizer = Annealed()
    times = np.r_[0, 25, 50, 2000, 12050]
    found = two_stage.solve(task, optimizer, times, record=("state",), tolerances=TIGHT)
    want = variance_of_noise(task, Annealing.of(optimizer), times)
    # Without its Gaussian part Q has no noise to be hidden by, and v_u alone has any effect.
    for k in (2, 3, 4, 6):
        np.testing.assert_allclose(found["state"][:, k], want, rtol=1e-7)
    assert want[0] == pytest.approx(0.16)
    assert want[2] / want[4] > 5


@pytest.mark.full("test_nominal_run_has_the_numbers_of_the_reduction")
def test_traced_numbers_give_what_numbers_give() -> None:
    def one(tau: float, r: float, decay: float, c: float) -> jax.Array:
        task = eqx.tree_at(lambda task: (task.r, task.coupling), Prompts(16, 65), (r, c))
        optimizer, few = Annealed(tau=tau, decay=decay), Rule(4, 3, 4, 3)
        found = two_stage.solve(task, optimizer, [0, 30], rule=few, record=("K1", "K2", "loss"))
        return jnp.stack(list(found.observables.values()))

    numbers = np.array([[0.1, 0.3], [2.2, 1.4], [0.05, 0.0251], [0.0, 0.7]])
    # Equal steps, whose loops compile in a fraction of the time; the quadrature is the same.
    with runge_kutta_instead():
        together = jax.jit(jax.vmap(one))(*numbers)
        # The coupling 0 is left out of the gradient here and has the weight 0 there.
        alone = one(*numbers[:, 0].tolist())
    # Rounding of 30 steps.
    np.testing.assert_allclose(together[0], alone, rtol=1e-12)
    np.testing.assert_allclose(together[0, 2], together[0, 0] + together[0, 1], rtol=1e-14)
    assert np.abs(together[1, 2] - together[1, 0] - together[1, 1]).max() > 0.05


@pytest.mark.full(
    "odes/two_stage/test_thresholds.py::test_stationary_signal_balances_and_has_derivatives"
)
def test_long_runs_end_at_the_stationary_signal() -> None:
    task = Prompts()
    optimizer = Annealed(0.2, 0.2, tau=0.0, stage_2=20)
    found = two_stage.solve(
        task,
        optimizer,
        [0, 5000],
        start=ReducedState(0.1, -0.1, 0.0, 0.0, 0.0, 0.0, 0.0),
        finite_length=False,
        record=("W_trace", "V_trace", "W_norm", "V_rms"),
    )
    want = stationary_signal(task, 0.025)
    np.testing.assert_allclose(found["W_trace"][-1], want.a, rtol=1e-5)
    np.testing.assert_allclose(found["V_trace"][-1], -want.b, rtol=1e-5)
    np.testing.assert_allclose(found["W_norm"][-1], want.a, rtol=1e-5)
    assert found["V_rms"][-1] < 2e-6


@pytest.mark.full("test_noise_of_the_paths_follows_the_rate")  # by Euler's steps of the blocks
def test_path_without_noise_is_the_ode() -> None:
    task = Prompts(12, 33, tau_0=0.1)
    optimizer = Annealed(tau=0.0)
    times = np.r_[0, 20, 50, 1000, 3000.0]
    start = ReducedState(0.1, 0.3, *(5 * (0.01,)))
    with runge_kutta_instead():
        ode = two_stage.solve(task, optimizer, times, start=start, record=("state",))
    errors = []
    for num in (200, 400):
        path = solve_sde(
            task, optimizer, times, jax.random.key(0), start=start, record=("state",), num_steps=num
        )
        assert path.ok
        assert path.source == "sde"
        errors.append(np.abs(path["state"] - ode["state"]).max())
    # Euler's error, of first order.
    assert 1e-5 < errors[1] < errors[0] < 0.03
    np.testing.assert_allclose(errors[0] / errors[1], 2, rtol=0.15)


@pytest.mark.more
def test_noise_of_the_paths_follows_the_rate() -> None:
    # Nothing to learn: a and b are Ornstein-Uhlenbeck processes like the noise weights.
    task = Prompts(12, 33, gamma0=0.0, s1=0.0, s2=0.0, r=1e-6, tau_0=0.2)
    optimizer = Annealed(0.2, 0.02, 0.1, tau=0.5).build()
    # The rate changes at the eta-time 2.6 of 12.6, which is no multiple of the step.
    eta = schedules.steps(0.2, (13, 513), (0.1, 0.1))
    optimizer = dataclasses.replace(optimizer, eta=eta)
    stages = Annealing.of(optimizer)
    num, steps = 2000, 40
    run = lambda key: solve_sde(
        task,
        optimizer,
        [0, 13, 513.0],
        key,
        num_steps=steps,
        rule=Rule(1, 1, 1, 1),
        record=("W_trace", "V_trace", "state"),
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(4), num))
    assert found.ok.all()
    # Euler's steps, one of which ends where the rate changes: the mean squares of a and b, and the
    # blocks, which see no noise of their own.
    grid = 12.6 * np.arange(steps + 1) / steps
    grid[np.argmin(np.abs(grid - 2.6))] = 2.6
    single = square = 0.2**2
    want = [(single, square, 1.0)]
    kept = 1.0
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
def test_onset_of_the_paths() -> None:
    times = np.r_[0, 50:12051:100]
    optimizer = Annealed()
    run = functools.partial(
        solve_sde, Prompts(tau_0=0.25), optimizer, times, num_steps=650, record=("K2", "V_trace")
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(5), 48))
    learned = found["K2"] < 0.6
    onset = np.where(
        learned.any(1), np.asarray(optimizer.build().eta_time(times))[learned.argmax(1)], 130
    )
    # 91.7 +- 13.8 of as many paths.
    np.testing.assert_allclose(np.mean(onset), 91.7, atol=6)
    np.testing.assert_allclose(np.std(onset), 13.8, atol=4.5)
    assert 0.25 < np.mean(found["V_trace"][:, -1] < 0) < 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": [10.0, 5.0]}, r"times = .*must be increasing and >= 0"),
        ({"times": [10.0], "begin": 50}, r"times = .*must be increasing and >= 50"),
        ({"begin": -1.0}, r"begin = -1"),
        ({"record": ("K3",)}, r"record = 'K3': must be one of K1, "),
        ({"rule": Rule(g=0)}, r"rule.g = 0: must be an integer >= 1"),
        ({"start": ReducedState(-0.5, -0.1, 1.0, 1.0, -1.0, 1.0, 1.0)}, r"start.v_e = -1.0"),
        ({"optimizer": Annealed().build()}, "tau_0 = None: .* give tau_0 for other rules"),
        ({"task": Prompts(core="fixed")}, r"core = 'fixed': must be 'fresh'"),
        ({"dtype": "float16"}, r"dtype = 'float16'"),
        ({"tolerances": Tolerances(rtol=0.0)}, r"rtol = 0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(options: dict, message: str) -> None:
    given = {"task": Prompts(), "optimizer": Annealed(), "times": [100.0], **options}
    with pytest.raises(ValueError, match=message):
        two_stage.solve(**given)


def test_bad_number_of_steps_is_named() -> None:
    with pytest.raises(ValueError, match="num_steps = 1: must be an integer >= 2"):
        solve_sde(Prompts(), Annealed(), [1.0], jax.random.key(0), num_steps=1)


@pytest.mark.full(
    "systems/test_two_stage.py::test_drift_of_the_reduced_ode",
    "odes/solver/test_flows.py::test_float32_is_close_and_recorded_as_such",
)
def test_single_precision() -> None:
    # In the same equal steps, so that rounding is all that differs.
    with runge_kutta_instead():
        with jax.enable_x64(False):
            single = two_stage.solve(Prompts(), Annealed(), TIMES, record=RECORD, dtype="float32")
        double = two_stage.solve(Prompts(), Annealed(), TIMES, record=RECORD)
    for name in RECORD:
        assert single[name].dtype == "float32"
        np.testing.assert_allclose(single[name], double[name], rtol=2e-3, err_msg=name)
