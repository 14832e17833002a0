"""Sweeps of a problem of one's own: their runs are those of `dynsim.train`, whatever is an axis."""

import dataclasses
import json
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import odes
import sweeps
from dynsim import schedules
from sweeps import Experiment, Sweep
from sweeps.runner.config import config_of
from tests.doors import refuses


class Net(dynsim.Problem):
    """A small network on a fixed design, with a setting of each kind."""

    inputs: np.ndarray = eqx.field(default_factory=lambda: np.linspace(-1, 1, 10))
    width: int = 3
    shift: float = 0.5
    activation: Any = jnp.tanh

    def init(self, key):
        return eqx.nn.MLP("scalar", "scalar", self.width, 1, self.activation, key=key)

    def draw(self, key, batch):
        x = jax.random.choice(key, self.inputs, (batch,))
        return x, x**2 + self.shift

    def loss(self, params, data):
        return jnp.mean((jax.vmap(params)(data[0]) - data[1]) ** 2)

    def observables(self):
        return {"output": lambda problem, params: jax.vmap(params)(problem.inputs)}


RULE = dynsim.adamw(schedules.warmup_cosine(0.03, 2, 10), decay=0.1, clip=1.0)


class Clash(Net):
    """A setting called as a number of the rule is."""

    decay: float = 0.0


@pytest.mark.more
def test_a_number_of_the_rule_that_the_problem_has_too_is_called_after_it():
    axes = {"problem.decay": [0.0, 1.0], "rule.decay": [0.0, 1.0]}
    found = sweeps.run(Sweep(Experiment(Clash(), RULE, 10, 4), axes, record="output")).output
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[:, 0], found[:, 1])


def test_functions_are_named_and_have_no_address():
    """A store has to be resumed by another process. What functions do is part of programs."""

    def text(**changes):
        given = {"problem": Net(), "rule": RULE} | changes
        sweep = Sweep(Experiment(**given, steps=10, batch=4), {"seed": [0]})
        return json.dumps(config_of(sweep))

    made = [
        text(),
        text(problem=Net(inputs=np.ones(10))),
        text(problem=Net(activation=jax.nn.relu)),
        text(problem=Net(activation=lambda x: x)),
        text(rule=dynsim.sgd(jnp.cos)),
        text(rule=dynsim.sgd(lambda k: 1 / (k + 1))),
        text(rule=dynsim.from_optax(optax.lion, learning_rate=0.1)),
    ]
    assert len({*made}) == len(made)
    assert not [each for each in made if "0x" in each]


class Decay(dynsim.Problem):
    """One weight in a quadratic valley."""

    a: float = 0.5

    def init(self, key):
        return jnp.ones(1)

    def population_loss(self, params):
        return self.a * jnp.sum(params**2) / 2

    @classmethod
    def theories(cls):
        def steep(training):
            seen.append(float(training.problem.a))
            return "a > 1" if training.problem.a > 1 else None

        def decay(problem, init, time):
            return {"loss": problem.a * jnp.exp(-2 * problem.a * time) / 2}

        return (odes.closed_form("decay", "decay", "a < 1", decay, inapplicable=steep),)


seen: list[float] = []


def test_a_theory_is_asked_for_the_numbers_of_each_run():
    """And not for arrays of an axis, nor while JAX compiles, as `if` needs a number."""
    run = Experiment(Decay(), dynsim.sgd(0.1), steps=10, batch=math.inf)
    axes = {"eta": [0.1, 0.2], "a": [0.5, 0.7, 1.0]}
    found = sweeps.run(Sweep(run, axes, "decay", ["loss"]))
    eta, a = np.array(axes["eta"])[:, None], np.array(axes["a"])
    np.testing.assert_allclose(found["loss"], a * np.exp(-20 * eta * a) / 2, rtol=1e-12)
    steep = Sweep(run, {**axes, "a": [0.5, 1.5, 0.7]}, "decay", ["loss"])
    refuses(steep.check, "theory 'decay'", "a > 1")
    # Of many runs, evenly spread ones.
    many = np.linspace(0.1, 0.9, 3000)
    seen.clear()
    Sweep(run, {"a": many}, "decay", ["loss"]).check()
    places = np.unique(np.searchsorted(many, np.array(seen) - 1e-9))
    assert {0, 2999} <= {*places}
    assert 1000 <= len(places) < 1100


def deviation(problem, params):
    """An observable that the problem does not know."""
    return jnp.std(jax.vmap(params)(problem.inputs))


@pytest.mark.more
def test_functions_are_recorded_next_to_names(tmp_path):
    record = ("output", {"deviation": deviation})
    sweep = Sweep(Experiment(Net(), RULE, 10, 4), {"peak": [0.01, 0.1]}, record=record)
    found = sweeps.run(sweep, tmp_path / "s").load()
    want = np.std(found.output.values, axis=-1)
    # One pass over ten numbers in float32.
    np.testing.assert_allclose(found.deviation, want, rtol=1e-5)
    other = Sweep(sweep.run, sweep.axes, record=("output", {"deviation": lambda *_: 0.0}))
    refuses(lambda: sweeps.run(other, tmp_path / "s"), "functions", error=sweeps.StoreError)


class Tripled(Decay):
    """Building it twice would make it nine times as steep."""

    def build(self, rule):
        return dataclasses.replace(self, a=3 * self.a)


@pytest.mark.parametrize("theory", ["simulation", "descent", "flow"])
@pytest.mark.more
def test_a_problem_is_built_once(theory):
    """A sweep has the runs that the problem has which `build` returns."""

    def loss(problem, values):
        run = Experiment(problem, dynsim.sgd(0.1), 3, math.inf)
        return sweeps.run(Sweep(run, {"a": values}, theory, ["loss"])).loss

    np.testing.assert_array_equal(loss(Tripled(), [1.0, 2.0]), loss(Decay(), [3.0, 6.0]))
