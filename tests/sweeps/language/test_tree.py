"""Runs as text and back, and values put into them."""

import json
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.language.describe import describe
from sweeps.language.fields import LanguageError
from sweeps.language.grammar import Language
from sweeps.language.tree import build, encode, put, toml
from tests.sweeps.language.catalog import (
    LANGUAGE,
    SGD,
    YZ,
    Adam,
    AdamW,
    Bowl,
    Cosine,
    Experiment,
    Linear,
    Overlapping,
    Part,
    Problem,
    Table,
    canonical,
    decode,
    loss,
)

ROOT = Path(__file__).parents[3]
RUNS = {
    "defaults": Experiment(),
    "kinds": Experiment(Bowl(part=Part((3,), jax.nn.gelu)), AdamW(Cosine(0.2, steps=9), decay=1)),
    "groups": Experiment(rule=SGD(eta={"Y": 1, "Z": Linear(steps=5.0)}), record=()),
    "infinite": Experiment(YZ(Overlapping(), length=float("inf")), batch=float("inf")),
    "groups of the weights": Experiment(Bowl(), SGD({"a": 1.0, "b": Cosine(steps=9.0)})),
    "arrays": Experiment(YZ(Table([[0.5, 0.5], [0.0, 1.0]]))),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_text_is_the_run(run: Experiment) -> None:
    arrays: dict[str, np.ndarray] = {}
    text = canonical(LANGUAGE, run, arrays)
    again = decode(LANGUAGE, json.loads(text), arrays)
    assert eqx.tree_equal(again, run)
    assert canonical(LANGUAGE, again) == text
    written = tomllib.loads(toml(encode(LANGUAGE, run)))
    assert eqx.tree_equal(decode(LANGUAGE, written, arrays), run)


def test_canonical_text_is_what_a_store_has() -> None:
    run = Experiment(Bowl(), SGD(Cosine(steps=9)), batch=float("inf"), record=("loss", "rank"))
    assert canonical(LANGUAGE, run) == (
        '{"batch":"inf","kind":"experiment","problem":{"kind":"bowl","part":{"activation":'
        '"jax._src.nn.functions:relu","kind":"part","sizes":[4,4]},"stiff":4.0,"width":2},'
        '"record":["loss","rank"],"rule":{"decay":null,"eta":{"end":0.0,"kind":"cosine",'
        '"peak":0.1,"steps":9.0,"warmup":null},"kind":"sgd","momentum":0.0,"nesterov":false},'
        '"seed":0,"steps":1000}'
    )


@pytest.mark.parametrize("one", [1, 1.0, np.float32(1), np.int64(1), jnp.ones(())])
def test_a_number_has_one_text(one: Any) -> None:
    expected = canonical(LANGUAGE, AdamW(decay=1.0))
    assert canonical(LANGUAGE, AdamW(decay=one)) == expected
    assert canonical(LANGUAGE, AdamW({"Y": one}, decay=1)) == expected.replace(
        '"eta":0.1', '"eta":{"Y":1.0}'
    )


def test_arrays_are_known_by_what_is_in_them() -> None:
    arrays: dict[str, Any] = {}
    tables = [[[0.5, 0.5]], [[0.5], [0.5]], [[0.5, 0.5]]]
    first, other, again = (encode(LANGUAGE, Table(each), arrays)["probs"] for each in tables)
    assert first == again != other
    assert (first["shape"], first["dtype"]) == ([1, 2], "float32")
    np.testing.assert_array_equal(arrays[other["array"]], [[0.5], [0.5]])


def test_toml_escapes_what_it_has_to() -> None:
    table = {"a b": 'x"\\\n\x1fé😀', "none": None, "inner": {"x.y": [1, 2.5, 1e-8, True]}}
    expected = {"a b": 'x"\\\n\x1fé😀', "none": "none", "inner": {"x.y": [1, 2.5, 1e-8, True]}}
    assert tomllib.loads(toml(table)) == expected


class Held(Problem):
    thing: Any = eqx.field(static=True, default=None)
    other: Any = eqx.field(static=True, default=None)


@pytest.mark.parametrize("thing", [1.5, "fast", None, True, 1j, (1, 2), lambda x: x, Path])
def test_anything_can_be_in_a_field_and_is_found_in_its_process(thing: Any) -> None:
    objects: dict[str, Any] = {}
    text = canonical(LANGUAGE, run := Experiment(Held(thing, [thing])), objects)
    again = decode(LANGUAGE, json.loads(text), objects)
    assert again == run
    assert again.problem.other is run.problem.other


@pytest.mark.parametrize("thing", [1j, jax.nn.relu])
def test_other_processes_cannot_make_an_object(thing: Any) -> None:
    text = encode(LANGUAGE, Experiment(Held(thing)))
    with pytest.raises(LanguageError, match=r"^problem\.thing = .*: can be given only in Python$"):
        decode(LANGUAGE, text)


def test_objects_of_one_name_stay_apart() -> None:
    first, second = (lambda x: x, lambda x: -x)
    objects: dict[str, Any] = {}
    table = encode(LANGUAGE, Experiment(Held(first, second)), objects)
    assert table["problem"]["other"] == f"{table['problem']['thing']}#2"
    problem = decode(LANGUAGE, table, objects).problem
    assert (problem.thing, problem.other) == (first, second)


def test_classes_in_functions_are_known_in_their_process() -> None:
    def made(width: int) -> Any:
        class Local(Problem):
            size: int = width

        return Local(size=3)

    objects: dict[str, Any] = {}
    run = Experiment(made(1))
    again = decode(LANGUAGE, encode(LANGUAGE, run, objects), objects)
    assert type(again.problem) is type(run.problem)
    assert again == run
    with pytest.raises(LanguageError, match="must be defined at the top of a module"):
        decode(LANGUAGE, encode(LANGUAGE, run))
    with pytest.raises(LanguageError, match=r"^problem\.other = .*two classes have this name"):
        encode(LANGUAGE, Experiment(Pair(made(1), made(2))), {})


class Pair(Problem):
    one: Problem
    other: Problem


def test_a_run_that_its_class_should_not_have_made_is_an_error() -> None:
    with pytest.raises(LanguageError, match=r"^rule\.momentum = 2: must be a number in \[0, 1\)$"):
        canonical(LANGUAGE, Experiment(rule=SGD(momentum=2)))


SCRIPT = """
import sys
from tests.sweeps.language.catalog import LANGUAGE, Experiment, Problem, canonical, decode

class Net(Problem):
    gain: float = 1

if __name__ == "__main__":
    import twice
    for cls in (Net, twice.Net):
        print(canonical(LANGUAGE, Experiment(cls(2))))
    table = {"problem": {"kind": "twice:Net"}}
    assert type(decode(LANGUAGE, table).problem) is Net is not twice.Net
    print(canonical(LANGUAGE, Experiment()))
"""


@pytest.mark.more
def test_other_processes_write_the_same_text(tmp_path: Path) -> None:
    """A class of the script that Python runs has the name by which others import it."""
    (tmp_path / "twice.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "twice.py")]
    env = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    *twice, plain = done.stdout.split()
    assert plain == canonical(LANGUAGE, Experiment())
    assert twice[0] == twice[1]
    assert json.loads(twice[0])["problem"] == {"gain": 2.0, "kind": "twice:Net"}


def test_put_makes_parts_anew_and_checks_them() -> None:
    run = Experiment(Bowl(), SGD(Linear(steps=5.0)))
    found = put(run, {("rule", "eta", "warmup"): 8.0, ("rule", "eta", "steps"): 10.0})
    # Neither of these alone would fit to what was there.
    assert found == Experiment(Bowl(), SGD(Linear(steps=10.0, warmup=8.0)))
    with pytest.raises(LanguageError) as error:
        put(run, {("rule", "eta", "warmup"): 8.0})
    assert str(error.value) == "rule.eta.warmup = 8.0: must be finite and in [0, 5]"
    with pytest.raises(LanguageError) as error:
        put(run, {("rule", "eta", "steps"): 2000.0})
    assert str(error.value) == "steps = 1000: must be at least those of eta"


def test_put_reaches_the_rates_of_groups() -> None:
    run = Experiment(rule=SGD({"Y": 1.0, "Z": Linear(steps=5.0)}))
    found = put(run, {("rule", "eta", "Y"): 3.0, ("rule", "eta", "Z", "peak"): 2.0})
    assert found.rule.eta == {"Y": 3.0, "Z": Linear(2.0, steps=5.0)}


@pytest.mark.parametrize("path", [("rule", "b1"), ("rule", "eta", "Y"), ("rule", "momentum", "x")])
def test_put_at_unknown_paths_is_an_error(path: tuple[str, ...]) -> None:
    with pytest.raises(LanguageError, match=rf"^{'.'.join(path)}: does not exist$"):
        put(Experiment(Bowl()), {path: 1.0})


class Strict(eqx.Module):
    """A class that looks at its numbers."""

    number: float
    other: float = 0.0

    def __check_init__(self) -> None:
        if self.number > 1:
            raise ValueError("number: must be at most 1")


def test_traced_numbers_are_put_without_checks() -> None:
    strict = Strict(0.5)
    paths = ("number",), ("other",)
    double = jax.jit(lambda *numbers: put(strict, dict(zip(paths, numbers, strict=True))).number)
    assert double(2.0, 1.0) == 2.0
    assert strict == Strict(0.5)
    with pytest.raises(LanguageError, match=r"^number: must be at most 1$"):
        put(strict, {("number",): 2.0})


def test_derivatives_go_through_put() -> None:
    run = Experiment(Bowl(), SGD(0.1), steps=2)
    slope = jax.grad(lambda eta: loss(put(run, {("rule", "eta"): eta})))(0.1)
    # The place is (1 - 4 eta)^2 after two steps, and the loss twice its square.
    np.testing.assert_allclose(slope, -32 * 0.6**3, rtol=1e-6)


def test_a_run_that_is_an_object_has_no_defaults_of_its_problem() -> None:
    """`YZ` has other learning rates by default than a rule."""
    for run in (Experiment(), Experiment(rule=Adam(b1=0.5))):
        given = encode(LANGUAGE, run, full=False)
        assert build(LANGUAGE, given) == run
    given = encode(LANGUAGE, Experiment(), full=False)
    assert build(LANGUAGE, LANGUAGE.assign(given, [("rule", "adam")])) == Experiment(rule=Adam())


def test_a_class_stands_for_its_kind() -> None:
    table = LANGUAGE.assign({}, encode(LANGUAGE, {"problem": Bowl, "rule": Adam}).items())
    assert build(LANGUAGE, table) == Experiment(Bowl(), Adam())


def test_errors_survive_pickling() -> None:
    error = LanguageError("rule.eta", "must be a number", {"kind": "sgd"})
    assert str(pickle.loads(pickle.dumps(error))) == "rule.eta = 'sgd': must be a number"


class Weighted(eqx.Module):
    weights: jax.Array = eqx.field(default_factory=lambda: np.arange(3.0), converter=jnp.asarray)
    scale: float = 1.0


def test_classes_supply_their_default_arrays() -> None:
    language = Language([describe(Weighted, "weighted")], root="weighted")
    found = build(language, language.assign({}, [("scale", 2)]))
    assert eqx.tree_equal(found, Weighted(scale=2.0))
