"""Rules on an exact quadratic against loops in NumPy."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
from dynsim import Rule, schedules

pytestmark = pytest.mark.usefixtures("x64")
STEPS = 12
COSINE = schedules.cosine(0.3, 10, 0.1, warmup=3)
STEPPED = schedules.steps(0.2, (5,), (0.2,))
FUNCTION = schedules.as_schedule("eta", lambda k: 0.3 / (k + 1))
RULES: dict[str, Rule] = {
    "sgd": dynsim.sgd(COSINE, STEPPED, decay=0.05),
    "one rate": dynsim.sgd(COSINE, decay={"Z": 0.4}),
    "momentum": dynsim.sgd(STEPPED, FUNCTION, momentum=0.7),
    "nesterov": dynsim.sgd(
        COSINE, STEPPED, momentum=0.7, nesterov=True, decay={"Y": 0.05}, decoupled=True
    ),
    "clipped": dynsim.sgd(COSINE, STEPPED, momentum=0.7, clip=0.6, decay=0.05),
    "sign": dynsim.sign({"Y": COSINE, "Z": 0.01}, momentum=0.6),
    "sign of the gradient": dynsim.sign(STEPPED, decay=0.3, decoupled=True),
    "rmsprop": dynsim.rmsprop({"Y": COSINE, "Z": STEPPED}, b2=0.8, eps=1e-2),
    "adam": dynsim.adam(COSINE, STEPPED, b1=0.7, b2=0.95, eps=1e-2, decay=0.1, clip=0.9),
    "adamw": dynsim.adamw({"Y": COSINE, "Z": STEPPED}, decay=0.1, eps=1e-2, clip=0.9),
    "ratio": dynsim.sgd(dynsim.Ratio(STEPPED, ratio=1.5), momentum=0.5),
    "from optax": dynsim.from_optax(optax.sgd, learning_rate=0.01, momentum=0.7),
}
ROOT = np.random.default_rng(0).normal(size=(4, 5))
CURVATURE = np.pad(ROOT @ ROOT.T / 5, (0, 1))
"""The last weight has a gradient of zero at every rate."""
START = np.array([0.25, -2.0, 1.5, 1.0, 0.75])


class Quadratic(dynsim.Problem):
    """w C w / 2 on two groups of weights."""

    def init(self, key: Any) -> Any:
        return {"Y": jnp.array(START[:2]), "Z": jnp.array(START[2:])}

    def population_loss(self, params: Any) -> Any:
        w = jnp.concatenate([params["Y"], params["Z"]])
        return w @ (jnp.asarray(CURVATURE, w.dtype) @ w) / 2

    def groups(self, params: Any) -> Any:
        return {"Y": "Y", "Z": "Z"}


def rates(rule: Rule, k: int) -> np.ndarray:
    """Of each weight at step k, by the formulas of the schedules."""
    fall = (1 + math.cos(math.pi * (k - 3) / 7)) / 2
    cosine = 0.3 * (k / 3 if k < 3 else 0.1 + 0.9 * fall if k < 10 else 0.1)
    stepped = 0.2 if k < 5 else 0.04
    known = {id(COSINE): cosine, id(STEPPED): stepped, id(FUNCTION): 0.3 / (k + 1)}
    if isinstance(rule.eta, dynsim.Ratio):
        return np.repeat([1.5 * stepped, stepped], [2, 3])
    each = [rule.schedules.get(group, rule.schedules.get("")) for group in ("Y", "Z")]
    return np.repeat([known.get(id(one), 0.01) for one in each], [2, 3])


def descended(rule: Rule, scale: float = 1.0) -> dict[str, Any]:
    """Weights, losses and norms before each step, by the textbook, with rates times `scale`."""
    w, v, m, s = START, *np.zeros((3, 5))
    found: list[dict[str, Any]] = []
    # Of what another rule reads any number will do.
    b1, b2, eps = (getattr(rule, name, 0.5) for name in ("b1", "b2", "eps"))
    mu = 0.7 if rule.name == "optaxrule" else getattr(rule, "momentum", None) or 0.0
    lost = rule.decay if isinstance(rule.decay, dict) else {"": rule.decay or 0.0}
    coupled = np.repeat([lost.get(group, lost.get("", 0.0)) for group in ("Y", "Z")], [2, 3])
    coupled, free = (0.0, coupled) if rule.decoupled else (coupled, 0.0)
    for k in range(STEPS + 1):
        g = CURVATURE @ w
        norm = np.linalg.norm(g)
        grad = g * (1.0 if rule.clip is None else min(1.0, rule.clip / norm)) + coupled * w
        v, m, s = mu * v + grad, b1 * m + (1 - b1) * grad, b2 * s + (1 - b2) * grad**2
        first, second = m / (1 - b1 ** (k + 1)), s / (1 - b2 ** (k + 1))
        direction = {
            "sgd": grad,
            "momentum": v,
            "optaxrule": v,
            "nesterov": mu * v + grad,
            "sign": np.sign(v),
            "rmsprop": grad / (np.sqrt(s) + eps),
            "adam": first / (np.sqrt(second) + eps),
        }[rule.name.removesuffix("w")]
        step = -scale * rates(rule, k) * (direction + free * w)
        found.append({"params.Y": w[:2], "params.Z": w[2:], "loss": w @ CURVATURE @ w / 2})
        found[-1] |= {"gradient_norm": norm, "update_norm": np.linalg.norm(step)}
        w = w + step
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def trained(rule: Rule, record: Any = "loss", **options: Any) -> dynsim.Trajectory:
    given = {"steps": STEPS, "batch": math.inf, "dtype": "float64", "record": record}
    return dynsim.train(Quadratic(), rule, jax.random.key(0), **given | options)


@pytest.mark.parametrize("name", RULES)
def test_rules_are_those_of_the_textbook(name: str) -> None:
    want = descended(RULES[name])
    found = trained(RULES[name], ["loss", "params", "gradient_norm", "update_norm"])
    for observable, values in want.items():
        # Of float64, except that optax corrects Adam's averages in float32.
        tolerance = 2e-6 if "adam" in name else 1e-11
        np.testing.assert_allclose(found[observable], values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("derive", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize(
    ("make", "options"),
    [(dynsim.adam, {}), (dynsim.rmsprop, {}), (dynsim.adam, {"clip": 0.3})],
)
def test_derivatives_by_the_rate_are_differences_of_the_textbook(
    make: Any, options: Any, derive: Any
) -> None:
    """Where gradients are zero, as that of one weight is, quotients have infinite slopes."""
    last = lambda scale: trained(make(schedules.steps(0.2 * scale, (5,), (0.2,)), **options))
    found = derive(lambda scale: last(scale)["loss"][-1])(1.0)
    rule = make(STEPPED, **options)
    ends = [descended(rule, 1 + h)["loss"][-1] for h in (1e-6, -1e-6)]
    # Of the differences' own error, and Adam's corrections in float32.
    assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize(
    "make", [dynsim.adam, dynsim.rmsprop, lambda rate: dynsim.sgd(rate, clip=0.3), dynsim.sign]
)
def test_nothing_moves_at_a_minimum(make: Callable[..., Rule]) -> None:
    """All gradients are zero, and so are their norms."""
    record = ["loss", "gradient_norm", "update_norm"]
    last = lambda rate, w: trained(make(rate), record, init=w, steps=3, times=[3])["loss"][-1]
    still = {"Y": jnp.zeros(2), "Z": jnp.zeros(3)}
    by_rate, by_start = jax.grad(last, (0, 1))(0.05, still)
    assert by_rate == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(by_start))


def test_recorded_sharpness_leaves_derivatives_alone() -> None:
    """In the first step of the warm-up the rate is zero, as the last weight's gradient always."""

    def slope(*names: str) -> jax.Array:
        rule = lambda rate: dynsim.rmsprop(schedules.Constant(rate, warmup=2))
        last = lambda rate: trained(rule(rate), ["loss", *names], steps=4)["loss"][-1]
        return jax.jacfwd(last)(0.05)

    assert slope("preconditioned_sharpness") == pytest.approx(float(slope()), rel=1e-12)


def test_noise_is_normal_with_its_deviation_on_every_entry() -> None:
    """Clipping comes before it, so that a huge gradient leaves it as it is."""
    rule = dynsim.sgd(1.0, noise=0.5, clip=1e-9).astype("float64")
    zero, drawn = jnp.zeros((200, 100)), jax.random.normal(jax.random.key(0), (200, 100))
    update, _ = rule.update(zero + 1e6, rule.init(zero), zero, jnp.int32(0), drawn)
    assert float(jnp.mean(update)) == pytest.approx(0, abs=5 * 0.5 / 20_000**0.5)
    # The standard deviation of n numbers has an error of 1/sqrt(2 n).
    assert float(jnp.std(update)) == pytest.approx(0.5, rel=5 / 40_000**0.5)
    by_group = dynsim.sgd(1.0, noise={"b": 0.2}).astype("float64")
    gradient, drawn = ({"a": jnp.ones(3), "b": jnp.full((1, 1), size)} for size in (2.0, 0.5))
    groups = {"a": "a", "b": "b"}
    moved, _ = by_group.update(gradient, (), gradient, jnp.int32(0), drawn, groups)
    np.testing.assert_array_equal(moved["a"], -gradient["a"])
    np.testing.assert_allclose(moved["b"], -gradient["b"] - 0.2 * drawn["b"])


def test_what_a_rule_is_can_be_asked() -> None:
    """Inertia; whether it is nonlinear in the gradient; whether weights are treated one by one."""
    lion = dynsim.from_optax(optax.lion, learning_rate=0.1)
    for rule, name, inertia, adaptive, elementwise in (
        (dynsim.sgd(1.0), "sgd", False, False, True),
        (dynsim.sgd(1.0, momentum=0.5), "momentum", True, False, True),
        (dynsim.sgd(1.0, momentum=0.5, nesterov=True), "nesterov", True, False, True),
        (dynsim.sgd(1.0, clip=1.0), "sgd", False, False, False),
        (dynsim.sgd(1.0, noise=0.1), "sgd", False, False, False),
        (dynsim.sign(1.0), "sign", True, True, True),
        (dynsim.rmsprop(1.0), "rmsprop", False, True, True),
        (dynsim.adam(1.0), "adam", True, True, True),
        (dynsim.adamw(1.0, decay=0.1), "adamw", True, True, True),
        (lion, "optaxrule", False, True, False),
    ):
        assert rule.name == name
        properties = (rule.has_inertia, rule.is_adaptive, rule.is_elementwise)
        assert properties == (inertia, adaptive, elementwise), name
    assert lion.schedules == {}
    assert lion.of_groups("Y", "Z") is lion
    # The numbers of their papers unless others are given.
    assert dynsim.adam(0.3) == dynsim.Adam(0.3, 0.9, 0.999, 1e-8)
    assert dynsim.rmsprop(0.3) == dynsim.RMSProp(0.3, 0.9, 1e-8)
    assert dynsim.sign(0.3) == dynsim.Sign(0.3, 0.0)


def test_rates_by_group() -> None:
    """Y moves by the ratio times the scheduled rate of Z."""
    for rule in (dynsim.sgd(1.0, 0.1), dynsim.sgd(eta_y=1.0, eta_z=0.1)):
        assert rule == dynsim.sgd({"Y": 1.0, "Z": 0.1})
    by_ratio = dynsim.sgd(dynsim.Ratio(schedules.cosine(0.1, 20), ratio=3.0), momentum=0.5)
    by_group = dynsim.sgd(schedules.cosine(0.3, 20), schedules.cosine(0.1, 20), momentum=0.5)
    for found in (lambda r: r.rate(7), lambda r: r.flow_rate(2.5), lambda r: r.eta_time(4)):
        for group in ("Y", "Z"):
            assert float(found(by_ratio)[group]) == pytest.approx(float(found(by_group)[group]))
    assert by_ratio.of_groups("Y", "Z").schedules.keys() == {"Y", "Z"}
    default = dynsim.Ratio()
    assert {name: each.peak for name, each in default.rates.items()} == {"Y": 1.0, "Z": 0.1}
    assert float(dynsim.sgd({"slow": 0.1, "fast": COSINE}).eta_time(4)["slow"]) == pytest.approx(
        0.4
    )
