"""Schedules against optax, and their sums against sums."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

from dynsim import schedules
from dynsim.schedules import Schedule, as_schedule, proportional

STEPS = np.arange(300)
PEAK, END, WARMUP, LAST = 0.1, 0.1, 20, 200
OURS = {
    "constant": schedules.constant(PEAK, warmup=WARMUP),
    "linear": schedules.linear(PEAK, LAST, END, warmup=WARMUP),
    "cosine": schedules.cosine(PEAK, LAST, END),
    "warmup_cosine": schedules.warmup_cosine(PEAK, WARMUP, LAST, END),
    "exponential": schedules.exponential(PEAK, 50, 0.3, warmup=WARMUP),
    "exponential that stays": schedules.exponential(PEAK, 50, 1.0, warmup=WARMUP),
    "inverse_sqrt": schedules.inverse_sqrt(PEAK, warmup=WARMUP),
    "warmup_stable_decay": schedules.warmup_stable_decay(PEAK, 80, 100, END, warmup=WARMUP),
    "steps": schedules.steps(PEAK, (50, 120), (0.5, 0.1), warmup=WARMUP),
}
RISE = optax.linear_schedule(0, PEAK, WARMUP)
THEIRS = {
    "constant": RISE,
    "linear": optax.join_schedules(
        [RISE, optax.linear_schedule(PEAK, END * PEAK, LAST - WARMUP)], [WARMUP]
    ),
    "cosine": optax.cosine_decay_schedule(PEAK, LAST, END),
    "warmup_cosine": optax.warmup_cosine_decay_schedule(0, PEAK, WARMUP, LAST, END * PEAK),
    "exponential": optax.join_schedules([RISE, optax.exponential_decay(PEAK, 50, 0.3)], [WARMUP]),
    "exponential that stays": RISE,
    "inverse_sqrt": lambda k: PEAK * min(k / WARMUP, (WARMUP / max(k, 1)) ** 0.5),
    "warmup_stable_decay": optax.join_schedules(
        [RISE, optax.constant_schedule(PEAK), optax.linear_schedule(PEAK, END * PEAK, 100)],
        [WARMUP, WARMUP + 80],
    ),
    "steps": optax.join_schedules(
        [RISE, optax.piecewise_constant_schedule(PEAK, {30: 0.5, 100: 0.2})], [WARMUP]
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OURS)
def test_rates_are_those_of_optax(name: str) -> None:
    want = [float(THEIRS[name](int(k))) for k in STEPS]
    # optax computes some of them in float32.
    np.testing.assert_allclose(OURS[name].rate(STEPS), want, rtol=2e-6, atol=1e-9)


FUNCTIONS = {
    # Tables, indices, branches and sawtooths, which have no value between whole steps.
    "pulse": lambda k: jnp.where((k >= 50) & (k < 55), 0.1, 0.0),
    "table": lambda k: jnp.asarray(np.sqrt(np.arange(1.0, 301.0)))[k],
    "branch": lambda k: jax.lax.cond(k % 7 == 3, lambda: 0.3, lambda: 0.1),
    "parity": lambda k: 0.1 * (k & 1),
    "restarts": optax.sgdr_schedule(
        [{"init_value": 0.0, "peak_value": 0.1, "decay_steps": 60, "warmup_steps": 9}] * 5
    ),
}
ALL = {**OURS, **{name: as_schedule("eta", each) for name, each in FUNCTIONS.items()}}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ALL)
@pytest.mark.more
def test_a_flow_has_the_rate_of_each_step_during_the_step(name: str) -> None:
    """Three nodes of Gauss integrate a parabola exactly. Where the rate does not jump it is
    continuous, and nothing depends on how far a table goes."""
    ours, number = ALL[name], len(STEPS)
    rate = jax.jit(ours.rate)
    rates = np.array([float(rate(jnp.asarray(k))) for k in STEPS])
    table = ours.table(number)
    nodes, weights = np.polynomial.legendre.leggauss(3)
    inside = np.asarray(table.flow_rate(STEPS[:, None] + (nodes + 1) / 2))
    np.testing.assert_allclose(inside @ weights / 2, rates, rtol=1e-12, atol=1e-16)
    assert (inside >= 0).all()
    jumps = np.asarray(table.jumps())
    joined = np.setdiff1d(STEPS[1:], jumps)
    before, after = (np.asarray(table.flow_rate(joined + by)) for by in (-1e-9, 1e-9))
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-7 * rates.max())
    shorter = np.asarray(ours.table(number // 2).flow_rate(STEPS[: number // 2 - 1] + 0.3))
    np.testing.assert_allclose(inside[: len(shorter)] @ weights / 2, rates[: len(shorter)])
    whole = np.asarray(table.flow_rate(STEPS[: number // 2 - 1] + 0.3))
    np.testing.assert_allclose(shorter, whole, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ALL)
def test_eta_time_is_the_sum_of_the_rates(name: str) -> None:
    """To rounding, and linear within a step."""
    ours = ALL[name]
    rate = jax.jit(ours.rate)
    rates = [float(rate(jnp.asarray(k))) for k in STEPS]
    sums = np.cumsum(np.r_[0, rates])
    at = np.r_[STEPS, STEPS[-1] + 1.0]
    np.testing.assert_allclose(ours.eta_time(at), sums, rtol=1e-12, atol=1e-14)
    within = np.interp([0.3, 17.5, 53.9, 299.1], at, sums)
    np.testing.assert_allclose(ours.eta_time(np.array([0.3, 17.5, 53.9, 299.1])), within)


def test_a_function_is_evaluated_at_the_steps_of_the_run_only() -> None:
    """Each step once, none after the last, and none between two."""
    seen = []

    def rate(k: jax.Array) -> jax.Array:
        jax.debug.callback(lambda k: seen.append(k.item()), k)
        return 0.1 / (k + 1)

    as_schedule("eta", rate).table([0, 3.5, 11])
    assert sorted(seen) == list(range(11))
    assert {type(k) for k in seen} == {int}


@pytest.mark.more
def test_a_long_decay_needs_few_stops_and_a_short_one_stops_at_each_step() -> None:
    with jax.enable_x64(True):
        long = np.asarray(schedules.warmup_cosine(1.0, 100, 5000).table(5000).jumps())
        # The end of the rise, and more and more densely where the rate vanishes.
        assert np.isfinite(long).sum() < 60
        # A wide bump after a long rest is met by at least one stop on each side of its top.
        rise = as_schedule("eta", lambda k: jnp.cos(jnp.clip(k - 5000, -500, 500) / 1000 * jnp.pi))
        stops = np.asarray(rise.table(10_000).jumps())
        assert ((stops > 4500) & (stops < 5000)).any()
        assert ((stops > 5000) & (stops < 5500)).any()
        rough = as_schedule("eta", lambda k: 0.1 + 0.05 * (k % 2)).table(1000).jumps()
        assert np.isfinite(np.asarray(rough)).sum() == 999
        flat = np.asarray(schedules.constant(1.0, warmup=2).table(50).jumps())
        assert flat[flat < np.inf].tolist() == [1, 2]


def test_stops_of_an_exponential_decay_are_evenly_spaced() -> None:
    """Where the rate has left its tangent by 5 % of itself, 0.95 e^-x = 1 - x, whatever it is."""
    with jax.enable_x64(True):
        stops = np.asarray(as_schedule("eta", lambda k: jnp.exp(-k / 1000)).table(7000).jumps())
    gap = 1000 * optimize.brentq(lambda x: 0.95 * np.exp(-x) - 1 + x, 0.1, 1)
    # Stops are whole steps, and the tangent is that of a step.
    np.testing.assert_allclose(np.diff(stops[stops < 7000]), gap, atol=2)


def test_all_numbers_are_traced() -> None:
    """One program for a grid over peak, warm-up, length and end; rates follow the numbers."""
    compiled = 0

    @jax.jit
    def rate(peak, warmup, last, end):
        nonlocal compiled
        compiled += 1
        return schedules.warmup_cosine(peak, warmup, last, end).rate(jnp.arange(300))

    for numbers in ((0.1, 20.0, 200.0, 0.1), (0.3, 0.0, 100.0, 0.0), (1.0, 50.0, 250.0, 0.5)):
        peak, warmup, last, end = numbers
        want = optax.warmup_cosine_decay_schedule(
            0 if warmup else peak, peak, int(warmup), int(last), end * peak
        )
        want = [float(want(k)) for k in range(300)]
        np.testing.assert_allclose(rate(*numbers), want, rtol=1e-5, atol=1e-7)
    assert compiled == 1


def test_schedules_are_proportional_that_differ_only_in_their_peaks() -> None:
    cosine, function = schedules.cosine(0.1, 20, 0.2, warmup=3), lambda k: 0.1 / (k + 1)
    for other, alike in (
        (schedules.cosine(0.7, 20, 0.2, warmup=3), True),
        (schedules.linear(0.1, 20, 0.2, warmup=3), False),
        (schedules.cosine(0.1, 21, 0.2, warmup=3), False),
        (schedules.cosine(0.1, 20, 0.3, warmup=3), False),
        (schedules.cosine(0.1, 20, 0.2, warmup=4), False),
        (schedules.cosine(0.1, 20, 0.2), False),
        (schedules.constant(0.1), False),
    ):
        assert proportional(cosine, other) == proportional(other, cosine) == alike
    assert proportional(as_schedule("eta", function), as_schedule("eta", function))
    assert not proportional(as_schedule("eta", function), as_schedule("eta", lambda k: 0.1))
    steps = schedules.steps(0.1, (5, 9), (0.5, 0.1))
    assert proportional(steps, schedules.steps(0.2, (5, 9), (0.5, 0.1)))
    assert not proportional(steps, schedules.steps(0.1, (5, 9), (0.5, 0.2)))

    def traced(end: jax.Array) -> jax.Array:
        assert proportional(cosine, schedules.cosine(0.1, 20, end, warmup=3))
        return end

    jax.eval_shape(traced, 0.5)


def test_sums_of_a_rate_with_few_jumps_are_known_for_any_step() -> None:
    """Here the first jump comes after a fraction of a step."""
    stepped = schedules.steps(0.1, (2.5,), (0.5,))
    np.testing.assert_allclose(jax.jit(stepped.eta_time)(5.0), 0.4, rtol=1e-6)
    np.testing.assert_allclose(stepped.rate(np.arange(4)), [0.1, 0.1, 0.1, 0.05], rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "jumps", "length"),
    [
        (schedules.constant(1.0), (), 0),
        (schedules.constant(1.0, warmup=5), (5,), 5),
        (schedules.warmup_cosine(1.0, 5, 20), (5, 20), 20),
        (schedules.warmup_stable_decay(1.0, 10, 20, warmup=5), (5, 15, 35), 35),
        (schedules.steps(1.0, (7, 9), (0.5, 0.1), warmup=3), (3, 7, 9), 9),
        (schedules.steps(1.0, (7, 9, 12), (0.5, 0.2, 0.1)), (7, 9, 12), 12),
        (schedules.inverse_sqrt(1.0, warmup=4), (4,), 4),
        (schedules.exponential(1.0, 50, 0.3, warmup=4), (4,), 4),
        (schedules.linear(1.0, 20), (20,), 20),
    ],
)
def test_jumps_and_lengths(made: Schedule, jumps: tuple[int, ...], length: int) -> None:
    assert (tuple(map(float, made.jumps())), float(made.length)) == (jumps, length)
