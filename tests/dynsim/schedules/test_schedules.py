"""Schedules against optax, and their sums against sums."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dynsim import schedules
from dynsim.schedules import Schedule, as_schedule, proportional

STEPS = np.arange(300)
PEAK, END, WARMUP, LAST = 0.1, 0.1, 20, 200
OURS = {
    "constant": schedules.constant(PEAK, WARMUP),
    "linear": schedules.linear(PEAK, LAST, END, WARMUP),
    "cosine": schedules.cosine(PEAK, LAST, END),
    "warmup_cosine": schedules.warmup_cosine(PEAK, WARMUP, LAST, END),
    "exponential": schedules.exponential(PEAK, 50, 0.3, WARMUP),
    "exponential that stays": schedules.exponential(PEAK, 50, 1.0, WARMUP),
    "inverse_sqrt": schedules.inverse_sqrt(PEAK, WARMUP),
    "warmup_stable_decay": schedules.warmup_stable_decay(PEAK, WARMUP, 80, 100, END),
    "steps": schedules.steps(PEAK, (50, 120), (0.5, 0.1), WARMUP),
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


def test_every_step_of_an_array_has_its_rate() -> None:
    steps = np.arange(120, 126).reshape(2, 3)

    @jax.jit
    def found(at: jax.Array) -> dict[str, list[jax.Array]]:
        every = {"plain": schedules.constant(PEAK), **OURS}
        return {
            name: [of(at) for of in (made.rate, made.flow_rate, made.eta_time, made.peak_steps)]
            for name, made in every.items()
        }

    alone = found(125)
    for name, each in found(steps).items():
        for of_array, of_one in zip(each, alone[name], strict=True):
            assert of_array.shape == steps.shape, name
            # Rounding in float32.
            np.testing.assert_allclose(of_array[1, 2], of_one, rtol=1e-6, err_msg=name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OURS)
def test_eta_time_is_the_sum_of_the_rates(name: str) -> None:
    """A smooth rate misses eta''/24 a step, which its slopes at the ends of a piece bound."""
    ours = OURS[name]
    rates, found = jax.jit(lambda at: (ours.rate(at.astype(int)[:-1]), ours.eta_time(at)))(
        np.r_[STEPS, STEPS[-1] + 1.0]
    )
    sums = np.cumsum(np.r_[0, rates])
    slope = np.abs(np.diff(rates)).max()
    linear = not {"cosine", "exponential", "inverse"} & {*name.split("_"), name}
    np.testing.assert_allclose(found, sums, rtol=0, atol=1e-12 if linear else slope / 8)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OURS)
def test_the_rate_of_a_flow_is_the_slope_of_eta_time(name: str) -> None:
    ours = OURS[name]
    both = jax.jit(lambda at: (jax.vmap(jax.grad(ours.eta_time))(at), ours.flow_rate(at)))
    slope, rate = both(STEPS + 0.3)
    np.testing.assert_allclose(slope, rate, rtol=1e-9, atol=1e-15)


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
        # optax has no warm-up of no steps.
        want = optax.warmup_cosine_decay_schedule(
            peak if warmup == 0 else 0,
            peak,
            int(max(warmup, 1)) if warmup else 0,
            int(last),
            end * peak,
        )
        np.testing.assert_allclose(
            rate(*numbers), [float(want(k)) for k in range(300)], rtol=1e-5, atol=1e-7
        )
    assert compiled == 1


def test_schedules_are_proportional_that_differ_only_in_their_peaks() -> None:
    cosine, function = schedules.cosine(0.1, 20, 0.2, 3), lambda k: 0.1 / (k + 1)
    for other, alike in (
        (schedules.cosine(0.7, 20, 0.2, 3), True),
        (schedules.linear(0.1, 20, 0.2, 3), False),
        (schedules.cosine(0.1, 21, 0.2, 3), False),
        (schedules.cosine(0.1, 20, 0.3, 3), False),
        (schedules.cosine(0.1, 20, 0.2, 4), False),
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
        assert proportional(cosine, schedules.cosine(0.1, 20, end, 3))
        return end

    jax.eval_shape(traced, 0.5)


def test_a_function_of_the_step() -> None:
    found = as_schedule("eta", lambda k: 0.1 / (k + 1))
    np.testing.assert_allclose(found.rate(np.arange(3)), [0.1, 0.05, 0.1 / 3], rtol=1e-6)
    with pytest.raises(ValueError, match="its sum over steps is not known in closed form"):
        found.eta_time(3.0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda k: "fast", "eta: must return the rate of a step, returned 'fast'"),
        (lambda k: jnp.ones(3), r"eta: must return the rate of a step, returned f32\[3\]"),
        (lambda: 0.1, r"eta: .*<lambda>\(\) takes 0 positional arguments but 1 was given"),
        (lambda k: 0.1 if k > 3 else 0.2, r"eta: needs the values of arrays, .*\n.*, line \d+: "),
    ],
)
def test_a_function_of_the_step_that_is_none_is_named(function: Any, message: str) -> None:
    rate = as_schedule("eta", function).rate
    with pytest.raises(ValueError, match=f"^{message}"):
        jax.eval_shape(rate, jnp.int32(0))


@pytest.mark.parametrize(
    ("made", "jumps", "length"),
    [
        (schedules.constant(1.0), (), 0),
        (schedules.constant(1.0, warmup=5), (5,), 5),
        (schedules.warmup_cosine(1.0, 5, 20), (5, 20), 20),
        (schedules.warmup_stable_decay(1.0, 5, 10, 20), (5, 15, 35), 35),
        (schedules.steps(1.0, (7, 9), (0.5, 0.1), warmup=3), (3, 7, 9), 9),
        (schedules.steps(1.0, (7, 9, 12), (0.5, 0.2, 0.1)), (7, 9, 12), 12),
        (schedules.inverse_sqrt(1.0, 4), (4,), 4),
        (schedules.exponential(1.0, 50, 0.3, 4), (4,), 4),
        (schedules.linear(1.0, 20), (20,), 20),
    ],
)
def test_jumps_and_lengths(made: Schedule, jumps: tuple[int, ...], length: int) -> None:
    assert (tuple(map(float, made.jumps())), float(made.length)) == (jumps, length)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.constant(-1.0), "peak = -1.0: must be finite and in [0, inf)"),
        (lambda: schedules.constant(1.0, warmup=-1), "warmup = -1.0: must be"),
        (lambda: schedules.cosine(1.0, 0), "steps = 0.0: must be finite and in (0, inf)"),
        (lambda: schedules.cosine(1.0, -3), "steps = -3.0: must be finite and in (0, inf)"),
        (lambda: schedules.linear(1.0, 10, warmup=11), "warmup = 11.0: must be finite and in [0"),
        (lambda: schedules.linear(1.0, 10, end=-0.1), "end = -0.1: must be"),
        (lambda: schedules.exponential(1.0, 10, 0), "factor = 0.0: must be"),
        (lambda: schedules.exponential(1.0, 0, 0.5), "steps = 0.0: must be"),
        (lambda: schedules.inverse_sqrt(1.0, 0), "warmup = 0.0: must be finite and in [1, inf)"),
        (lambda: schedules.warmup_stable_decay(1.0, 1, -1, 1), "stable = -1.0: must be"),
        (lambda: schedules.steps(1.0, (5, 3), (1, 1)), "at = 3.0: must be finite and in [5, inf)"),
        (
            lambda: schedules.steps(1.0, (np.array([5, 6]), np.array([7, 3])), (1, 1)),
            "at = 3.0: must be finite and in [6, inf)",
        ),
        (lambda: schedules.steps(1.0, (5,), (1, 1)), "need one factor for each step"),
        (lambda: schedules.steps(1.0, (), ()), "need one factor for each step"),
        (lambda: schedules.steps(1.0, (5,), (-1,)), "factors = -1.0: must be"),
        (lambda: as_schedule("eta", "fast"), "eta = 'fast': must be a real number"),
    ],
)
def test_bad_input_is_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
