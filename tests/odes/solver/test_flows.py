"""Corrected flows against descent, Theorem 1 against NumPy, and where the solvers' steps are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Status
from odes.solver.integrate import StepTime, integrate, integrate_ito, integrate_sde
from odes.solver.tolerances import Tolerances
from odes.yz import eq10 as attention
from odes.yz import population
from tests.systems.runge_kutta import runge_kutta_instead

pytestmark = pytest.mark.usefixtures("x64")

TASK = dynsim.SynSmall().build()
# One record, and two times where possible: compilation takes seconds.
RECORD = ("loss", "z_top_distinct")


@pytest.mark.more
def test_vmap_over_rates_marks_the_stiff_member_and_spares_the_others():
    times = np.array([0.0, 5.0, 100.0])

    def run(eta):
        few = Tolerances(1e-8, 1e-10, max_steps=120)
        return population.solve(TASK, dynsim.sgd(eta, eta), times, tolerances=few, record=["loss"])

    batch = jax.vmap(run)(jnp.array([0.1, 1e6, 1.0]))
    np.testing.assert_array_equal(batch.status, [0, 2, 0])
    assert batch.first_bad_step[1] in (5, 100)
    assert np.isinf(batch["loss"][1, -1])
    assert np.isfinite(np.asarray(batch["loss"])[[0, 2]]).all()
    alone = run(jnp.asarray(1.0))
    np.testing.assert_allclose(batch["loss"][2], alone["loss"], rtol=1e-9)


def test_float32_is_close_and_recorded_as_such():
    times = np.array([0.0, 10.0, 100.0])
    # In the same equal steps, so that rounding is all that differs.
    with jax.enable_x64(False), runge_kutta_instead():
        wide, narrow = (
            attention.solve(TASK, dynsim.sgd(1.0, 1.0), times, dtype=dtype, record=RECORD)
            for dtype in ("float64", "float32")
        )
    assert narrow["loss"].dtype == np.float32
    assert isinstance(wide["loss"], np.ndarray)
    assert wide["loss"].dtype == np.float64
    # Ten units in the last place of float32, for 60 steps.
    for name in RECORD:
        np.testing.assert_allclose(narrow[name], wide[name], rtol=1e-6)


KEY = jax.random.key(0)


def growing(max_steps):
    """Of y' = y, as a function of the y at which it stops."""
    return jax.jit(
        lambda most: integrate(
            lambda t, y, most: y, jnp.ones(()), jnp.array([0.0, 0.5, 1.2]), most,
            save=lambda t, y, most: y, timescale=StepTime(),
            tolerances=Tolerances(1e-9, 1e-12, max_steps), stop=lambda t, y, most: y > most,
        )
    )  # fmt: skip


@pytest.mark.more
def test_a_solve_that_ends_early_has_a_status():
    solve = growing(2**10)
    # It is 2 at ln 2 = 0.69.
    whole, stopped = solve(4.0), solve(2.0)
    np.testing.assert_allclose(whole.saved, np.exp([0, 0.5, 1.2]), rtol=1e-8)
    np.testing.assert_allclose(stopped.saved, [1, np.exp(0.5), np.inf], rtol=1e-8)
    assert (whole.status, whole.first_bad_step) == (Status.OK, -1)
    assert (stopped.status, stopped.first_bad_step) == (Status.DIVERGED, 2)
    short = growing(3)(4.0)
    assert short.status == Status.MAX_STEPS
    assert short.saved[2] == np.inf


def solve(diffusion, times, *, num_steps, jump, begin=0.0, key=KEY):
    """Of dy = t y dt + `diffusion` dB from 1, with a timescale that begins half a step late."""
    return integrate_sde(
        lambda t, y, args: args * t * y,
        lambda t, y, args: diffusion * jnp.ones_like(y),
        jnp.ones(()),
        jnp.asarray(times),
        jnp.asarray(1.0),
        key,
        save=lambda t, y, args: y,
        timescale=StepTime(shift=0.5),
        num_steps=num_steps,
        jump=jump,
        begin=begin,
    )


AT = (0, 0.3, 1.3, 2)
steps_around = jax.jit(lambda jump: solve(0.0, AT, num_steps=5, jump=jump))


@pytest.mark.parametrize(
    ("jump", "grid"),
    [
        # Five steps of 1/2 from 0 to 5/2, but that the end nearest to the jump is there.
        (9.0, [0, 0.5, 1, 1.5, 2, 2.5]),
        (1.6, [0, 0.5, 1, 1.6, 2, 2.5]),
        (0.2, [0, 0.5, 1, 1.5, 2, 2.5]),
        (0.3, [0, 0.3, 1, 1.5, 2, 2.5]),
        (2.2, [0, 0.5, 1, 1.5, 2.2, 2.5]),
    ],
)
def test_steps_are_equal_but_for_the_jump(jump, grid):
    y = [1.0]
    for t, after in itertools.pairwise(grid):
        y.append(y[-1] * (1 + t * (after - t)))
    times = np.array(AT)
    found = steps_around(jump)
    # Linear between the steps, at times of the timescale.
    at = np.where(times > 0, times + 0.5, 0)
    np.testing.assert_allclose(found.saved, np.interp(at, grid, y), rtol=1e-12)
    np.testing.assert_allclose(found.final, y[-1], rtol=1e-12)
    assert (found.status, found.first_bad_step) == (0, -1)


@pytest.mark.more
def test_it_may_begin_later_and_a_single_time_at_the_start_is_the_start():
    run = lambda *times: solve(0.0, times, num_steps=2, jump=9.0, begin=1.0)
    with jax.enable_x64(True):
        np.testing.assert_allclose(run(1.0, 3.0).saved, [1, 2.5 * 3.5], rtol=1e-12)
        found = run(1.0)
    assert (found.saved, found.final) == (1, 1)


def test_noise_of_a_step_has_the_variance_of_its_length():
    """Of a step of 1/2, in which y does not grow, and one of 1, in which it does by a half."""
    one = lambda key: solve(0.7, [1.0], num_steps=2, jump=0.5, key=key).final
    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, 20_000)))
    mean, variance = 1.5, 0.49 * (0.5 * 1.5**2 + 1)
    assert abs(found.mean() - mean) < 5 * (variance / found.size) ** 0.5
    assert found.var() == pytest.approx(variance, rel=5 * (2 / found.size) ** 0.5)


def test_steps_of_splitting_are_those_of_its_stages():
    """Three stages with nodes 0, 1/3 and 1/2 on either side of a kick, whatever the kick is."""
    drift = lambda t, y: t * y - y**2
    kick = lambda t, y: 0.1 * t**2 * y
    grid, marks = np.array([0.2, 0.5, 1.3, 1.6, 2.5]), [0, 2, 4]
    found, last = jax.jit(
        lambda: integrate_ito(
            drift, lambda t, y, dW: kick(t, y), jnp.asarray(0.7), jnp.asarray(grid), marks, KEY,
            noises=2, save=lambda t, y: jnp.stack([t, y]),
        )
    )()  # fmt: skip

    def flow(t, h, y):
        first = y + h / 3 * drift(t, y)
        second = y + h / 2 * drift(t + h / 3, first)
        return y + h * drift(t + h / 2, second)

    y, seen = 0.7, [0.7]
    for t, h in zip(grid[:-1], np.diff(grid), strict=True):
        y = flow(t, h / 2, y)
        y = flow(t + h / 2, h / 2, y + kick(t + h / 2, y))
        seen.append(y)
    np.testing.assert_allclose(found, np.stack([grid, seen], axis=1)[marks], rtol=1e-12)
    assert float(last) == found[-1, 1]
