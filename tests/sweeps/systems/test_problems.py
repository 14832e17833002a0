"""Sweeps of a problem of one's own: their runs are those of `dynsim.train`, whatever is an axis."""

import dataclasses
import functools
import importlib.util
import json
import linecache
import math
import sys
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
from dynsim import Status, schedules
from sweeps import Experiment, Sweep
from sweeps.runner.config import config_of
from sweeps.runner.program import jobs
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


class Grouped(Net):
    """The last layer has a rate of its own."""

    def groups(self, params):
        return eqx.tree_at(lambda p: p.layers, jax.tree.map(lambda _: None, params), ("in", "out"))


RULE = dynsim.adamw(schedules.warmup_cosine(0.03, 2, 10), decay=0.1, clip=1.0)
AXES: dict[str, Any] = {
    "eta.peak": [0.01, 0.3],
    "eta.warmup": [0.0, 4.0],
    "decay": [0.0, 1.0],
    "noise": [0.1],
    "shift": [0.5, 2.0],
    "width": [3, 5],
    "batch": [4, 8],
    "seed": [0, 7],
}
RECORD = ("batch_loss", "update_norm", "output")


def alone(problem, rule, seed=0, steps=3, batch=4, record="output"):
    key = jax.random.fold_in(jax.random.key(0), seed)
    return dynsim.train(problem, rule, key, steps=steps, batch=batch, record=record, times=[steps])


@pytest.mark.more
def test_a_run_of_a_sweep_is_the_run_that_train_makes():
    # A program for each width, which has a batch of its own.
    sizes = (("width", "batch"),)
    found = sweeps.run(Sweep(Experiment(Net(), RULE, steps=10), AXES, record=RECORD, zip=sizes))
    assert (found.status == Status.OK).all()
    chosen = {"decay": 1.0, "shift": 2.0, "width": 5, "seed": 7, "eta.peak": 0.3, "eta.warmup": 4.0}
    at = found.sel(chosen).squeeze()
    assert at.batch == 8
    rule = dynsim.adamw(schedules.warmup_cosine(0.3, 4, 10), decay=1.0, clip=1.0, noise=0.1)
    want = alone(Net(width=5, shift=2.0), rule, 7, steps=10, batch=8, record=RECORD)
    for name in RECORD:
        # Batches of other sizes are summed up in another order.
        np.testing.assert_allclose(at[name], want[name][-1], rtol=2e-5, atol=1e-6)


GROUPED = dynsim.sgd({"in": 0.1, "out": schedules.constant(0.2, warmup=2)})
LION = functools.partial(dynsim.from_optax, optax.lion, learning_rate=0.1)
# A problem, its rule, axes, and the rule that all last values of these stand for.
OTHERS = [
    (Net(), LION(weight_decay=0.0), {"weight_decay": [0.0, 0.5]}, LION(weight_decay=0.5)),
    pytest.param(
        Grouped(), GROUPED, {"eta.in": [0.0, 0.1], "eta.out.peak": [0.5], "eta.out.warmup": [1.0]},
        dynsim.sgd({"in": 0.1, "out": schedules.constant(0.5, warmup=1)}), marks=pytest.mark.full,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "rule", "axes", "last"), OTHERS)
@pytest.mark.more
def test_other_rules_are_those_of_train(problem, rule, axes, last):
    found = sweeps.run(Sweep(Experiment(problem, rule, 3, 4), axes, record="output")).output.values
    found = found.reshape(-1, found.shape[-1])
    np.testing.assert_allclose(found[-1], alone(problem, last)["output"][-1], rtol=1e-5)
    assert not np.allclose(found[0], found[-1])


class Clash(Net):
    """A setting called as a number of the rule is."""

    decay: float = 0.0


@pytest.mark.more
def test_a_number_of_the_rule_that_the_problem_has_too_is_called_after_it():
    axes = {"problem.decay": [0.0, 1.0], "rule.decay": [0.0, 1.0]}
    found = sweeps.run(Sweep(Experiment(Clash(), RULE, 10, 4), axes, record="output")).output
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[:, 0], found[:, 1])


@pytest.mark.more
def test_a_grid_of_numbers_is_one_program_and_found_again():
    jobs.forget()
    axes = {"eta.warmup": [1.0, 3.0], "decay": [0.0, 0.3], "shift": [0.0, 1.0]}
    for first in (0.1, 0.2):
        # Runs that diverge are data.
        axes["peak"] = [first, 1e30]
        found = sweeps.run(Sweep(Experiment(Net(), RULE, 10, 4), axes))
        assert (found.status.isel(peak=0) == Status.OK).all()
        assert (found.status.isel(peak=1) == Status.DIVERGED).all()
    assert len(jobs.PROGRAMS) == 1


@pytest.mark.more
def test_a_store_is_not_resumed_with_another_loss(tmp_path):
    """A class of the same name, of which a comment, or a number, is another one."""

    def made(body: str) -> type:
        file = tmp_path / "mine.py"
        file.write_text(f"import dynsim\nfrom {__name__} import Net\n\n\n{body}")
        linecache.checkcache(str(file))
        spec = importlib.util.spec_from_file_location("mine", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules["mine"] = module
        spec.loader.exec_module(module)
        return module.Mine

    head = "class Mine(Net):\n    def loss(self, params, data):\n"
    one, two = (f"{head}        return {n} * super().loss(params, data)\n" for n in (1.0, 2.0))
    run = lambda body, **given: sweeps.run(
        Sweep(Experiment(made(body)(**given), dynsim.sgd(0.1), 10, 4), {"eta": [0.1]}),
        tmp_path / "s",
    )
    run(one)
    run("# One\n" + one)
    refuses(lambda: run(two), "Mine.loss", error=sweeps.StoreError)
    inputs = np.linspace(0, 1, 10)
    refuses(lambda: run(one, inputs=inputs), "run.problem.inputs", error=sweeps.StoreError)


def half(k):
    return 0.5 + 0 * k


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
        text(rule=dynsim.sgd(half)),
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


class Plain(dynsim.Problem):
    """A quadratic loss, as steep as `factor`."""

    factor: float = 1.0

    def init(self, key):
        return jax.random.normal(key, (2,))

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 2))

    def loss(self, params, data):
        return self.factor * jnp.mean((data @ params) ** 2)

    def population_loss(self, params):
        return self.factor * jnp.sum(params**2)


class Tripled(Plain):
    """Building it twice would make it nine times as steep."""

    def build(self, rule):
        return dataclasses.replace(self, factor=3 * self.factor)


@pytest.mark.parametrize(
    ("theory", "name"), [("simulation", "batch_loss"), ("descent", "loss"), ("flow", "loss")]
)
@pytest.mark.more
def test_a_problem_is_built_once(theory, name):
    """A sweep has the runs that the problem has which `build` returns."""
    run = lambda problem, values: sweeps.run(
        Sweep(
            Experiment(problem, dynsim.sgd(0.1), 3, 4),
            {"factor": values, "seed": [0, 1]},
            theory=theory,
            record=[name],
        )
    )
    three, one = run(Tripled(), [1.0, 2.0]), run(Plain(), [3.0, 6.0])
    np.testing.assert_array_equal(three[name], one[name])
