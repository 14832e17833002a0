"""Flows of any problem: closed forms in the integral of the rate, and their order in eta against
descent, for schedules, rates by group and both kinds of decay."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import dynsim
import odes
from dynsim import schedules

KEY = jax.random.key(0)
PRECISE = odes.Tolerances(1e-10, 1e-12)


class Bowl(dynsim.Problem):
    """Three weights in a curved valley, in two groups."""

    height: float = 0.3

    def init(self, key):
        return {"a": jnp.float32(1.2), "b": jnp.array([0.5, -0.7])}

    def population_loss(self, params):
        a, (b, c) = params["a"], params["b"]
        return (a**2 * b - 1) ** 2 / 2 + (a * c + 0.5) ** 2 + self.height * jnp.cos(c)

    def groups(self, params):
        return {"a": "first", "b": "second"}


class Line(dynsim.Problem):
    def init(self, key):
        return jnp.float32(1)

    def population_loss(self, params):
        return params**2 / 2


def rate(name: str, eta: float, steps: int) -> Any:
    return {
        "constant": eta,
        "cosine": schedules.cosine(eta, 0.8 * steps, 0.1, warmup=0.2 * steps),
        "steps": schedules.steps(eta, (round(0.4 * steps),), (0.2,)),
        "by group": {"first": eta, "second": schedules.exponential(eta, steps, 0.3)},
    }[name]


def nesterov(eta: Any, **options: Any) -> dynsim.Rule:
    return dynsim.sgd(eta, momentum=0.6, nesterov=True, **options)


COUPLED, DECOUPLED = {"decay": 0.3}, {"decay": 0.3, "decoupled": True}
ADAM = {"b1": 0.6, "b2": 0.8, "eps": 0.5}
RMS = {"b2": 0.8, "eps": 0.5}
RULES = {
    "plain": (lambda eta: dynsim.sgd(eta, **COUPLED), None),
    "corrected": (lambda eta: dynsim.sgd(eta, **COUPLED), "corrected"),
    "corrected decoupled": (lambda eta: dynsim.sgd(eta, **DECOUPLED), "corrected"),
    "corrected momentum": (lambda eta: dynsim.sgd(eta, momentum=0.6, **COUPLED), "corrected"),
    "corrected momentum decoupled": (
        lambda eta: dynsim.sgd(eta, momentum=0.6, **DECOUPLED),
        "corrected",
    ),
    "matched": (lambda eta: dynsim.sgd(eta, momentum=0.6, **COUPLED), None),
    "decoupled": (lambda eta: dynsim.sgd(eta, momentum=0.6, **DECOUPLED), None),
    "adam": (lambda eta: dynsim.adam(eta, **ADAM, **COUPLED), None),
    "adamw": (lambda eta: dynsim.adamw(eta, **ADAM, decay=0.3), None),
    "nesterov rescaled": (lambda eta: nesterov(eta, **COUPLED), "rescaled"),
    "nesterov heavy-ball": (lambda eta: nesterov(eta, **COUPLED), "heavy-ball"),
    "nesterov": (lambda eta: nesterov(eta, **COUPLED), None),
    "nesterov decoupled": (lambda eta: nesterov(eta, **DECOUPLED), None),
    "corrected nesterov": (lambda eta: nesterov(eta, **COUPLED), "corrected"),
    "corrected nesterov decoupled": (lambda eta: nesterov(eta, **DECOUPLED), "corrected"),
    "rmsprop": (lambda eta: dynsim.rmsprop(eta, **RMS, **COUPLED), "rmsprop"),
    "matched rmsprop": (lambda eta: dynsim.rmsprop(eta, **RMS, **COUPLED), None),
    "matched rmsprop decoupled": (lambda eta: dynsim.rmsprop(eta, **RMS, **DECOUPLED), None),
}
SHOWN = {("corrected", "by group"), ("adamw", "constant")}


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [
        pytest.param(
            rule,
            schedule,
            marks=()
            if (rule, schedule) in SHOWN
            else pytest.mark.full(
                "test_flows_are_descent_to_the_order_that_they_promise",
                "test_nesterovs_flows_on_a_parabola_are_what_their_equations_give",
                "test_rmsprop_under_a_constant_force_is_an_area_cosine",
            ),
        )
        for rule in RULES
        for schedule in ("constant", "cosine", "steps", "by group")
    ],
)
@pytest.mark.more
def test_flows_are_descent_to_the_order_that_they_promise(rule: str, schedule: str) -> None:
    """Half the rate for twice the steps divides the error by two, by four in a corrected flow,
    once momentum has built up."""
    make, kind = RULES[rule]
    errors = []
    for eta, steps in ((0.02, 200), (0.01, 400)):
        made = make(rate(schedule, eta, steps))
        times = [0, steps // 8, steps // 4, steps // 2, steps]
        options = {"key": KEY, "record": {"all": lambda _, p: jnp.append(p["b"], p["a"])}}
        flow = odes.flow(Bowl(), made, times, kind=kind, tolerances=PRECISE, **options)
        descent = odes.descent(Bowl(), made, times, **options)
        assert (flow.status, descent.status) == (0, 0)
        errors.append(np.abs(flow["all"] - descent["all"]).max())
    # Of the next order a tenth is left at these rates.
    promised = 4 if kind == "corrected" else 2
    assert errors[0] / errors[1] > 0.85 * promised
    # A step of the largest rate.
    assert errors[0] < 0.02


@pytest.mark.parametrize("decoupled", [pytest.param(False, marks=pytest.mark.full), True])
@pytest.mark.more
def test_plain_flow_is_the_closed_form_in_eta_time(decoupled: bool) -> None:
    """p = exp(-(1 + lambda) sum of rates), across the kinks of a warm-up and its end."""
    eta = schedules.warmup_stable_decay(0.05, 30, 40, 0.1, warmup=20)
    rule = dynsim.sgd(eta, decay=0.5, decoupled=decoupled)
    times = np.array([0.0, 7.5, 20, 60, 100])
    found = odes.flow(Line(), rule, times, key=KEY, tolerances=PRECISE)
    with jax.enable_x64(True):
        want = np.exp(-1.5 * np.asarray(eta.eta_time(times)))
    np.testing.assert_allclose(found["loss"], want**2 / 2, rtol=1e-8)
    assert found.model.shape == ()


@pytest.mark.full(
    "odes/solver/test_flows.py::test_vmap_over_rates_marks_the_stiff_member_and_spares_the_others"
)
def test_a_batch_of_flows_is_one_program() -> None:
    run = lambda eta, height: odes.flow(
        Bowl(height), dynsim.sgd(schedules.cosine(eta, 50.0)), [50.0], key=KEY, dtype="float32"
    )["loss"][0]
    etas, heights = jnp.array([0.01, 0.1]), jnp.array([0.3, 0.5])
    found = jax.vmap(run)(etas, heights)
    np.testing.assert_allclose(found, [run(etas[i], heights[i]) for i in (0, 1)], rtol=1e-5)


class Pull(dynsim.Problem):
    """Two weights pulled at constant forces."""

    def init(self, key):
        return jnp.array([1.0, 2.0])

    def population_loss(self, params):
        return 3 * params[0] - 0.5 * params[1]


WEIGHTS = {"all": lambda problem, params: params}


@pytest.mark.parametrize("kind", ["rmsprop", "matched-rmsprop"])
@pytest.mark.more
def test_rmsprop_under_a_constant_force_is_an_area_cosine(kind: str) -> None:
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
def test_signs_under_a_constant_force_move_by_the_sum_of_the_rates(momentum: float) -> None:
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


@pytest.mark.more
def test_a_sign_flow_slides_along_the_zero_of_a_derivative() -> None:
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


class Basin(dynsim.Problem):
    """Three weights, each of which reaches the zero of its derivative at another time."""

    def init(self, key):
        return {"a": jnp.float32(0.4), "b": jnp.array([1.5, -4.0])}

    def population_loss(self, params):
        a, (b, c) = params["a"], params["b"]
        return 2 * a**2 + b**2 + c**2 / 2 + a * b / 2 + 0.6 * b * c + 0.1 * a * c + a**4 + b**4 / 4

    def groups(self, params):
        return {"a": "first", "b": "second"}


@pytest.mark.full(
    "test_signs_under_a_constant_force_move_by_the_sum_of_the_rates",
    "test_a_sign_flow_slides_along_the_zero_of_a_derivative",
)
@pytest.mark.parametrize("decay", [{}, COUPLED, DECOUPLED])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "steps", "by group"])
@pytest.mark.parametrize("kind", ["plain", "heavy-ball", "matched"])
def test_flows_of_signs_are_descent_to_first_order(
    kind: str, schedule: str, decay: dict[str, Any]
) -> None:
    """Half the rate for twice the steps halves the chatter, in the mean square over time as its
    phase is anybody's guess."""
    errors = []
    for eta, steps in ((0.01, 250), (0.005, 500)):
        momentum = 0.0 if kind == "plain" else 0.6
        rule = dynsim.sign(rate(schedule, eta, steps), momentum=momentum, **decay)
        record = {"all": lambda _, p: jnp.append(p["b"], p["a"])}
        given = {"times": np.arange(steps + 1), "key": KEY, "record": record}
        flow = odes.flow(Basin(), rule, kind=kind, **given)
        descent = odes.descent(Basin(), rule, **given)
        assert (flow.status, descent.status) == (0, 0)
        errors.append(np.sqrt(np.mean((flow["all"] - descent["all"]) ** 2)))
        # A few steps of chatter, more with momentum.
        assert errors[-1] < 2 * eta
    assert 1.5 < errors[0] / errors[1] < 3


@pytest.mark.more
def test_nesterovs_flows_on_a_parabola_are_what_their_equations_give() -> None:
    """Descent by the roots of r^2 - (1 + mu)(1 - eta h) r + mu (1 - eta h), which corrected flows
    follow to second order; the matched flow by the exponential of its matrix."""
    mu, h = 0.7, 1.0  # the curvature of Line
    errors = {"corrected": [], "matched": []}
    for eta in (0.005, 0.0025):
        steps = round(1 / eta)
        rule = dynsim.sgd(eta, momentum=mu, nesterov=True)
        roots = np.roots([1, -(1 + mu) * (1 - eta * h), mu * (1 - eta * h)])
        # From p_0 = 1 and p_1 = 1 - (1 + mu) eta h.
        weights = np.linalg.solve([[1, 1], roots], [1, 1 - (1 + mu) * eta * h])
        exact = (weights @ roots**steps).real
        given = {"key": KEY, "record": {"p": lambda _, p: p}}
        descent = odes.descent(Line(), rule, [steps], **given)["p"][-1]
        np.testing.assert_allclose(descent, exact, rtol=1e-12)
        for kind, found in errors.items():
            flow = odes.flow(Line(), rule, [steps], kind=kind, tolerances=PRECISE, **given)["p"][-1]
            found.append(abs(flow - exact))
        # In (p, v): d = mu v + h (p + eta d0 / 2) with d0 = mu v + h p, from t = 1/2 on.
        decay, look = -np.log(mu), 1 + eta * h / 2
        field = np.array([[-eta * h * look, -eta * mu * look], [decay * h / (1 - mu), -decay]])
        start = np.array([1, h / (1 - mu) * (1 - np.sqrt(mu))])
        np.testing.assert_allclose(flow, (expm(steps * field) @ start)[0], rtol=1e-8)
    orders = {kind: np.log2(np.divide(found[:-1], found[1:])) for kind, found in errors.items()}
    # What the next order changes at eta / (1 - mu) of 1/60 and 1/120.
    np.testing.assert_allclose(orders["corrected"], 2, atol=0.25)
    np.testing.assert_allclose(orders["matched"], 1, atol=0.3)


class Unheard(dynsim.SGD):
    """A rule that steps in a way of its own, of which it says no flow."""


class Unlearned(dynsim.Problem):
    def init(self, key):
        return jnp.ones(())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": dynsim.sgd(0.1, clip=1.0)}, "clip = 1.0: no flow describes it, as a clipped"),
        ({"rule": dynsim.sgd(0.1, noise=0.1)}, "noise = 0.1: no flow describes it, as a flow is"),
        (
            {"rule": Unheard(dynsim.sgd(0.1).eta)},
            "rule = Unheard: theories describe dynsim.SGD",
        ),
        (
            {"rule": dynsim.rmsprop(0.1), "kind": "plain"},
            "flow = 'plain': does not describe optimizer = rmsprop; must be one of matched-rmsprop",
        ),
        (
            {"rule": dynsim.sign(0.1), "kind": "matched"},
            "momentum = 0.0: must be finite and in (0, 1)",
        ),
        (
            {"rule": dynsim.from_optax(dynsim.sgd)},
            "rule = OptaxRule: theories describe",
        ),
        ({"rule": dynsim.sgd(lambda k: 0.1)}, None),
        ({"kind": "matched"}, "flow = 'matched': does not describe optimizer = sgd"),
        ({"problem": Unlearned()}, "Unlearned needs population_loss for a flow"),
        ({"key": None}, "key = None: starting weights are random; pass a key, or `init`"),
        ({"record": "batch_loss"}, "record = 'batch_loss': is of a batch; a flow has none"),
        ({"times": [3, 1]}, "times = [3, 1]: must be increasing and >= 0"),
    ],
)
@pytest.mark.more
def test_what_no_flow_describes_is_refused(changes: dict[str, Any], message: str | None) -> None:
    given = {"problem": Line(), "rule": dynsim.sgd(0.1), "times": [1.0], "key": KEY} | changes
    if message is None:
        odes.flow(**given)
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        odes.flow(**given)
