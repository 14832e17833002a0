"""What can be asked to be recorded: names, functions, both, and what other packages register."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Trajectory
from dynsim.problem.observables import flow_table, table
from dynsim.two_stage import observables as two_stage_observables
from dynsim.yz import observables
from odes import symmetric
from tests.doors import refuses
from tests.extension import packages
from tests.systems import layers

pytestmark = pytest.mark.usefixtures("quick_theory")
TASK = dynsim.SynSmall().build()
KEY, RULE, STEPS = jax.random.key(0), dynsim.sgd(1.0, 1.0), 2
EMBEDDED = dynsim.QKV(TASK, math.inf, width=TASK.M, embedding="identity")


def simulate(record: object) -> Trajectory:
    infinite = {"length": math.inf, "batch": math.inf}
    return layers.simulate(TASK, RULE, steps=STEPS, record=record, **infinite)


def train_prompts(record: object) -> Trajectory:
    task = dynsim.Prompts(d=4, length=5, pool=16, num_test=8)
    rule = dynsim.Annealed()
    return dynsim.train(task, rule, KEY, steps=None, batch=4, times=[0, 1], record=record)


def descend(record: object) -> Trajectory:
    return symmetric.descend(symmetric.symmetric_task(TASK), RULE, steps=STEPS, record=record)


@pytest.mark.parametrize(
    ("run", "mine", "name", "provided"),
    [
        (simulate, lambda task, s: 2 * observables.loss(task, s), "loss", "relative_loss"),
        (
            train_prompts,
            lambda s: 2 * jnp.mean(jnp.logaddexp(0, -s.labels * s.total.P)),
            "K1",
            "eta_time",
        ),
        (descend, lambda task, state, now: 2 * now.loss, "loss", "relative_loss"),
    ],
)
@pytest.mark.more
def test_names_and_functions_mix(
    run: Callable[[object], Trajectory], mine: object, name: str, provided: str
) -> None:
    found = run(["batch_loss", provided, {"mine": mine}, name, name])
    assert set(found.observables) >= {"mine", name, "batch_loss", provided}
    np.testing.assert_allclose(found["mine"], 2 * np.asarray(found[name]), rtol=1e-5)


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a distribution with entry points whose values are in the module `outsider`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "outsider.py").write_text(
        "def margin(task, s):\n    return s.logits.max()\n\n"
        "def steep(s):\n    return s.losses.max()\n\nnumber = 3\n"
    )
    packages.forget()

    def write(name: str = "outsider", **points: str) -> None:
        entries = {point: f"outsider:{value}" for point, value in points.items()}
        packages.write(tmp_path, name, entries={"dynsim.observables": entries})

    yield write
    packages.forget()


@pytest.mark.more
def test_registered_observables_are_recorded_by_name(register: Callable[..., None]) -> None:
    register(**{"yz.margin": "margin", "transformer.steep": "steep"})
    found = simulate(["margin", {"again": lambda task, s: s.logits.max()}])
    np.testing.assert_array_equal(found["margin"], found["again"])
    assert found["margin"][-1] > 0
    tokens = np.arange(40) % 5
    text = dynsim.Text(tokens, tokens, 5)
    problem = dynsim.LanguageModel(text, width=8, mlp=0, length=4, num_held_out=2)
    found = dynsim.train(problem, dynsim.sgd(0.1), KEY, steps=1, batch=2, record=["loss", "steep"])
    assert found["steep"][0] > found["loss"][0]
    assert "margin" in flow_table(EMBEDDED).names()
    assert "sharpness" not in flow_table(EMBEDDED).names()
    assert "sharpness" in flow_table(EMBEDDED, whole=True).names()
    assert "margin" not in two_stage_observables.TABLE.names()


def test_an_observable_of_qkv_goes_before_that_of_yz(register: Callable[..., None]) -> None:
    register(**{"yz.margin": "missing", "qkv.margin": "margin"})
    ((name, function),) = table(EMBEDDED).resolve("margin").functions
    assert (name, function.__module__) == ("margin", "outsider")
    refuses(lambda: observables.TRAINED.resolve("margin"), "yz.margin = outsider:missing")


@pytest.mark.parametrize(
    ("points", "named"),
    [
        ({"yz.gone": "gone"}, "yz.gone = outsider:gone"),
        ({"yz.gone": "number"}, "yz.gone = outsider:number"),
        ({"gone": "margin"}, "<system>"),
        ({"yz.": "margin"}, "<system>"),
    ],
)
def test_broken_entry_points_are_named(
    register: Callable[..., None], points: dict[str, str], named: str
) -> None:
    register(**points)
    refuses(lambda: observables.TRAINED.resolve("gone"), "outsider", named)
    # They are nobody's business who does not ask for them.
    assert observables.TRAINED.resolve("loss").functions


def test_one_name_registered_twice(register: Callable[..., None]) -> None:
    register("one", **{"yz.margin": "margin"})
    register("two", **{"yz.margin": "margin"})
    refuses(lambda: observables.MEASURED.names(), "of one", "of two", "yz.margin")
