"""What can be asked to be recorded: names, functions, both, and what other packages register."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
from dynsim import Trajectory
from dynsim.problem.observables import flow_table, table
from dynsim.two_stage import observables as two_stage_observables
from dynsim.yz import observables
from odes import qkv, symmetric, two_stage
from odes.yz import eq10
from tests.doors import refuses
from tests.extension import packages
from tests.systems import layers

pytestmark = pytest.mark.usefixtures("quick_theory")
TASK = dynsim.SynSmall().build()
KEY, RULE = jax.random.key(0), dynsim.sgd(1.0, 1.0)
STEPS = 2
EMBEDDED = dynsim.QKV(TASK, math.inf, width=TASK.M, embedding="identity")


def simulate(record: object) -> Trajectory:
    infinite = {"length": math.inf, "batch": math.inf}
    return layers.simulate(TASK, RULE, steps=STEPS, record=record, **infinite)


def train_prompts(record: object) -> Trajectory:
    task = dynsim.Prompts(d=4, length=5, pool=16, num_test=8)
    rule = dynsim.Annealed()
    return dynsim.train(task, rule, KEY, steps=None, batch=4, times=[0, 1], record=record)


def train_text(record: object) -> Trajectory:
    tokens = np.arange(40) % 5
    text = dynsim.Text(tokens, tokens, 5, tokens[None, :4])
    problem = dynsim.LanguageModel(text, width=8, mlp=0, length=4, num_held_out=2)
    return dynsim.train(problem, dynsim.sgd(0.1), KEY, steps=STEPS, batch=2, record=record)


def descend(record: object) -> Trajectory:
    return symmetric.descend(symmetric.symmetric_task(TASK), RULE, steps=STEPS, record=record)


def solve_two_stage(record: object) -> Trajectory:
    rule = two_stage.Rule(*(4 for _ in two_stage.Rule()))
    return two_stage.solve(dynsim.Prompts(), dynsim.Annealed(), [1.0], record=record, rule=rule)


def solve_qkv(record: object) -> Trajectory:
    return qkv.FACTORS.solve(EMBEDDED, dynsim.sgd(0.1), [1.0], key=KEY, record=record)


# A name of each, and what its loop records besides.
RUNS = {
    simulate: ("loss", ("batch_loss", "relative_loss")),
    train_prompts: ("K1", ("batch_loss", "eta_time")),
    train_text: ("loss", ("batch_loss", "relative_loss")),
    descend: ("loss", ("batch_loss", "relative_loss")),
    solve_two_stage: ("K1", ()),
    solve_qkv: ("loss", ()),
}
# Those that draw text or prompts have the resolver of the others, and more to compile.
LARGE = (train_text, train_prompts, solve_two_stage)


@pytest.mark.parametrize(
    "run",
    [pytest.param(r, marks=[pytest.mark.full] if r in LARGE else [], id=r.__name__) for r in RUNS],
)
def test_a_bare_name_is_one_name(run: Callable[[object], Trajectory]) -> None:
    name, provided = RUNS[run]
    found = run(name)
    assert set(found.observables) - {"batch_loss"} == {name}
    assert np.isfinite(found[name]).all()
    assert {"batch_loss"} & set(provided) <= set(found.observables)


@pytest.mark.parametrize(
    ("run", "mine"),
    [
        (simulate, lambda task, s: 2 * observables.loss(task, s)),
        (train_prompts, lambda s: 2 * jnp.mean(jnp.logaddexp(0, -s.labels * s.total.P))),
        (descend, lambda task, state, now: 2 * now.loss),
    ],
    ids=["simulate", "train_prompts", "descend"],
)
@pytest.mark.more
def test_names_and_functions_mix(run: Callable[[object], Trajectory], mine: object) -> None:
    name, provided = RUNS[run]
    found = run([*provided, {"mine": mine}, name, name])
    assert set(found.observables) >= {"mine", name, *provided}
    np.testing.assert_allclose(found["mine"], 2 * np.asarray(found[name]), rtol=1e-5)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_unknown_names_are_errors_that_list_the_allowed_ones(
    run: Callable[[object], Trajectory],
) -> None:
    name, provided = RUNS[run]
    refuses(lambda: run(["l"]), "record", "'l'", name, *provided)


def test_the_growth_factor_bound_is_recorded_where_it_is_integrated() -> None:
    found = eq10.solve(TASK, RULE, [0.0, 1.0], record="B")
    assert np.all(found["B"][1] > found["B"][0])
    for run in (simulate, solve_qkv):
        refuses(lambda run=run: run(["loss", "B"]), "record", "'B'", "Eq. 10")


def test_weights_are_recorded_only_where_a_theory_solves_for_them() -> None:
    reduction = odes.problem.Reduction(lambda *_: 0.0, lambda *_: 0.0, lambda *_: ())
    for record in ("params", "sharpness"):
        options = {"key": KEY, "kind": "plain", "reduction": reduction, "record": record}
        refuses(lambda options=options: odes.flow(dynsim.Layer(TASK), RULE, [1], **options), record)


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
    found = train_text(["loss", "steep"])
    assert found["steep"][0] > found["loss"][0]
    assert "margin" in flow_table(EMBEDDED).names()
    assert "sharpness" not in flow_table(EMBEDDED).names()
    assert "sharpness" in flow_table(EMBEDDED, whole=True).names()
    assert "margin" not in two_stage_observables.TABLE.names()
    refuses(lambda: simulate("steep"), "record", "'steep'", "margin")


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
