"""Flows of any problem: closed forms in the integral of the rate, whatever rate it is, and their
order in eta against descent, for schedules, rates by group and both kinds of decay."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import expm

import dynsim
import odes
from dynsim import schedules

KEY = jax.random.key(0)
PRECISE = odes.Tolerances(1e-10, 1e-12)


class Bowl(dynsim.Problem):
    """Three weights in a curved valley, in two groups."""

    def init(self, key):
        return {"a": jnp.float32(1.2), "b": jnp.array([0.5, -0.7])}

    def population_loss(self, params):
        a, (b, c) = params["a"], params["b"]
        return (a**2 * b - 1) ** 2 / 2 + (a * c + 0.5) ** 2 + 0.3 * jnp.cos(c)

    def groups(self, params):
        return {"a": "first", "b": "second"}


class Line(dynsim.Problem):
    def init(self, key):
        return jnp.float32(1)

    def population_loss(self, params):
        return params**2 / 2


SCHEDULES = {
    "constant": lambda eta, steps: eta,
    "cosine": lambda eta, steps: schedules.cosine(eta, 0.8 * steps, 0.1, warmup=0.2 * steps),
    "steps": lambda eta, steps: schedules.steps(eta, (round(0.4 * steps),), (0.2,)),
    "by group": lambda eta, steps: {
        "first": eta,
        "second": schedules.exponential(eta, steps, 0.3),
    },
}
COUPLED, DECOUPLED = {"decay": 0.3}, {"decay": 0.3, "decoupled": True}
HEAVY, NESTEROV = {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}
ADAM, RMS = {"b1": 0.6, "b2": 0.8, "eps": 0.5}, {"b2": 0.8, "eps": 0.5}
RULES = {
    "plain": (dynsim.sgd, COUPLED, None),
    "corrected": (dynsim.sgd, COUPLED, "corrected"),
    "corrected decoupled": (dynsim.sgd, DECOUPLED, "corrected"),
    "corrected momentum": (dynsim.sgd, HEAVY | COUPLED, "corrected"),
    "corrected momentum decoupled": (dynsim.sgd, HEAVY | DECOUPLED, "corrected"),
    "matched": (dynsim.sgd, HEAVY | COUPLED, None),
    "decoupled": (dynsim.sgd, HEAVY | DECOUPLED, None),
    "adam": (dynsim.adam, ADAM | COUPLED, None),
    "adamw": (dynsim.adamw, ADAM | COUPLED, None),
    "nesterov rescaled": (dynsim.sgd, NESTEROV | COUPLED, "rescaled"),
    "nesterov heavy-ball": (dynsim.sgd, NESTEROV | COUPLED, "heavy-ball"),
    "nesterov": (dynsim.sgd, NESTEROV | COUPLED, None),
    "nesterov decoupled": (dynsim.sgd, NESTEROV | DECOUPLED, None),
    "corrected nesterov": (dynsim.sgd, NESTEROV | COUPLED, "corrected"),
    "corrected nesterov decoupled": (dynsim.sgd, NESTEROV | DECOUPLED, "corrected"),
    "rmsprop": (dynsim.rmsprop, RMS | COUPLED, "rmsprop"),
    "matched rmsprop": (dynsim.rmsprop, RMS | COUPLED, None),
    "corrected adam": (dynsim.adamw, ADAM | COUPLED, "corrected-adam"),
    "matched rmsprop decoupled": (dynsim.rmsprop, RMS | DECOUPLED, None),
}
"""Rule, its options, and which of its flows."""
STAND_INS = (
    "test_flows_are_descent_to_the_order_that_they_promise",
    "test_nesterovs_flows_on_a_parabola_are_what_their_equations_give",
    "test_rmsprop_under_a_constant_force_is_an_area_cosine",
)
BY_DEFAULT = ("corrected", "by group"), ("adamw", "constant"), ("corrected adam", "cosine")
FULL = pytest.mark.full(*STAND_INS)
SOME = dict.fromkeys([*zip(RULES, itertools.cycle(SCHEDULES)), *BY_DEFAULT])
CASES = [pytest.param(*case, marks=() if case in BY_DEFAULT else FULL) for case in SOME]


@pytest.mark.parametrize(("rule", "schedule"), CASES)
@pytest.mark.more
def test_flows_are_descent_to_the_order_that_they_promise(rule, schedule):
    """Half the rate for twice the steps divides the error by two, by four in a corrected flow,
    once momentum has built up."""
    make, settings, kind = RULES[rule]
    errors = []
    for eta, steps in ((0.02, 200), (0.01, 400)):
        made = make(SCHEDULES[schedule](eta, steps), **settings)
        times = [0, steps // 8, steps // 4, steps // 2, steps]
        options = {"key": KEY, "record": {"all": lambda _, p: jnp.append(p["b"], p["a"])}}
        flow = odes.flow(Bowl(), made, times, kind=kind, tolerances=PRECISE, **options)
        descent = odes.descent(Bowl(), made, times, **options)
        assert (flow.status, descent.status) == (0, 0)
        errors.append(np.abs(flow["all"] - descent["all"]).max())
    # Of the next order a tenth is left at these rates.
    promised = 4 if "corrected" in rule else 2
    assert errors[0] / errors[1] > 0.85 * promised
    # A step of the largest rate.
    assert errors[0] < 0.02


class Pull(dynsim.Problem):
    """Two weights pulled at constant forces."""

    def init(self, key):
        return jnp.array([1.0, 2.0])

    def population_loss(self, params):
        return 3 * params[0] - 0.5 * params[1]


WEIGHTS = {"all": lambda problem, params: params}


@pytest.mark.parametrize("kind", ["rmsprop", "matched-rmsprop"])
@pytest.mark.more
def test_rmsprop_under_a_constant_force_is_an_area_cosine(kind):
    """p' = -eta / sqrt(1 - exp(-lambda u)), of which 2/lambda arcosh(exp(lambda u/2)) is the
    integral; descent adds up eta / sqrt(1 - b2^k)."""
    eta, b2, times = 0.01, 0.9, np.array([0.0, 1, 2, 7, 80])
    rule = dynsim.rmsprop(eta, b2=b2, eps=1e-9)
    given = {"key": KEY, "record": WEIGHTS}
    found = odes.flow(Pull(), rule, times, kind=kind, tolerances=PRECISE, **given)["all"]
    decay, shift = {
        "rmsprop": (1 - b2, -np.log(b2) / (1 - b2)),
        "matched-rmsprop": (-np.log(b2), 0.5),
    }[kind]
    integral = lambda u: 2 / decay * np.arccosh(np.exp(decay * u / 2))
    if kind == "rmsprop":
        moved = integral(times + shift) - integral(shift)
    else:
        first = (1 - b2) ** -0.5
        moved = np.where(times > 0, first + integral(times + shift) - integral(1 + shift), 0)
    # The solver's tolerances, and eps beside a gradient of 0.5.
    want = np.array([1, 2]) - eta * moved[:, None] * np.array([1, -1])
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-8)
    descent = odes.descent(Pull(), rule, times, **given)["all"]
    steps = np.cumsum((1 - b2 ** np.arange(1.0, 81)) ** -0.5)
    np.testing.assert_allclose(descent[-1, 0], 1 - eta * steps[-1], rtol=0, atol=1e-9)
    # Half a step at most, of the first one's length; a tenth of that where it is exact.
    gap = np.abs(moved[1:] - steps[times[1:].astype(int) - 1])
    assert gap.max() < (1 if kind == "rmsprop" else 0.04)


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.full), 0.8])
@pytest.mark.more
def test_signs_under_a_constant_force_move_by_the_sum_of_the_rates(momentum):
    eta = schedules.warmup_stable_decay(0.05, 30, 40, 0.1, warmup=3)
    rule, times = dynsim.sign(eta, momentum=momentum), [0.0, 1, 2, 20, 60, 100]
    found = odes.flow(Pull(), rule, times, key=KEY, record=WEIGHTS, tolerances=PRECISE)
    descent = odes.descent(Pull(), rule, times, key=KEY, record=WEIGHTS)
    np.testing.assert_allclose(found["all"], descent["all"], rtol=0, atol=1e-9)
    assert found.source == ("matched" if momentum else "plain")


class Slide(dynsim.Problem):
    """A weight x held to half of another one, y, that falls at full speed from 3."""

    def init(self, key):
        return jnp.array([0.25, 3.0])

    def population_loss(self, params):
        x, y = params
        return 4 * (x - y / 2) ** 2 + 20 * y


def test_a_sign_flow_slides_along_the_zero_of_a_derivative():
    """Filippov's solution: x rises to y / 2 and stays there at half of the rate, where descent
    chatters. The force on x that is left is 1/2 of the width, |H| eta or more."""
    eta, times = 0.01, np.array([0.0, 50, 79, 120, 200])
    rule = dynsim.sign(eta)
    found = odes.flow(Slide(), rule, times, key=KEY, record=WEIGHTS)
    want = np.stack([np.minimum(0.25 + eta * times, (3 - eta * times) / 2), 3 - eta * times], 1)
    np.testing.assert_allclose(found["all"], want, rtol=0, atol=eta)
    # Away from zero nothing is smoothed.
    np.testing.assert_allclose(found["all"][:3], want[:3], rtol=0, atol=1e-8)
    steps = np.arange(100, 201)
    descent = odes.descent(Slide(), rule, steps, key=KEY, record=WEIGHTS)["all"][:, 0]
    assert np.ptp(descent - (3 - eta * steps) / 2) > eta


@pytest.mark.more
def test_nesterovs_flows_on_a_parabola_are_what_their_equations_give():
    """Corrected flows follow descent to second order; the matched flow is the exponential of its
    matrix."""
    mu, h = 0.7, 1.0  # the curvature of Line
    errors = {"corrected": [], "matched": []}
    for eta in (0.005, 0.0025):
        steps = round(1 / eta)
        rule = dynsim.sgd(eta, momentum=mu, nesterov=True)
        given = {"key": KEY, "record": {"p": lambda _, p: p}}
        descent = odes.descent(Line(), rule, [steps], **given)["p"][-1]
        for kind, found in errors.items():
            flow = odes.flow(Line(), rule, [steps], kind=kind, tolerances=PRECISE, **given)["p"][-1]
            found.append(abs(flow - descent))
        # In (p, v): d = mu v + h (p + eta d0 / 2) with d0 = mu v + h p, from t = 1/2 on.
        decay, look = -np.log(mu), 1 + eta * h / 2
        field = np.array([[-eta * h * look, -eta * mu * look], [decay * h / (1 - mu), -decay]])
        start = np.array([1, h / (1 - mu) * (1 - np.sqrt(mu))])
        np.testing.assert_allclose(flow, (expm(steps * field) @ start)[0], rtol=1e-8)
    orders = {kind: np.log2(np.divide(found[:-1], found[1:])) for kind, found in errors.items()}
    # What the next order changes at eta / (1 - mu) of 1/60 and 1/120.
    np.testing.assert_allclose(orders["corrected"], 2, atol=0.25)
    np.testing.assert_allclose(orders["matched"], 1, atol=0.3)


HESSIAN = np.array([1.0, 0.5])
START = np.array([1.0, 2.0])


class Quadratic(dynsim.Problem):
    """(w_0^2 + w_1^2 / 2) / 2 from (1, 2), whose weights are two groups."""

    def init(self, key):
        return {"a": jnp.array(START[0]), "b": jnp.array(START[1])}

    def groups(self, params):
        return {"a": "a", "b": "b"}

    def population_loss(self, params):
        return (params["a"] ** 2 + params["b"] ** 2 / 2) / 2


def pulse(begin, end, height=0.1):
    return lambda k: jnp.where((k >= begin) & (k < end), height, 0.0)


def loss(*eta_times):
    """After flows of both weights to these sums of rates."""
    return float(np.sum(HESSIAN * (START * np.exp(-HESSIAN * np.array(eta_times))) ** 2) / 2)


CYCLE = {"init_value": 0.0, "peak_value": 0.2, "decay_steps": 20, "warmup_steps": 5}
RESTARTS = optax.sgdr_schedule([CYCLE, CYCLE])
TABLE = 0.2 / np.sqrt(np.arange(1.0, 41.0))
ONE_RATE = {
    "pulse": (pulse(500, 510), 600, 1.0),
    "two pulses": (lambda k: pulse(3, 4)(k) + pulse(900, 903)(k), 1000, 0.4),
    "index": (lambda k: jnp.asarray(TABLE)[k], 40, TABLE.sum()),
    "index of a floor": (lambda k: jnp.asarray(TABLE)[jnp.floor(k).astype(int)], 40, TABLE.sum()),
    "parity": (lambda k: 0.02 * (k & 1), 100, 1.0),
    "not at -1/2": (lambda k: jnp.where(k < 0, jnp.nan, 0.01), 100, 1.0),
    "last steps": (pulse(95, 100), 100, 0.5),
    "a pulse of a built-in schedule": (schedules.steps(0.0, (500, 510), (1, 0)), 600, 0.0),
    "warm restarts": (RESTARTS, 40, sum(float(RESTARTS(k)) for k in range(40))),
    # 20 steps up, 30 at the peak, 40 down to a tenth of it and 10 there: 9.5 + 30 + 22.45 + 1.
    "kinks": (schedules.warmup_stable_decay(0.05, 30, 40, 0.1, warmup=20), 100, 3.1475),
    "optax": (optax.piecewise_constant_schedule(0.1, {10: 0.1, 20: 0.0}), 500, 1.1),
}


@pytest.mark.parametrize("name", ONE_RATE)
@pytest.mark.more
def test_the_flow_of_one_rate_is_the_closed_form_in_the_sum_of_the_rates(name):
    eta, steps, total = ONE_RATE[name]
    flow = odes.flow(Quadratic(), dynsim.sgd(eta), [0, steps], key=KEY)
    # The tolerance of the solver; optax evaluates restarts in float32.
    rtol = 1e-6 if eta is RESTARTS else 1e-7
    np.testing.assert_allclose(flow["loss"], [loss(0, 0), loss(total, total)], rtol=rtol)
    assert flow.status == 0


@pytest.mark.more
def test_groups_of_weights_have_pulses_of_their_own():
    """One of them in the very last step; and a rough rate, which ends a step of the solver in each
    of 500 steps: these are no steps of the tolerance."""
    rates = {"a": pulse(700, 705), "b": pulse(799, 800, 0.9)}
    flow = odes.flow(Quadratic(), dynsim.sgd(rates), [0, 705, 799, 800], key=KEY)
    want = [loss(0, 0), loss(0.5, 0), loss(0.5, 0), loss(0.5, 0.9)]
    np.testing.assert_allclose(flow["loss"], want, rtol=1e-7)
    rough = np.random.default_rng(0).uniform(0, 4e-3, 500)
    rates, few = {"a": lambda k: jnp.asarray(rough)[k], "b": 0.0}, odes.Tolerances(max_steps=64)
    flow = odes.flow(Quadratic(), dynsim.sgd(rates), [0, 500], key=KEY, tolerances=few)
    assert flow.status == 0
    np.testing.assert_allclose(flow["loss"][-1], loss(rough.sum(), 0), rtol=1e-6)


PULSED = {
    "momentum": (lambda eta: dynsim.sgd(eta, momentum=0.5), "matched"),
    "nesterov": (lambda eta: dynsim.sgd(eta, momentum=0.5, nesterov=True), "matched"),
    "corrected": (dynsim.sgd, "corrected"),
    "adam": (dynsim.adam, "matched-adam"),
    "plain adam": (dynsim.adam, "adam"),
    "rmsprop": (dynsim.rmsprop, "matched-rmsprop"),
    "sign": (dynsim.sign, "plain"),
}


@pytest.mark.parametrize("name", PULSED)
@pytest.mark.more
def test_a_pulse_after_a_long_rest_moves_weights_as_descent_does(name):
    """For 500 steps nothing moves and averages settle, so that a solver takes long steps."""
    make, kind = PULSED[name]
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


def test_equations_and_formulas_of_ones_own_follow_the_steps_of_a_function():
    decay = odes.system(
        *("decay", "decay", "none", lambda t, state, training: -training.rate(t) * state),
        lambda training, w: jnp.ones(()),
        lambda t, state, training: {"loss": state},
    )
    formula = odes.closed_form(
        *("decay", "decay", "none"), lambda problem, init, time: {"loss": jnp.exp(-time)}
    )
    for theory, given in ((decay, {"key": KEY}), (formula, {})):
        rule = dynsim.sgd(pulse(500, 510))
        solved = theory.solve(Quadratic(), rule, [0, 504.5, 600.0], **given)
        np.testing.assert_allclose(solved["loss"], np.exp([0, -0.45, -1]), rtol=1e-7)


@pytest.mark.parametrize("name", ["plain", "symmetric"])
@pytest.mark.more
def test_a_layer_learns_in_a_pulse_as_in_as_many_steps(name):
    layer = dynsim.Layer(dynsim.Syn(1, 3, num_common=0, num_distinct=2), math.inf)
    solve = functools.partial(odes.theories(layer)[name].solve, layer, record="loss")
    pulsed = solve(dynsim.sgd(pulse(500, 510, 1.3)), [0, 600])
    constant = solve(dynsim.sgd(1.3, 1.3), [0, 10])
    np.testing.assert_allclose(pulsed["loss"], constant["loss"], rtol=1e-6)
    assert constant["loss"][1] < 0.9 * constant["loss"][0]


def test_training_records_the_sum_of_a_function():
    run = dynsim.train(
        *(Quadratic(), dynsim.sgd(pulse(50, 60)), KEY),
        steps=70,
        batch=float("inf"),
        times=[0, 55, 70],
        record="eta_time",
    )
    np.testing.assert_allclose(run["eta_time"], [0, 0.5, 1], rtol=1e-6)


SLOPES, FROM = np.array([1.0, 0.3]), np.array([0.5, 1.25])


def measured(weights):
    return {"first": jnp.sum(SLOPES * weights)}


def computed(training, start, times, *, record):
    zero, at = jnp.zeros((), int), lambda t: measured(start * jnp.exp(-t / 10 * SLOPES))
    return dynsim.Trajectory(times, jax.vmap(at)(times), None, zero, zero - 1)


class ReadsArrays(dynsim.Problem):
    """A bowl, and its flow by each way to make a theory, which read NumPy arrays of 64 bits."""

    def init(self, key):
        return jnp.asarray(FROM)

    def population_loss(self, params):
        return jnp.sum(SLOPES * params**2) / 2

    def observables(self):
        return {"first": lambda problem, params: measured(params)["first"]}

    @classmethod
    def theories(cls):
        title, always, key = ("its flow", "small steps"), lambda training: None, ("key",)
        field = lambda t, w, training: -training.rate(t) * SLOPES * w
        system = field, lambda training, w: w, lambda t, w, training: measured(w)
        formula = lambda problem, w, t: measured(w * jnp.exp(-t * SLOPES))
        return (
            odes.system("system", *title, *system),
            odes.closed_form("formula", *title, formula, needs=key),
            odes.computed("computed", *title, computed, always, adaptive=False),
        )


@pytest.mark.parametrize("name", ["system", "formula", "computed", "plain"])
def test_theories_have_the_arrays_that_they_read_in_their_own_precision(name):
    """JAX keeps what it has converted for another program, here one of the user in float64."""
    with jax.enable_x64(True):
        held = jax.make_jaxpr(lambda w: SLOPES * w)(jnp.ones(2))
    assert held.consts[0].dtype == "float64"
    problem, rule, solver = ReadsArrays(), dynsim.sgd(0.1), {}
    if name in {"system", "plain"}:
        solver = {"tolerances": odes.Tolerances(1e-6, 1e-6)}
    for dtype, rtol in (("float32", 3e-6), ("float64", 1e-6)):
        found = odes.theories(problem)[name].solve(
            problem, rule, [5.0], key=KEY, record="first", dtype=dtype, **solver
        )
        want = SLOPES @ (FROM * np.exp(-SLOPES / 2))
        np.testing.assert_allclose(found["first"][-1], want, rtol=rtol)
