"""Every rule in training of the layers, against loops in NumPy on the population loss."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest

import dynsim
from dynsim import schedules
from dynsim.training.rule import Rule
from tests.systems import layers
from tests.systems.yz import Layer

pytestmark = pytest.mark.usefixtures("x64")

TASK = dynsim.SynMedium(1).build()
STEPS = 12
KEY = jax.random.key(3)
COSINE = schedules.cosine(0.8, 10, 0.1, warmup=3)
STEPPED = schedules.steps(0.3, (5,), (0.2,))
DECAY = {"decay": 0.05}
RULES: dict[str, Rule] = {
    "sgd": dynsim.sgd(COSINE, STEPPED, **DECAY),
    "one rate": dynsim.sgd(COSINE),
    "momentum": dynsim.sgd(STEPPED, COSINE, momentum=0.7),
    "nesterov": dynsim.sgd(COSINE, STEPPED, momentum=0.7, nesterov=True, **DECAY, decoupled=True),
    "clipped": dynsim.sgd(COSINE, STEPPED, momentum=0.7, clip=0.05, **DECAY),
    "sign": dynsim.sign({"Y": COSINE, "Z": 0.01}, momentum=0.6),
    "rmsprop": dynsim.rmsprop({"Y": COSINE, "Z": STEPPED}, b2=0.8, eps=1e-2),
    "adamw": dynsim.adamw({"Y": COSINE, "Z": STEPPED}, decay=0.1, eps=1e-2, clip=0.1),
}


def rates(rule: Rule, k: int) -> tuple[float, float]:
    """Of Y and Z at step k, by the formulas of the schedules."""
    fall = (1 + math.cos(math.pi * (k - 3) / 7)) / 2
    cosine = 0.8 * (k / 3 if k < 3 else 0.1 + 0.9 * fall if k < 10 else 0.1)
    known = {id(COSINE): cosine, id(STEPPED): 0.3 if k < 5 else 0.06}
    each = rule.schedules
    y, z = (each.get(group, each.get("")) for group in ("Y", "Z"))
    return known[id(y)], known.get(id(z), 0.01)


def descended(rule: Rule, steps: int) -> tuple[np.ndarray, ...]:
    """Y and Z after `steps` steps, by the textbook."""
    layer = Layer(TASK, rule, (0.0,))
    p = list(layer.weights())
    v, m, s = ([np.zeros_like(x) for x in p] for _ in range(3))
    # Of what another rule reads any number will do.
    mu, b1, b2, eps = (getattr(rule, name, 0.5) for name in ("mu", "b1", "b2", "eps"))
    coupled, free = (rule.decay or 0.0,) * 2
    coupled, free = (0.0, free) if rule.decoupled else (coupled, 0.0)
    for k in range(steps):
        g = [-x for x in layer.descent(*p)]
        norm = math.sqrt(sum((x**2).sum() for x in g))
        short = 1.0 if rule.clip is None else min(1.0, rule.clip / norm)
        for i, eta in enumerate(rates(rule, k)):
            grad = short * g[i] + coupled * p[i]
            v[i] = mu * v[i] + grad
            m[i] = b1 * m[i] + (1 - b1) * grad
            s[i] = b2 * s[i] + (1 - b2) * grad**2
            first, second = m[i] / (1 - b1 ** (k + 1)), s[i] / (1 - b2 ** (k + 1))
            d = {
                "sgd": grad,
                "momentum": v[i],
                "nesterov": mu * v[i] + grad,
                "sign": np.sign(v[i]),
                "rmsprop": grad / (np.sqrt(s[i]) + eps),
                "adam": first / (np.sqrt(second) + eps),
            }[rule.name.removesuffix("w")]
            p[i] = p[i] - eta * (d + free * p[i])
    return tuple(p)


def simulate(rule: Any, **options: Any) -> dynsim.Trajectory:
    return layers.simulate(
        TASK, rule, KEY, steps=STEPS, record="loss", **{"dtype": "float64", **options}
    )


# By default those of which each has something that no other has.
SHOWN = {"nesterov", "clipped", "sign", "rmsprop", "adamw"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SHOWN else [pytest.mark.full]) for n in RULES],
)
@pytest.mark.more
def test_rules_are_those_of_the_textbook(name: str) -> None:
    found = simulate(RULES[name], length=math.inf, batch=math.inf).params
    for got, want in zip((found.Y, found.Z), descended(RULES[name], STEPS), strict=True):
        # optax corrects Adam's averages in float32.
        assert np.abs(got - want).max() <= (2e-6 if name == "adamw" else 1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        dynsim.sgd(1.0, 0.5, clip=0.05),
        pytest.param(dynsim.sgd(1.0, 0.5, noise=0.01), marks=pytest.mark.full),
    ],
    ids=["clip", "noise"],
)
def test_rules_that_look_at_all_weights_train_each_of_them(rule: Rule) -> None:
    """From zero start, outputs are trained as one only under elementwise rules: the run from given
    zero weights keeps all of them apart."""
    zero = layers.initial_weights(TASK, "zero", KEY, "float64")
    found, want = (
        simulate(rule, batch=8, length=16),
        simulate(rule, batch=8, length=16, init=zero),
    )
    np.testing.assert_allclose(found.params.Y, want.params.Y, rtol=0, atol=1e-12)


def test_noise_differs_from_key_to_key_and_needs_one() -> None:
    rule = dynsim.sgd(1.0, 0.5, noise=0.01)
    quiet = simulate(dynsim.sgd(1.0, 0.5), length=math.inf, batch=math.inf).params.Y
    noisy = simulate(rule, length=math.inf, batch=math.inf).params.Y
    # The gradient hardly follows in twelve steps; the deviation of n numbers is good to 1/sqrt(2n).
    assert np.std(noisy - quiet) == pytest.approx(0.01 * math.sqrt(STEPS), rel=0.1)
    with pytest.raises(ValueError, match=r"key = None: .* noise are random and need one"):
        layers.simulate(TASK, rule, steps=3, length=math.inf, batch=math.inf)


@pytest.mark.parametrize(
    "layer",
    [
        dynsim.JoMA(TASK),
        pytest.param(dynsim.QKV(TASK, math.inf, width=TASK.M), marks=pytest.mark.full),
    ],
    ids=["joma", "qkv"],
)
@pytest.mark.more
def test_other_layers_take_any_rule_too(layer: dynsim.Problem) -> None:
    """Options that change nothing leave a run as it is, to rounding; a schedule that ends, ends
    it."""
    options = {"steps": 9, "times": [0, 4, 9], "record": "loss", "batch": math.inf}
    train = lambda rule: dynsim.train(layer, rule, KEY, **options)["loss"]
    flat, ended = (schedules.steps(0.2, (4,), (factor,)) for factor in (1.0, 0.0))
    plain = train(dynsim.sgd(0.2, 0.1))
    same = train(dynsim.sgd({"Y": flat, "Z": 0.1}, clip=1e9, decay=0.0, noise=0.0))
    np.testing.assert_allclose(same, plain, rtol=1e-6)
    stopped = train(dynsim.sgd(ended))
    assert stopped[0] > stopped[1] == stopped[2] > plain[2]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (dynsim.sgd({"Y": 1.0, "A": 1.0}), "eta: has a rate for 'A', Layer.groups has 'Y', 'Z'"),
        (dynsim.sgd(schedules.cosine(1.0, 40), 1.0), "eta['Y']: its schedule has 40 steps"),
        (dynsim.sgd(np.ones(2), 1.0), "rule: its numbers must be scalars, got shape (2,)"),
        (0.1, "rule = 0.1: must be of type dynsim.Rule"),
    ],
)
@pytest.mark.more
def test_rules_that_are_none_of_the_layer_are_refused(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulate(rule, batch=8, length=16)
