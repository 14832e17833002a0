"""Theories of problems: built in, and of other packages."""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import optax
import pytest

import dynsim
import odes
from odes import population, yz
from odes.hierarchy import applicable, theories
from odes.theory import Theory, refusal
from tests.extension import packages

TASK, SGD, ADAM = dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 1.0), dynsim.adam(1.0, 1.0)
PROMPTS = dynsim.Prompts()
OWN = Theory(
    "own",
    "my flow",
    "nothing",
    population.solve,
    lambda training: "it describes sgd" if training.rule.name == "adam" else None,
)
MODULE = """
import dataclasses

from odes.theory import Theory

def solve(task, optimizer, times, **options):
    raise NotImplementedError

GOOD = Theory("good", "a theory", "nothing", solve, lambda training: None)
PLAIN = dataclasses.replace(GOOD, name="plain")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package `their` with entry points for as long as the test runs."""

    def install(**entries: str) -> None:
        theories = {name.replace("__", "."): value for name, value in entries.items()}
        (tmp_path / "their.py").write_text(MODULE)
        packages.write(tmp_path, "their", entries={"dynsim.theories": theories})
        monkeypatch.syspath_prepend(tmp_path)
        packages.forget()

    yield install
    monkeypatch.undo()
    sys.modules.pop("their", None)
    packages.forget()


def test_a_registered_theory_stands_beside_the_built_in_ones(package: Callable[..., None]) -> None:
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
    ("entry", "message"),
    [
        ({"yz__bad": "their:MISSING"}, "entry point yz.bad = their:MISSING of their: cannot be"),
        ({"yz__bad": "nobody:THEORY"}, "= nobody:THEORY of their: cannot be loaded (Module"),
        ({"yz__bad": "their:solve"}, "entry point yz.bad = their:solve of their: must be a Theory"),
        ({"yz__bad": "their:GOOD"}, "of their: must be a Theory called 'bad', got Theory("),
        (
            {"yz__plain": "their:PLAIN"},
            "= their:PLAIN of their: yz already has a theory with this name",
        ),
        (
            {"good": "their:GOOD"},
            "point good = their:GOOD of their: must be named <problem>.",
        ),
    ],
)
def test_a_broken_registration_is_named(
    package: Callable[..., None], entry: dict[str, str], message: str
) -> None:
    known = [*theories(TASK)]
    package(**entry)
    with pytest.warns(UserWarning, match=re.escape(message)):
        found = theories(TASK)
    assert [*found] == known
    if "yz__bad" in entry:
        with pytest.raises(ValueError, match=re.escape(message)):
            found["bad"]
    # Those of this project are found all the same.
    assert found["plain"] is next(each for each in yz.THEORIES if each.name == "plain")


def test_a_function_and_the_theory_of_its_defaults_are_one() -> None:
    layer, prompts = theories(TASK), theories(PROMPTS)
    for name in ("eq10", "lemma3", "theorem4", "fixed_attention", "symmetric"):
        assert layer[name].solve is getattr(odes, name).solve
    assert layer["flow"].solve is odes.flow
    assert layer["central"].solve is odes.central_flow
    assert theories(Online())["sde"].solve is odes.sde
    assert prompts["ode"].solve is odes.two_stage.solve
    assert prompts["sde"].solve is odes.two_stage.solve_sde
    assert prompts["seeds"].solve is odes.two_stage.solve_seed


def test_a_theory_of_ones_own_is_checked_like_any_other() -> None:
    OWN.check(TASK, SGD)
    with pytest.raises(ValueError, match="theory 'own' does not apply: it describes sgd"):
        OWN.check(TASK, ADAM)


def test_the_other_problems_have_theories_too() -> None:
    fixed, rule = dynsim.Prompts(core="fixed"), dynsim.Annealed().build()
    for task in (PROMPTS, dynsim.FastPrompts(), dynsim.JointPrompts()):
        assert applicable(task, rule) == ("ode", "infinite", "anchored", "sde", "seeds")
    assert applicable(fixed, rule) == ()
    with pytest.raises(ValueError, match="theory 'sde' does not apply: core = 'fixed': must be"):
        theories(fixed)["sde"].check(fixed, rule)
    layer = dynsim.QKV(TASK.task, width=TASK.task.sizes[1], embedding="identity")
    assert applicable(layer, ADAM) == ("factors-finite-t", "factors", "matched-adam")
    needs = {name: each.needs for name, each in theories(PROMPTS).items()}
    assert {name: each for name, each in needs.items() if each} == {
        "anchored": ("key", "batch"),
        "sde": ("key",),
        "seeds": ("key", "num_test"),
    }


def test_refusals_are_values_errors_alone() -> None:
    assert refusal(int, "x").startswith("invalid literal")
    assert refusal(int, "1") is None
    with pytest.raises(TypeError):
        refusal(int, [])


class Backwards(dynsim.SGD):
    """Descends by twice the gradient."""

    def update(self, gradient: Any, memory: Any, *others: Any, **options: Any) -> Any:
        return super().update(jax.tree.map(lambda g: 2 * g, gradient), memory, *others, **options)


class Warm(dynsim.Layer):
    """Trains by twice the loss."""

    def loss_and_gradient(self, params: Any, data: Any) -> Any:
        return jax.tree.map(lambda x: 2 * x, super().loss_and_gradient(params, data))


class Watched(dynsim.Layer):
    """Measures something else, and trains as it always did."""

    def observables(self) -> dict[str, Any]:
        return {"mine": lambda task, snapshot: snapshot.z}


def made(cls: type, like: Any) -> Any:
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
def test_no_theory_describes_a_rule_or_a_problem_that_trains_in_its_own_way(
    task: dynsim.Problem, rule: dynsim.Rule
) -> None:
    assert applicable(task, rule, variants=True)
    assert applicable(task, made(Backwards, rule), variants=True) == ()
    lion = dynsim.from_optax(optax.lion, learning_rate=0.1)
    assert applicable(task, lion, variants=True) == ()
    with pytest.raises(
        ValueError, match=r"^rule = GradientTransformation.*: must be of type dynsim"
    ):
        applicable(task, optax.adamw(0.1))


def test_what_a_subclass_overrides_is_named() -> None:
    with pytest.raises(ValueError, match=r"^rule = Backwards: theories"):
        odes.flow(TASK, made(Backwards, SGD), [0, 1], key=jax.random.key(0))
    with pytest.raises(ValueError, match="Warm overrides 'loss_and_gradient' of Layer"):
        theories(made(Warm, TASK))["eq10"]
    assert "eq10" not in applicable(made(Warm, TASK), SGD)
    assert applicable(made(Watched, TASK), SGD) == applicable(TASK, SGD)


class Online(dynsim.Problem):
    """Has all that a problem can have."""

    def init(self, key: Any) -> Any:
        return jax.numpy.zeros(2)

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch, 2))

    def loss(self, params: Any, data: Any) -> Any:
        return jax.numpy.mean((data @ params) ** 2)

    def population_loss(self, params: Any) -> Any:
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
        (
            Online,
            {"sde", "corrected-sde"},
            {"flow", "linear-noise"},
            {"sde", "corrected-sde", "linear-noise"},
        ),
    ],
)
def test_sweeps_are_told_what_a_theory_is(
    problem: type[dynsim.Problem], drawn: set[str], single: set[str], steps: set[str]
) -> None:
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


def test_weights_that_start_small_have_flows_of_small_tolerances() -> None:
    for each in odes.hierarchy.of_class(dynsim.Regression).values():
        if each.adaptive and each.name != "flow":
            assert each.tolerances.rtol <= 1e-8
            assert each.tolerances.atol <= 1e-12
