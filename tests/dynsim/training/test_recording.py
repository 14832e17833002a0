"""What can be asked to be recorded: names, functions, both, and what other packages register."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Trajectory, plugins
from dynsim import qkv as qkv_layer
from dynsim.problem.checks import flow_table, table
from dynsim.training.recording import Observable, Table
from dynsim.two_stage import observables as two_stage_observables
from dynsim.yz import observables
from odes import qkv, symmetric, two_stage
from odes.yz import eq10, population
from tests.extension import packages
from tests.systems import layers

pytestmark = pytest.mark.usefixtures("quick_theory")

TASK = dynsim.SynSmall().build()
KEY = jax.random.key(0)
STEPS = 2
EMBEDDED = dynsim.QKV(TASK, math.inf, width=TASK.M, embedding="identity")


def simulate(record: object) -> Trajectory:
    infinite = {"length": math.inf, "batch": math.inf}
    return layers.simulate(TASK, dynsim.sgd(1.0, 1.0), steps=STEPS, record=record, **infinite)


def simulate_qkv(record: object) -> Trajectory:
    return dynsim.train(EMBEDDED, dynsim.sgd(0.1), KEY, steps=STEPS, batch=math.inf, record=record)


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
    task = symmetric.symmetric_task(TASK)
    return symmetric.descend(task, dynsim.sgd(1.0, 1.0), steps=STEPS, record=record)


def solve(record: object) -> Trajectory:
    return symmetric.solve(
        symmetric.symmetric_task(TASK), dynsim.sgd(1.0, 1.0), [1.0], record=record
    )


def solve_two_stage(record: object) -> Trajectory:
    rule = two_stage.Rule(*(4 for _ in two_stage.Rule()))
    return two_stage.solve(dynsim.Prompts(), dynsim.Annealed(), [1.0], record=record, rule=rule)


def solve_population(record: object) -> Trajectory:
    return population.solve(TASK, dynsim.sgd(1.0, 1.0), [1.0], record=record)


def solve_qkv(record: object) -> Trajectory:
    factors = qkv.FACTORS
    return factors.solve(EMBEDDED, dynsim.sgd(0.1), [1.0], key=KEY, record=record)


# A name of each, and what its loop records besides.
RUNS = {
    simulate: ("loss", ("batch_loss", "relative_loss")),
    simulate_qkv: ("loss", ("batch_loss", "relative_loss")),
    train_prompts: ("K1", ("batch_loss", "eta_time")),
    train_text: ("loss", ("batch_loss", "relative_loss")),
    descend: ("loss", ("batch_loss", "relative_loss")),
    solve: ("loss", ()),
    solve_two_stage: ("K1", ()),
    solve_population: ("loss", ()),
    solve_qkv: ("loss", ()),
}


# Those that draw text or prompts have the resolver of the others, and more to compile.
LARGE = (train_text, train_prompts, solve_two_stage)


@pytest.mark.parametrize(
    "run",
    [pytest.param(r, marks=[pytest.mark.full] if r in LARGE else [], id=r.__name__) for r in RUNS],
)
@pytest.mark.more
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
def test_names_and_functions_mix(run: Callable[[object], Trajectory], mine: Observable) -> None:
    name, provided = RUNS[run]
    found = run([*provided, {"mine": mine}, name, name])
    assert set(found.observables) >= {"mine", name, *provided}
    np.testing.assert_allclose(found["mine"], 2 * np.asarray(found[name]), rtol=1e-5)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_unknown_names_are_told_the_allowed_ones(run: Callable[[object], Trajectory]) -> None:
    name, provided = RUNS[run]
    with pytest.raises(ValueError, match=f"record = 'l': must be one of {name},") as error:
        run(["l"])
    for known in provided:
        assert known in str(error.value)


@pytest.mark.parametrize("run", [simulate, simulate_qkv, solve_population, solve_qkv])
def test_the_growth_factor_bound_is_refused_before_tracing(
    run: Callable[[object], Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(*_: object) -> None:
        raise AssertionError("traced")

    monkeypatch.setattr(observables, "measure", traced)
    monkeypatch.setattr(qkv_layer, "measure", traced)
    with pytest.raises(ValueError, match=r"record = 'B': only the Eq. 10 and Theorem 4 theories"):
        run(["loss", "B"])


def test_the_growth_factor_bound_is_recorded_where_it_is_integrated() -> None:
    found = eq10.solve(TASK, dynsim.sgd(1.0, 1.0), [0.0, 1.0], record="B")
    assert np.all(found["B"][1] > found["B"][0])
    assert "B" in observables.PREDICTED.names()
    assert "B" not in observables.TRAINED.names()
    assert {"loss", "batch_loss", "relative_loss"} <= set(observables.TRAINED.names())


def first(task: object, s: object) -> object:
    return task, s


def test_names_of_recorded_weights_are_taken_where_the_loop_records_weights() -> None:
    with_weights = dataclasses.replace(observables.TRAINED, provided=("loss", "params"))
    with pytest.raises(ValueError, match=r"record = 'params\.Y': is recorded by the loop itself"):
        with_weights.resolve({"params.Y": first})
    assert dict(observables.TRAINED.resolve({"params.Y": first}).functions) == {"params.Y": first}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (3, "record = 3: must be a name"),
        (["loss", 3], "record: has 3"),
        ({"loss": "accuracy"}, "record: has {'loss': 'accuracy'}, must have functions by name"),
        ({3: first}, "record: has {3: "),
        ({"batch_loss": first}, "record = 'batch_loss': is recorded by the loop itself"),
        ({"time": first}, "record = 'time': is recorded by the loop itself"),
        ({"status": first}, "record = 'status': is recorded by the loop itself"),
        (["loss", {"loss": first}], "record = 'loss': names two functions"),
        ({"mine": type("F", (), {"__call__": first, "__hash__": None})()}, "must be hashable"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_recorded(record: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        observables.TRAINED.resolve(record)


@pytest.mark.usefixtures("unchecked")
def test_a_function_of_other_arguments_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"'mine': must take \(SequenceClasses, Snapshot\);.*'more'"
    ):
        simulate({"mine": lambda task, snapshot, more: snapshot.z})


def test_equal_requests_are_equal_and_hashable() -> None:
    table = observables.TRAINED
    assert table.resolve("loss") == table.resolve(["loss", "batch_loss"])
    assert hash(table.resolve("loss")) == hash(table.resolve(("loss", "loss")))
    assert table.resolve("loss") != table.resolve(["loss", "relative_loss"])
    assert table.resolve([]).functions == ()
    # Tables are told apart by identity.
    assert {table: 1}[table] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.systems = ()


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
        observables = {point: f"outsider:{value}" for point, value in points.items()}
        packages.write(tmp_path, name, entries={"dynsim.observables": observables})

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
    assert "margin" in observables.MEASURED.names()
    assert "steep" not in observables.MEASURED.names()
    assert "margin" not in two_stage_observables.TABLE.names()
    with pytest.raises(
        ValueError, match=r"record = 'steep': did you mean .* must be one of .*margin"
    ):
        simulate("steep")


def test_an_observable_of_qkv_goes_before_that_of_yz(register: Callable[..., None]) -> None:
    register(**{"yz.margin": "missing", "qkv.margin": "margin"})
    ((name, function),) = table(EMBEDDED).resolve("margin").functions
    assert (name, function.__module__) == ("margin", "outsider")
    with pytest.raises(ValueError, match=r"yz.margin = outsider:missing of outsider: cannot be"):
        observables.TRAINED.resolve("margin")


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"yz.gone": "gone"}, "point yz.gone = outsider:gone of outsider: cannot be loaded"),
        ({"yz.gone": "number"}, "point yz.gone = outsider:number of outsider: must be a function"),
        ({"gone": "margin"}, "point gone = outsider:margin of outsider: must be named <system>"),
        ({"yz.": "margin"}, "point yz. = outsider:margin of outsider: must be named <system>"),
    ],
)
def test_broken_entry_points_are_named(
    register: Callable[..., None], points: dict[str, str], message: str
) -> None:
    register(**points)
    with pytest.raises(ValueError, match=message):
        observables.TRAINED.resolve("gone")
    # They are nobody's business who does not ask for them.
    assert observables.TRAINED.resolve("loss").functions


def test_one_name_registered_twice(register: Callable[..., None]) -> None:
    register(**{"yz.margin": "margin"})
    register("another", **{"yz.margin": "margin"})
    with pytest.raises(ValueError, match=r"outsider|another.* has the same name"):
        observables.MEASURED.names()


def test_built_in_names_need_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(**_: str) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", asked)
    packages.forget()
    assert observables.TRAINED.resolve(["loss", "batch_loss"]).functions
    assert Table({}).names() == ()
    with pytest.raises(AssertionError, match="looked up"):
        observables.TRAINED.names()
