"""Flows of any problem: closed forms in the integral of the rate, and their order in eta against
descent, for schedules, rates by group and both kinds of decay."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


RULES = {
    "plain": (lambda eta: dynsim.sgd(eta, decay=0.3), None),
    "corrected": (lambda eta: dynsim.sgd(eta, decay=0.3), "corrected"),
    "corrected momentum": (lambda eta: dynsim.sgd(eta, momentum=0.6, decay=0.3), "corrected"),
    "matched": (lambda eta: dynsim.sgd(eta, momentum=0.6, decay=0.3), None),
    "decoupled": (lambda eta: dynsim.sgd(eta, momentum=0.6, decay=0.3, decoupled=True), None),
    "adam": (lambda eta: dynsim.adam(eta, b1=0.6, b2=0.8, eps=0.5, decay=0.3), None),
    "adamw": (lambda eta: dynsim.adamw(eta, b1=0.6, b2=0.8, eps=0.5, decay=0.3), None),
}
SHOWN = {
    ("plain", "by group"),
    ("corrected", "cosine"),
    ("corrected", "steps"),
    ("matched", "cosine"),
    ("decoupled", "steps"),
    ("adamw", "cosine"),
}


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [
        pytest.param(
            rule,
            schedule,
            marks=()
            if (rule, schedule) in SHOWN
            else pytest.mark.full("test_flows_are_descent_to_the_order_that_they_promise"),
        )
        for rule in RULES
        for schedule in ("constant", "cosine", "steps", "by group")
    ],
)
def test_flows_are_descent_to_the_order_that_they_promise(rule: str, schedule: str) -> None:
    """Half the rate for twice the steps divides the error by two, by four in a corrected flow."""
    make, kind = RULES[rule]
    errors = []
    for eta, steps in ((0.02, 200), (0.01, 400)):
        made, times = make(rate(schedule, eta, steps)), [0, steps // 2, steps]
        options = {"key": KEY, "record": "loss"}
        flow = odes.flow(Bowl(), made, times, kind=kind, tolerances=PRECISE, **options)
        descent = odes.descent(Bowl(), made, times, **options)
        assert (flow.status, descent.status) == (0, 0)
        gaps = jax.tree.map(lambda x, y: np.abs(x - y).max(), flow.params, descent.params)
        errors.append(max(map(float, jax.tree.leaves(gaps))))
    # Of the next order a tenth is left at these rates.
    promised = 4 if kind == "corrected" else 2
    assert errors[0] / errors[1] > 0.85 * promised
    assert errors[0] < 2e-3


@pytest.mark.parametrize("decoupled", [False, True])
def test_plain_flow_is_the_closed_form_in_eta_time(decoupled: bool) -> None:
    """p = exp(-(1 + lambda) sum of rates), across the kinks of a warm-up and its end."""
    eta = schedules.warmup_stable_decay(0.05, 20, 30, 40, 0.1)
    rule = dynsim.sgd(eta, decay=0.5, decoupled=decoupled)
    times = np.array([0.0, 7.5, 20, 60, 100])
    found = odes.flow(Line(), rule, times, key=KEY, tolerances=PRECISE)
    with jax.enable_x64(True):
        want = np.exp(-1.5 * np.asarray(eta.eta_time(times)))
    np.testing.assert_allclose(found["loss"], want**2 / 2, rtol=1e-8)
    assert found.model.shape == ()


def test_a_batch_of_flows_is_one_program() -> None:
    run = lambda eta, height: odes.flow(
        Bowl(height), dynsim.sgd(schedules.cosine(eta, 50.0)), [50.0], key=KEY, dtype="float32"
    )["loss"][0]
    etas, heights = jnp.array([0.01, 0.1]), jnp.array([0.3, 0.5])
    found = jax.vmap(run)(etas, heights)
    np.testing.assert_allclose(found, [run(etas[i], heights[i]) for i in (0, 1)], rtol=1e-5)


class Unlearned(dynsim.Problem):
    def init(self, key):
        return jnp.ones(())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": dynsim.sgd(0.1, clip=1.0)}, "clip = 1.0: no flow describes it, as a clipped"),
        ({"rule": dynsim.sgd(0.1, noise=0.1)}, "noise = 0.1: no flow describes it, as a flow is"),
        ({"rule": dynsim.sign(0.1)}, "rule = sign: no flow describes it; those that have one"),
        ({"rule": dynsim.rmsprop(0.1)}, "rule = rmsprop: no flow describes it"),
        ({"rule": dynsim.sgd(0.1, momentum=0.9, nesterov=True)}, "rule = nesterov: no flow"),
        ({"rule": dynsim.from_optax(dynsim.sgd)}, "rule = OptaxRule: must be of dynsim"),
        ({"rule": dynsim.sgd(lambda k: 0.1)}, None),
        ({"kind": "matched"}, "flow = 'matched': needs momentum"),
        ({"problem": Unlearned()}, "Unlearned has no method 'population_loss'"),
        ({"key": None}, "key = None: starting weights need one, or `init`"),
        ({"record": "batch_loss"}, "record = 'batch_loss': is of a batch; a flow has none"),
        ({"times": [3, 1]}, "times = [3, 1]: must be >= 0 and increase"),
    ],
)
def test_what_no_flow_describes_is_refused(changes: dict[str, Any], message: str | None) -> None:
    given = {"problem": Line(), "rule": dynsim.sgd(0.1), "times": [1.0], "key": KEY} | changes
    if message is None:
        odes.flow(**given)
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        odes.flow(**given)
