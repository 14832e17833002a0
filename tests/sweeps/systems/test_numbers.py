"""Every number that can be an axis changes what is trained."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import sweeps
from dynsim import schedules
from sweeps import Experiment, Sweep
from sweeps.systems.training import names_of_numbers, partition


class Two(dynsim.Problem):
    """Two groups of weights on data with noise."""

    def init(self, key):
        return {"a": jnp.array([1.0, -0.5]), "b": jnp.array([0.3])}

    def groups(self, params):
        return {"a": "a", "b": "b"}

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))

    def loss(self, params, data):
        weights = jnp.concatenate([params["a"], params["b"]])
        return jnp.mean((weights[None] - data) ** 2 @ jnp.array([1.0, 2.0, 0.5]))

    def observables(self):
        return {"w": lambda problem, params: jnp.concatenate([params["a"], params["b"]])}


STEPS = 8
EVERY = {"decay": 0.1, "clip": 0.5, "noise": 0.2}
LARGE = {"b1": 0.5, "b2": 0.6, "eps": 0.1}
RULES: dict[str, tuple[dynsim.Rule, tuple[str, ...]]] = {
    "sgd": (dynsim.sgd(0.1, **EVERY), ("momentum",)),
    "momentum": (
        dynsim.sgd(schedules.linear(0.1, 6, 0.3, warmup=2), momentum=0.4, **EVERY),
        ("momentum", "eta.warmup", "eta.steps", "eta.end"),
    ),
    "nesterov": (
        dynsim.sgd(schedules.cosine(0.1, 6, 0.3, warmup=2), momentum=0.4, nesterov=True, **EVERY),
        ("momentum", "eta.warmup", "eta.steps", "eta.end"),
    ),
    "rmsprop": (
        dynsim.rmsprop(schedules.exponential(0.1, 6, 0.5, warmup=2), b2=0.6, eps=0.1, **EVERY),
        ("b2", "eps", "eta.warmup", "eta.steps", "eta.factor"),
    ),
    "adam": (
        dynsim.adam(schedules.inverse_sqrt(0.1, warmup=3), **LARGE, **EVERY),
        ("b1", "b2", "eps", "eta.warmup"),
    ),
    "adamw": (
        dynsim.adamw(schedules.warmup_stable_decay(0.1, 2, 3, 0.3, warmup=2), **LARGE, **EVERY),
        ("b1", "b2", "eps", "eta.warmup", "eta.stable", "eta.cooldown", "eta.end"),
    ),
    "sign": (
        dynsim.sign(schedules.steps(0.1, [4, 7], [0.5, 0.2], warmup=2), momentum=0.4, **EVERY),
        ("momentum", "eta.warmup"),
    ),
}


def swept(rule, axes, **options):
    """The weights at the end along axes, which come first."""
    run = Experiment(Two(), rule, STEPS, 4)
    return sweeps.run(Sweep(run, axes, record="w", **options)).w.values


def trained(rule):
    key = jax.random.fold_in(jax.random.key(0), 0)
    found = dynsim.train(Two(), rule, key, steps=STEPS, batch=4, record="w", times=[STEPS])
    return found["w"][-1]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("sgd", "adamw") else [pytest.mark.full]) for n in RULES],
)
@pytest.mark.more
def test_an_axis_changes_the_run(name):
    rule, own = RULES[name]
    numbers = partition(Experiment(Two(), rule, STEPS).training())[0]
    usual = dict(zip(names_of_numbers(numbers), jax.tree.leaves(numbers), strict=True))
    peak = "eta.peak" if "eta.warmup" in own else "eta"
    usual[peak] = rule.eta.peak
    read = (peak, *EVERY, *own)
    # The first run is the rule itself, and each of the others changes one number.
    axes = {number: [usual.get(number, 0.0)] * (1 + len(read)) for number in read}
    for i, number in enumerate(read, 1):
        axes[number][i] = 0.6 * usual.get(number, 0.0) or 0.3
    first, *others = swept(rule, axes, zip=(read,))
    np.testing.assert_allclose(first, trained(rule), rtol=1e-6)
    for number, other in zip(read, others, strict=True):
        assert not np.array_equal(first, other), number


@pytest.mark.more
def test_numbers_by_group_change_the_run():
    rule = dynsim.sgd({"a": 0.1, "b": 0.2}, decay={"a": 0.1}, noise={"b": 0.1})
    axes = ("eta.a", "eta.b", "decay.a", "noise.b")
    values = {n: [0.1, *(0.3 if n == each else 0.1 for each in axes)] for n in axes}
    first, *others = swept(rule, values, zip=(axes,))
    for axis, other in zip(axes, others, strict=True):
        changed = [0, 1] if axis.endswith("a") else [2]
        assert np.flatnonzero(first != other).tolist() == changed, axis


class Own(dynsim.Rule):
    """A rule with a number that is called like one of Adam's."""

    b1: float = 0.9

    def direction(self):
        return optax.scale(self.b1)


LION = functools.partial(dynsim.from_optax, optax.lion, learning_rate=0.1)


@pytest.mark.parametrize(
    ("rule", "axis", "values", "same"),
    [
        (Own(dynsim.sgd(0.1).eta), "b1", [0.5, 0.9], lambda b1: dynsim.sgd(0.1 * b1)),
        (LION(weight_decay=0.0), "weight_decay", [0.0, 0.5], lambda w: LION(weight_decay=w)),
    ],
    ids=["own", "optax"],
)
@pytest.mark.more
def test_the_numbers_of_rules_from_outside_are_axes(rule, axis, values, same):
    for value, weights in zip(values, swept(rule, {axis: values}), strict=True):
        np.testing.assert_allclose(weights, trained(same(value)), rtol=1e-6)
