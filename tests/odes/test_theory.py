"""Which theories describe which rules and problems: built in, and of other packages."""

import dataclasses
import math
import sys

import jax
import optax
import pytest

import dynsim
import odes
from dynsim import schedules
from odes import yz
from odes.hierarchy import applicable, theories
from tests.extension import packages
from tests.odes.test_batch_noise import Bowl as Drawn
from tests.odes.test_problem import Bowl

TASK, SGD = dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 1.0)
PROMPTS = dynsim.Prompts()
MODULE = """
import dataclasses

from odes.theory import Theory

def solve(task, optimizer, times, **options):
    raise NotImplementedError

GOOD = Theory("good", "a theory", "nothing", solve, lambda training: None)
PLAIN = dataclasses.replace(GOOD, name="plain")
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package `their` with entry points for as long as the test runs."""

    def install(**entries):
        theories = {name.replace("__", "."): value for name, value in entries.items()}
        (tmp_path / "their.py").write_text(MODULE)
        packages.write(tmp_path, "their", entries={"dynsim.theories": theories})
        monkeypatch.syspath_prepend(tmp_path)
        packages.forget()

    yield install
    monkeypatch.undo()
    sys.modules.pop("their", None)
    packages.forget()


def test_a_registered_theory_stands_beside_the_built_in_ones(package):
    package(yz__good="their:GOOD", other__good="their:GOOD")
    found = theories(TASK)
    assert [*found][: len(yz.THEORIES)] == [each.name for each in yz.THEORIES]
    assert [*found][-1] == "good"
    assert found["good"].title == "a theory"
    assert applicable(TASK, SGD)[-1] == "good"
    assert "good" not in {**theories(PROMPTS), **theories(dynsim.QKV(TASK.task))}
    with pytest.raises(ValueError, match=r"theory = 'best': must be one of .*, good$"):
        found["best"]


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("yz__bad", "their:MISSING", "cannot be"),
        ("yz__bad", "nobody:THEORY", "cannot be"),
        ("yz__bad", "their:solve", "must be a Theory"),
        ("yz__bad", "their:GOOD", "'bad'"),
        ("yz__plain", "their:PLAIN", "already"),
        ("good", "their:GOOD", "<problem>."),
    ],
)
def test_a_broken_registration_is_a_warning_and_leaves_the_others(package, name, value, named):
    known = [*theories(TASK)]
    package(**{name: value})
    with pytest.warns(UserWarning, match=f"{name.replace('__', '.')} = {value}.*{named}"):
        found = theories(TASK)
    assert [*found] == known
    if name == "yz__bad":
        with pytest.raises(ValueError, match=named):
            found["bad"]
    assert found["plain"] is next(each for each in yz.THEORIES if each.name == "plain")


def test_the_other_problems_have_theories_too():
    fixed, rule = dynsim.Prompts(core="fixed"), dynsim.Annealed().build()
    for task in (PROMPTS, dynsim.FastPrompts(), dynsim.JointPrompts()):
        assert applicable(task, rule) == ("ode", "infinite", "anchored", "sde", "seeds")
    assert applicable(fixed, rule) == ()
    layer = dynsim.QKV(TASK.task, width=TASK.task.sizes[1], embedding="identity")
    adam = dynsim.adam(1.0, 1.0)
    assert applicable(layer, adam) == ("factors-finite-t", "factors", "matched-adam")
    needs = {name: each.needs for name, each in theories(PROMPTS).items() if each.needs}
    assert needs == {"anchored": ("key", "batch"), "sde": ("key",), "seeds": ("key", "num_test")}
    away = dynsim.Layer(TASK.task, start="uniform")
    lost = {*applicable(TASK, SGD, variants=True)} - {*applicable(away, SGD, variants=True)}
    assert lost == {"symmetric", "symmetric-finite-t"}


class Backwards(dynsim.SGD):
    """Descends by twice the gradient."""

    def update(self, gradient, memory, *others, **options):
        return super().update(jax.tree.map(lambda g: 2 * g, gradient), memory, *others, **options)


class Warm(dynsim.Layer):
    """Trains by twice the loss."""

    def loss_and_gradient(self, params, data):
        return jax.tree.map(lambda x: 2 * x, super().loss_and_gradient(params, data))


class Watched(dynsim.Layer):
    """Measures something else, and trains as it always did."""

    def observables(self):
        return {"mine": lambda task, snapshot: snapshot.z}


def made(cls, like):
    return cls(**{field.name: getattr(like, field.name) for field in dataclasses.fields(like)})


@pytest.mark.parametrize(
    ("task", "rule"),
    [
        (TASK, SGD),
        (dynsim.JoMA(TASK.task), dynsim.sgd(0.1)),
        (PROMPTS, dynsim.Annealed().build()),
        (dynsim.QKV(TASK.task), SGD),
    ],
    ids=["yz", "joma", "two_stage", "qkv"],
)
def test_no_theory_describes_a_rule_or_a_problem_that_trains_in_its_own_way(task, rule):
    assert applicable(task, rule, variants=True)
    assert applicable(task, made(Backwards, rule), variants=True) == ()
    lion = dynsim.from_optax(optax.lion, learning_rate=0.1)
    assert applicable(task, lion, variants=True) == ()
    if task is TASK:
        assert "eq10" not in applicable(made(Warm, task), rule)
        assert applicable(made(Watched, task), rule) == applicable(task, rule)


OF_PATHS = {"sde", "corrected-sde"}


class Online(dynsim.Problem):
    """Has all that a problem can have."""

    def init(self, key):
        return jax.numpy.zeros(2)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 2))

    def loss(self, params, data):
        return jax.numpy.mean((data @ params) ** 2)

    def population_loss(self, params):
        return jax.numpy.sum(params**2)


@pytest.mark.parametrize(
    ("problem", "drawn", "single", "steps"),
    [
        # Theories whose runs are random paths, that fill a machine, and that have no adaptive
        # solver, as formulas, maps and equal steps have none.
        (dynsim.Layer, set(), {"flow"}, {"fixed_attention", "fixed_attention-discrete"}),
        (dynsim.QKV, set(), {"flow"}, set()),
        (dynsim.Prompts, {"sde", "seeds"}, set(), {"sde", "seeds"}),
        (dynsim.Regression, set(), {"flow"}, {"scalar", "plateaus", "sigmoid"}),
        (dynsim.Retrieval, set(), {"flow"}, {"escape"}),
        (dynsim.JoMA, set(), {"flow"}, {"erf"}),
        (Online, OF_PATHS, {"flow", "linear-noise"}, OF_PATHS | {"linear-noise"}),
    ],
)
def test_sweeps_are_told_what_a_theory_is(problem, drawn, single, steps):
    known = odes.hierarchy.of_class(problem).values()
    whole = {"central"} if problem is not dynsim.Prompts else set()
    assert {each.name for each in known if each.drawn} == drawn
    assert {each.name for each in known if each.at_once == 1} == single
    assert {each.name for each in known if not each.adaptive} == steps | whole
    for each in known:
        # A path needs a key, and so does whatever starts at random weights.
        needs_none = problem is dynsim.Prompts and each.name in {"ode", "infinite"}
        needs_none |= problem is dynsim.Retrieval and each.name not in {"central", "flow"}
        needs_none |= each.name == "erf" or each.name.startswith("symmetric")
        assert ("key" in each.needs) != needs_none, each.name
        if problem is dynsim.Regression and each.adaptive and each.name != "flow":
            # Weights that start small have flows of small tolerances.
            assert each.tolerances.rtol <= 1e-8
            assert each.tolerances.atol <= 1e-12


FALLING = [schedules.linear(peak, 10) for peak in (1.0, 0.5)]
EVERY_RULE = {
    "sgd": dynsim.sgd(1.0, 0.5),
    "one schedule": dynsim.sgd(*FALLING),
    "a schedule of each": dynsim.sgd(FALLING[0], 0.5),
    "any schedule": dynsim.sgd(lambda step: 1 / (1 + step), 1.0),
    "decay": dynsim.sgd(1.0, 0.5, decay=0.1),
    "decoupled": dynsim.sgd(1.0, 0.5, decay=0.1, decoupled=True),
    "momentum": dynsim.sgd(1.0, 0.5, momentum=0.9),
    "nesterov": dynsim.sgd(1.0, 0.5, momentum=0.9, nesterov=True),
    "momentum, decay": dynsim.sgd(1.0, 0.5, momentum=0.9, decay=0.1),
    "momentum, decoupled": dynsim.sgd(1.0, 0.5, momentum=0.9, decay=0.1, decoupled=True),
    "clip": dynsim.sgd(1.0, 0.5, clip=1.0),
    "noise": dynsim.sgd(1.0, 0.5, noise=0.1),
    "adam": dynsim.adam(0.1, 0.1),
    "adam, b1 = 0": dynsim.adam(0.1, 0.1, b1=0.0),
    "adam, decoupled": dynsim.adam(0.1, 0.1, decay=0.1, decoupled=True),
    "rmsprop": dynsim.rmsprop(0.1),
    "rmsprop, b2 = 0": dynsim.rmsprop(0.1, b2=0.0),
    "rmsprop, decoupled": dynsim.rmsprop(0.1, decay=0.1, decoupled=True),
    "sign": dynsim.sign(0.1),
    "sign, momentum": dynsim.sign(0.1, 0.5),
}
DESCENT = {"sgd", "one schedule", "a schedule of each", "any schedule", "decay", "decoupled"}
MOMENTUM = {"momentum", "nesterov", "momentum, decay", "momentum, decoupled"}
OF_ADAM, RMSPROP = {"adam", "adam, decoupled"}, {"rmsprop", "rmsprop, decoupled"}
FIRST = DESCENT | MOMENTUM | OF_ADAM | RMSPROP | {"sign", "sign, momentum"}
"""What `odes.flow` describes by default: decays of 0 have no logarithm."""
FLOWS = {
    "plain": DESCENT | {"sign", "sign, momentum"},
    "matched": MOMENTUM | {"sign, momentum"},
    "corrected": DESCENT | MOMENTUM,
    "heavy-ball": MOMENTUM | {"sign", "sign, momentum"},
    "rescaled": MOMENTUM,
    "matched-adam": OF_ADAM,
    "corrected-adam": OF_ADAM | {"adam, b1 = 0"},
    "adam": OF_ADAM | {"adam, b1 = 0"},
    "matched-rmsprop": RMSPROP,
    "rmsprop": RMSPROP | {"rmsprop, b2 = 0"},
    "central": DESCENT | {"rmsprop", "rmsprop, b2 = 0"},
    "flow": FIRST,
}
# Without Y there is one time for both matrices, and nothing but gradients moves them.
ONE_TIME = {"sgd", "one schedule", "momentum", "nesterov"}
FIXED = ONE_TIME | {"a schedule of each", "any schedule"}
EQUATIONS = ("lemma3", "eq10-finite-m", "eq10", "eq10-paper", "eq10-remark-1", "theorem4")
LAYER = {
    "symmetric": FIRST,
    **dict.fromkeys(EQUATIONS, ONE_TIME),
    "fixed_attention": FIXED,
    "fixed_attention-discrete": FIXED - {"nesterov"},
}
NOISE = {
    "linear-noise": {*EVERY_RULE} - {"clip", "noise", "sign", "sign, momentum"},
    "sde": DESCENT | MOMENTUM,
    "corrected-sde": DESCENT | {"momentum", "momentum, decay"},
}
ONE_COMMON = dynsim.Syn(1, 3, num_common=1).build()
NAMED = {"corrected-adam", "central", "flow"}
"""Which no problem's theories run unless they are named."""


@pytest.mark.parametrize(
    ("problem", "described", "named"),
    [
        (Bowl(), FLOWS, NAMED | {"rescaled", "heavy-ball", "adam", "rmsprop"}),
        (
            dynsim.Layer(ONE_COMMON, math.inf),
            FLOWS | LAYER,
            NAMED | {"corrected", *LAYER} - {"eq10", "eq10-paper"},
        ),
        (Drawn(), NOISE, {*NOISE}),
    ],
    ids=["own", "layer", "drawn"],
)
def test_theories_describe_these_rules(problem, described, named):
    known = odes.theories(problem)
    every = {name for name in known if not name.endswith("-finite-t")}
    assert every == described.keys()
    for name, rules in described.items():
        found = {
            key for key, rule in EVERY_RULE.items() if known[name].why_not(problem, rule, 4) is None
        }
        assert found == rules, name
        assert known[name].variant == (name in named), name


def test_theories_of_finite_length_describe_what_those_of_infinite_length_do():
    """From the population flow down to those of RMSProp, where the layer has a length."""
    infinite, finite = (dynsim.Layer(ONE_COMMON, length) for length in (math.inf, 64))
    known = odes.theories(finite)
    pairs = [name for name in FLOWS if name not in {"central", "flow"}] + ["symmetric"]
    assert {f"{name}-finite-t" for name in pairs} == {x for x in known if x.endswith("-finite-t")}
    names = [*known]
    for name in pairs:
        both = known[f"{name}-finite-t"], known[name]
        assert names.index(name) == names.index(f"{name}-finite-t") + 1
        assert both[0].variant == both[1].variant
        for rule in EVERY_RULE.values():
            assert both[0].why_not(finite, rule, 4) == both[1].why_not(finite, rule, 4)
            assert "length = inf" in (both[0].why_not(infinite, rule, 4) or "")
