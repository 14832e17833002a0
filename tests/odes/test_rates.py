"""Rates that belong to whole steps only, in every kind of theory."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import odes
from dynsim import schedules
from odes import symmetric
from odes.yz import population

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)
HESSIAN = np.array([1.0, 0.5])
START = np.array([1.0, 2.0])


class Quadratic(dynsim.Problem):
    """(w_0^2 + w_1^2 / 2) / 2 from (1, 2), whose weights are two groups."""

    def init(self, key: Any) -> Any:
        return {"a": jnp.array(START[0]), "b": jnp.array(START[1])}

    def groups(self, params: Any) -> Any:
        return {"a": "a", "b": "b"}

    def population_loss(self, params: Any) -> Any:
        return (params["a"] ** 2 + params["b"] ** 2 / 2) / 2


def pulse(begin: int, end: int, height: float = 0.1) -> Callable[[Any], Any]:
    return lambda k: jnp.where((k >= begin) & (k < end), height, 0.0)


def loss(*eta_times: float) -> float:
    """After flows of both weights to these sums of rates."""
    return float(np.sum(HESSIAN * (START * np.exp(-HESSIAN * np.array(eta_times))) ** 2) / 2)


TABLE = 0.2 / np.sqrt(np.arange(1.0, 41.0))
ONE_RATE: dict[str, tuple[Any, int, float]] = {
    "pulse": (pulse(500, 510), 600, 1.0),
    "two pulses": (lambda k: pulse(3, 4)(k) + pulse(900, 903)(k), 1000, 0.4),
    "index": (lambda k: jnp.asarray(TABLE)[k], 40, TABLE.sum()),
    "index of a floor": (lambda k: jnp.asarray(TABLE)[jnp.floor(k).astype(int)], 40, TABLE.sum()),
    "parity": (lambda k: 0.02 * (k & 1), 100, 1.0),
    "not at -1/2": (lambda k: jnp.where(k < 0, jnp.nan, 0.01), 100, 1.0),
    "last steps": (pulse(95, 100), 100, 0.5),
    "a pulse of a built-in schedule": (schedules.steps(0.0, (500, 510), (1, 0)), 600, 0.0),
    "optax": (optax.piecewise_constant_schedule(0.1, {10: 0.1, 20: 0.0}), 500, 1.1),
}


@pytest.mark.parametrize("name", ONE_RATE)
@pytest.mark.more
def test_the_flow_of_one_rate_is_the_closed_form_in_the_sum_of_the_rates(name: str) -> None:
    eta, steps, total = ONE_RATE[name]
    flow = odes.flow(Quadratic(), dynsim.sgd(eta), [0, steps], key=KEY)
    # The tolerance of the solver.
    np.testing.assert_allclose(flow["loss"], [loss(0, 0), loss(total, total)], rtol=1e-7)
    assert flow.status == 0


def test_warm_restarts_are_summed_step_by_step() -> None:
    """optax evaluates them in float32."""
    cycles = [
        {"init_value": 0.0, "peak_value": 0.2, "decay_steps": 20, "warmup_steps": 5}
        for _ in range(2)
    ]
    eta = optax.sgdr_schedule(cycles)
    total = sum(float(eta(k)) for k in range(40))
    flow = odes.flow(Quadratic(), dynsim.sgd(eta), [0, 40], key=KEY)
    np.testing.assert_allclose(flow["loss"][-1], loss(total, total), rtol=1e-6)


@pytest.mark.more
def test_groups_of_weights_have_pulses_of_their_own() -> None:
    """One of them in the very last step."""
    rates = {"a": pulse(700, 705), "b": pulse(799, 800, 0.9)}
    flow = odes.flow(Quadratic(), dynsim.sgd(rates), [0, 705, 799, 800], key=KEY)
    want = [loss(0, 0), loss(0.5, 0), loss(0.5, 0), loss(0.5, 0.9)]
    np.testing.assert_allclose(flow["loss"], want, rtol=1e-7)


RULES: dict[str, tuple[Callable[..., dynsim.Rule], str]] = {
    "momentum": (lambda eta: dynsim.sgd(eta, momentum=0.5), "matched"),
    "nesterov": (lambda eta: dynsim.sgd(eta, momentum=0.5, nesterov=True), "matched"),
    "corrected": (dynsim.sgd, "corrected"),
    "adam": (dynsim.adam, "matched-adam"),
    "plain adam": (dynsim.adam, "adam"),
    "rmsprop": (dynsim.rmsprop, "matched-rmsprop"),
    "sign": (dynsim.sign, "plain"),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.more
def test_a_pulse_after_a_long_rest_moves_weights_as_descent_does(name: str) -> None:
    """For 500 steps nothing moves and averages settle, so that a solver takes long steps."""
    make, kind = RULES[name]
    rule = make(pulse(500, 520, 0.01))
    times = [0, 500, 600]
    flow = odes.flow(Quadratic(), rule, times, key=KEY, kind=kind)
    descent = odes.descent(Quadratic(), rule, times, key=KEY)
    assert flow.status == 0
    fallen = descent["loss"][0] - descent["loss"][-1]
    assert fallen > 0.1
    # The error of the flows in eta; without the pulse it would be 1.
    assert abs(flow["loss"][-1] - descent["loss"][-1]) < 0.02 * fallen
    np.testing.assert_allclose(flow["loss"][1], loss(0, 0), rtol=1e-9)


def test_equations_of_ones_own_stop_at_the_steps_of_a_function() -> None:
    def field(t: Any, state: Any, training: odes.Training) -> Any:
        return -training.rate(t) * state

    decay = odes.system(
        *("decay", "decay", "none", field),
        lambda training, w: jnp.ones(()),
        lambda t, state, training: {"loss": state},
    )
    solved = decay.solve(Quadratic(), dynsim.sgd(pulse(500, 510)), [0, 504.5, 600], key=KEY)
    np.testing.assert_allclose(solved["loss"], np.exp([0, -0.45, -1]), rtol=1e-7)


def test_formulas_have_the_sum_of_a_function() -> None:
    formula = odes.closed_form(
        *("decay", "decay", "none"), lambda problem, init, time: {"loss": jnp.exp(-time)}
    )
    solved = formula.solve(Quadratic(), dynsim.sgd(pulse(500, 510)), [0.0, 504.5, 600.0])
    np.testing.assert_allclose(solved["loss"], np.exp([0, -0.45, -1]), rtol=1e-12)


@pytest.mark.parametrize(
    "solve",
    [
        population.solve,
        lambda task, *args, **options: symmetric.solve(
            symmetric.symmetric_task(task), *args, **options
        ),
    ],
    ids=["population", "symmetric"],
)
@pytest.mark.more
def test_a_layer_learns_in_a_pulse_as_in_as_many_steps(solve: Any) -> None:
    task = dynsim.Syn(1, 3, num_common=0, num_distinct=2).build()
    pulsed = solve(task, dynsim.sgd(pulse(500, 510, 1.3)), [0, 600], record="loss")
    constant = solve(task, dynsim.sgd(1.3, 1.3), [0, 10], record="loss")
    np.testing.assert_allclose(pulsed["loss"], constant["loss"], rtol=1e-6)
    assert constant["loss"][1] < 0.9 * math.log(task.M)


def test_training_records_the_sum_of_a_function() -> None:
    run = dynsim.train(
        *(Quadratic(), dynsim.sgd(pulse(50, 60)), KEY),
        steps=70,
        batch=float("inf"),
        times=[0, 55, 70],
        record="eta_time",
    )
    np.testing.assert_allclose(run["eta_time"], [0, 0.5, 1], rtol=1e-6)


@pytest.mark.more
def test_stops_at_the_jumps_of_a_rate_are_no_steps_of_the_tolerance() -> None:
    """A rough rate ends a step of the solver in each of 500 steps."""
    rough = np.random.default_rng(0).uniform(0, 4e-3, 500)
    rates, few = {"a": lambda k: jnp.asarray(rough)[k], "b": 0.0}, odes.Tolerances(max_steps=64)
    flow = odes.flow(Quadratic(), dynsim.sgd(rates), [0, 500], key=KEY, tolerances=few)
    assert flow.status == 0
    np.testing.assert_allclose(flow["loss"][-1], loss(rough.sum(), 0), rtol=1e-6)
