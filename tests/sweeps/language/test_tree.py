"""Objects as text and back, and values put into them."""

import json
import pickle
import tomllib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from sweeps.language.axes import put
from sweeps.language.fields import LanguageError
from sweeps.language.tree import build, encode, toml
from tests.doors import refuses
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
    Part,
    Problem,
    Table,
    canonical,
    decode,
    loss,
)


@pytest.mark.parametrize(
    "run",
    [
        Experiment(Bowl(part=Part((3,), jax.nn.gelu)), AdamW(Cosine(0.2, steps=9), decay=1)),
        Experiment(YZ(Table([[0.5, 0.5], [0.0, 1.0]])), SGD({"Y": 1, "Z": Linear(steps=5.0)})),
    ],
)
def test_functions_and_arrays_are_in_text_by_name_and_contents(run):
    arrays: dict[str, Any] = {}
    again = decode(json.loads(canonical(run, arrays)), arrays)
    assert eqx.tree_equal(again, run)
    assert canonical(again) == canonical(run)
    written = tomllib.loads(toml(encode(LANGUAGE, run)))
    assert eqx.tree_equal(decode(written, arrays), run)


def test_text_is_what_stores_have():
    """Stores of earlier versions have to be found again."""
    run = Experiment(Bowl(), SGD(Cosine(steps=9)), batch=float("inf"), record=("loss", "rank"))
    assert encode(LANGUAGE, run) == {
        "kind": "experiment", "batch": "inf", "seed": 0, "steps": 1000, "record": ["loss", "rank"],
        "problem": {
            "kind": "bowl", "stiff": 4.0, "width": 2,
            "part": {"kind": "part", "sizes": [4, 4], "activation": "jax._src.nn.functions:relu"},
        },
        "rule": {
            "kind": "sgd", "decay": None, "momentum": 0.0, "nesterov": False,
            "eta": {"kind": "cosine", "peak": 0.1, "steps": 9.0, "end": 0.0, "warmup": None},
        },
    }  # fmt: skip


def test_arrays_are_known_by_what_is_in_them():
    arrays: dict[str, Any] = {}
    tables = [[[0.5, 0.5]], [[0.5], [0.5]], [[0.5, 0.5]]]
    first, other, again = (encode(LANGUAGE, Table(each), arrays)["probs"] for each in tables)
    assert first == again != other
    assert (first["shape"], first["dtype"]) == ([1, 2], "float32")
    np.testing.assert_array_equal(arrays[other["array"]], [[0.5], [0.5]])


def test_toml_escapes_what_it_has_to():
    table = {"a b": 'x"\\\n\x1fé😀', "none": None, "inner": {"x.y": [1, 2.5, 1e-8, True]}}
    assert tomllib.loads(toml(table)) == table | {"none": "none"}


class Held(Problem):
    thing: Any = eqx.field(static=True, default=None)
    other: Any = eqx.field(static=True, default=None)


class Pair(Problem):
    one: Problem
    other: Problem


@pytest.mark.parametrize("thing", [1.5, "fast", None, True, 1j, (1, 2), lambda x: x, Path])
def test_anything_can_be_in_a_field_and_is_found_in_its_process(thing):
    objects: dict[str, Any] = {}
    run = Experiment(Held(thing, [thing]))
    again = decode(json.loads(canonical(run, objects)), objects)
    assert again == run
    assert again.problem.other is run.problem.other
    if isinstance(thing, complex):
        text = encode(LANGUAGE, Experiment(Held(thing)))
        refuses(lambda: decode(text), "problem.thing", "Python")


def test_objects_and_classes_of_one_name_stay_apart():
    first, second = (lambda x: x, lambda x: -x)
    objects: dict[str, Any] = {}
    problem = decode(encode(LANGUAGE, Experiment(Held(first, second)), objects), objects).problem
    assert (problem.thing, problem.other) == (first, second)

    def made(width: int) -> Any:
        class Local(Problem):
            size: int = width

        return Local(size=3)

    run = Experiment(made(1))
    again = decode(encode(LANGUAGE, run, objects), objects)
    assert type(again.problem) is type(run.problem)
    assert again == run
    refuses(lambda: decode(encode(LANGUAGE, run)), "Local", "top of a module")
    refuses(
        lambda: encode(LANGUAGE, Experiment(Pair(made(1), made(2))), {}), "problem.other", "Local"
    )


def test_put_makes_parts_anew_and_checks_them_together():
    run = Experiment(Bowl(), SGD(Linear(steps=5.0)))
    warmup, steps = ("rule", "eta", "warmup"), ("rule", "eta", "steps")
    # Neither of these alone would fit to what was there.
    found = put(run, {warmup: 8.0, steps: 10.0})
    assert found == Experiment(Bowl(), SGD(Linear(steps=10.0, warmup=8.0)))
    refuses(lambda: put(run, {warmup: 8.0}), "rule.eta.warmup = 8.0", "[0, 5]")
    refuses(lambda: put(run, {steps: 2000.0}), "steps = 1000", "eta")
    for path in (("rule", "b1"), ("rule", "eta", "Y"), ("rule", "momentum", "x")):
        refuses(lambda path=path: put(run, {path: 1.0}), ".".join(path))
    groups = Experiment(rule=SGD({"Y": 1.0, "Z": Linear(steps=5.0)}))
    found = put(groups, {("rule", "eta", "Y"): 3.0, ("rule", "eta", "Z", "peak"): 2.0})
    assert found.rule.eta == {"Y": 3.0, "Z": Linear(2.0, steps=5.0)}


class Strict(eqx.Module):
    number: float
    other: float = 0.0

    def __check_init__(self) -> None:
        if self.number > 1:
            raise ValueError("number: must be at most 1")


def test_traced_numbers_are_put_without_checks_and_have_derivatives():
    strict, paths = Strict(0.5), (("number",), ("other",))
    double = jax.jit(lambda *numbers: put(strict, dict(zip(paths, numbers, strict=True))).number)
    assert double(2.0, 1.0) == 2.0
    assert strict == Strict(0.5)
    refuses(lambda: put(strict, {("number",): 2.0}), "number", "1")
    run = Experiment(Bowl(), SGD(0.1), steps=2)
    slope = jax.grad(lambda eta: loss(put(run, {("rule", "eta"): eta})))(0.1)
    # The place is (1 - 4 eta)^2 after two steps, and the loss twice its square.
    np.testing.assert_allclose(slope, -32 * 0.6**3, rtol=1e-6)


def test_a_run_that_is_an_object_has_no_defaults_of_its_problem():
    """`YZ` has other learning rates by default than a rule."""
    given = encode(LANGUAGE, Experiment(), full=False)
    assert build(LANGUAGE, LANGUAGE.assign(given, [("rule", "adam")])) == Experiment(rule=Adam())
    # A class stands for its kind.
    table = encode(LANGUAGE, {"problem": Bowl, "rule": Adam})
    assert build(LANGUAGE, LANGUAGE.assign({}, table.items())) == Experiment(Bowl(), Adam())


def test_errors_survive_pickling():
    error = LanguageError("rule.eta", "must be a number", {"kind": "sgd"})
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).startswith("rule.eta = 'sgd': ")
