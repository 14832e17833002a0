"""Axes of settings: what is traced, what is static, and the runs at all combinations."""

from typing import Any

import jax
import numpy as np
import pytest

from sweeps.language import tree as module
from sweeps.language.axes import Axes
from sweeps.language.describe import describe
from sweeps.language.fields import Field, LanguageError
from sweeps.language.grammar import Language
from sweeps.language.tree import build
from tests.sweeps.language.catalog import (
    LANGUAGE,
    SGD,
    YZ,
    Adam,
    AdamW,
    Bowl,
    Constant,
    Cosine,
    Experiment,
    File,
    Overlapping,
    loss,
)

RATES = {"Y": 1.0, "Z": 0.1}


def axes(given: dict[str, Any], zipped: Any = (), shared: Any = ()) -> Axes:
    run = build(LANGUAGE, LANGUAGE.assign({}, shared))
    return Axes(LANGUAGE, run, given, zipped)


def test_a_traced_grid_is_its_single_runs() -> None:
    shared = ("problem", "bowl"), ("steps", 5)
    found = axes({"momentum": [0, 0.5, 0.9], "eta": {"linspace": [0.01, 0.04, 4]}}, shared=shared)
    momentum, eta = (np.array(axis.labels) for axis in found.named.values())
    grid = loss(found.run({"momentum": momentum[:, None], "eta": eta}))
    alone = [[loss(found.run({"momentum": m, "eta": e})) for e in eta] for m in momentum]
    np.testing.assert_array_equal(grid, alone)
    assert len(np.unique(grid)) == 12
    assert grid[1, 3] == loss(Experiment(Bowl(), SGD(0.04, momentum=0.5), 5))


def test_numbers_are_traced_and_all_else_is_static() -> None:
    given = {
        "eta.Y": [1, 2],
        "length": [16, float("inf")],
        "seed": {"range": 2},
        "task": ["overlapping"],
        "nesterov": [True, False],
        "decay": [None, 0.5],
        "record": [["loss"], ["loss", "rank"]],
        "momentum": np.array([0.5, 0.9], np.float32),
    }
    found = axes(given)
    static = [dim.name for dim in found.dims if dim.static]
    assert static == ["length", "task", "nesterov", "decay", "record"]
    assert [dim.size for dim in found.dims] == [2, 2, 2, 1, 2, 2, 2, 2]
    task = found.named["task"]
    assert (task.path, task.labels, task.named) == (("problem", "task"), ["overlapping"], True)
    assert found.named["length"].labels == [16, float("inf")]
    assert found.named["record"].labels == ['["loss"]', '["loss", "rank"]']
    first = Experiment(YZ(Overlapping(), 16), SGD(RATES, momentum=0.5, nesterov=True))
    assert found.run({"momentum": 0.5}) == first
    last = {name: axis.labels[-1] for name, axis in found.named.items() if name != "momentum"}
    rule = SGD({"Y": 2.0, "Z": 0.1}, decay=0.5, momentum=0.5)
    expected = Experiment(YZ(Overlapping(), float("inf")), rule, seed=1, record=("loss", "rank"))
    assert found.run(last) == expected


def language_with(**fields: Field) -> Language:
    """The language with other fields in the kind of the bowl."""
    bowl = describe(Bowl, "bowl")
    kinds = [kind for kind in LANGUAGE.kinds if kind.word != "bowl"]
    return Language([*kinds, bowl._replace(fields=bowl.fields | fields)])


def test_infinite_numbers_are_traced_and_other_infinities_static() -> None:
    language = language_with(stiff=Field(types=("number",), traced=True))
    stiff = Axes(language, Experiment(Bowl()), {"stiff": [1, float("inf")]}).named["stiff"]
    assert (stiff.traced, stiff.labels) == (True, [1, float("inf")])
    found = axes({"batch": [32, "inf"]})
    assert found.dims[0].static
    assert found.run({"batch": float("inf")}).batch == float("inf")


def test_names_that_mean_several_settings_along_kinds_are_errors() -> None:
    language = language_with(overlap=describe(Bowl).fields["stiff"])
    run = Experiment(YZ(Overlapping()))
    with pytest.raises(LanguageError) as error:
        Axes(language, run, {"problem": ["yz", "bowl"], "overlap": [0.1, 0.2]})
    text = "axes.overlap: is ambiguous; write problem.task.overlap or problem.overlap"
    assert str(error.value) == text


def test_kinds_keep_the_shared_settings() -> None:
    rules = ["adam", {"kind": "adamw", "decay": 0.1}]
    found = axes(
        {"rule": rules, "b1": [0.5, 0.6]}, shared=[("eta", 2), ("b2", 0.7), ("rule", "adam")]
    )
    assert found.named["rule"].labels == ["adam", "adamw"]
    assert found.run({"rule": "adam"}).rule == Adam(2.0, b1=0.5, b2=0.7)
    assert found.run({"rule": "adamw", "b1": 0.6}).rule == AdamW(2.0, b1=0.6, b2=0.7, decay=0.1)


def test_kinds_with_one_word_are_labelled_by_their_settings() -> None:
    rate = {"kind": "cosine", "steps": 9}
    rules = ["sgd", {"kind": "SGD", "momentum": 0.5}, {"kind": "sgd", "eta": rate}]
    assert axes({"rule": rules}).named["rule"].labels == [
        "sgd",
        "sgd momentum=0.5",
        "sgd eta=cosine eta.steps=9",
    ]


def test_files_are_labelled_by_their_names() -> None:
    found = axes({"task": ["a.npz", "b.npz", "syn-small"]})
    assert found.named["task"].labels == ["a.npz", "b.npz", "syn-small"]
    assert found.run({"task": "b.npz"}).problem.task == File("b.npz")


def test_objects_are_values_of_axes() -> None:
    rules = [SGD(0.5), AdamW(Cosine(steps=9), decay=1)]
    found = axes({"rule": rules}, shared=[("momentum", 0.9)])
    runs = [found.run({"rule": label}) for label in found.named["rule"].labels]
    assert runs == [Experiment(rule=rule) for rule in rules]


def test_a_table_of_values_names_them() -> None:
    rules = {"plain": SGD(0.5), "annealed": SGD(Cosine(steps=9)), "by word": "adam"}
    found = axes({"rule": rules, "length": {"short": 8, "long": 16}})
    assert [*found.dims[0].axes.items()] == [("rule", ("plain", "annealed", "by word"))]
    assert found.run({"rule": "annealed"}).rule == rules["annealed"]
    assert found.run({"rule": "by word"}).rule == Adam(RATES)
    assert found.named["length"].named
    assert found.run({"length": "long"}).problem.length == 16
    numbers = axes({"momentum": {"none": 0, "some": 0.5}})
    assert numbers.dims[0].static
    assert numbers.run({"momentum": "some"}).rule.momentum == 0.5


def test_functions_are_values_of_axes() -> None:
    found = axes({"activation": [jax.nn.relu, abs]}, shared=[("problem", "bowl")])
    labels = found.named["activation"].labels
    assert labels == ["jax._src.nn.functions:relu", "builtins:abs"]
    assert found.run({"activation": "builtins:abs"}).problem.part.activation is abs


def test_schedules_and_numbers_are_values_of_one_axis() -> None:
    found = axes({"eta": [0.1, "constant"], "problem": ["bowl"]})
    assert found.named["eta"].labels == [0.1, "constant"]
    assert found.run({"eta": "constant"}).rule.eta == Constant()
    assert found.run({"eta": 0.1}).rule.eta == 0.1


def test_zipped_axes_share_a_dimension() -> None:
    given = {"K": [2, 3], "eta.Z": [1, 2, 3], "eta.Y": [4, 5, 6], "momentum": [0.1, 0.2]}
    found = axes(given, [["eta-y", "eta.Z"], ["momentum", "K"]], shared=[("task", "overlapping")])
    paths = [[axis.path[-1] for axis in dim.members] for dim in found.dims]
    assert paths == [["K", "momentum"], ["Z", "Y"]]
    # A number that is zipped with a size changes with the program.
    assert [dim.static for dim in found.dims] == [True, False]
    run = found.run({"K": 3, "momentum": 0.2, "eta.Y": 5.0, "eta.Z": 2.0})
    assert run == Experiment(YZ(Overlapping(3)), SGD({"Y": 5.0, "Z": 2.0}, momentum=0.2))


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"linspace": [0, 1, 3]}, [0.0, 0.5, 1.0]),
        ({"logspace": [0.01, 1, 3]}, [0.01, 0.1, 1.0]),
        ({"range": 2}, [0, 1]),
        ({"range": [3, 6]}, [3, 4, 5]),
        (range(2), [0, 1]),
        ((0, 1), [0, 1]),
        (np.array([0.0, 1.0]), [0.0, 1.0]),
    ],
)
def test_spacings(given: Any, values: list[float]) -> None:
    axis = axes({"eta.Y": given}).named["eta.Y"]
    np.testing.assert_allclose(axis.labels, values, rtol=1e-15)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # The limits are named where nothing is made, whatever they are.
        ({"range": [-1, 2]}, "range = -1: must be an integer from 0 to 16777216"),
        ({"linspace": [0, 1, 1]}, "linspace = 1: must be an integer from 2 to 16777216"),
        ({"linspace": [0, "inf", 3]}, "linspace = 'inf': must be a number in (-inf, inf)"),
        ({"logspace": [0, 1, 3]}, "logspace = 0: must be a number in (0, inf)"),
        ({"logspace": [1, 2, 1]}, "logspace = 1: must be an integer from 2 to 16777216"),
        ({"range": [3, 3]}, "range = [3, 3]: has no values"),
        ({"range": [1, 2, 3]}, "range = [1, 2, 3]: must be n or [first, end]"),
    ],
)
def test_spacings_have_limits(given: Any, message: str) -> None:
    with pytest.raises(LanguageError) as error:
        axes({"seed": given})
    assert str(error.value).startswith(f"axes.seed.{message}")


def test_two_values_are_a_spacing_and_none_is_an_end() -> None:
    for given, values in (({"linspace": [1, 3, 2]}, [1, 3]), ({"range": [0, 1]}, [0])):
        assert axes({"seed": given}).named["seed"].labels == values


SCHEDULE = ("eta", {"kind": "cosine", "steps": 100, "peak": 1})


def test_checks_between_fields_are_made_for_all_values() -> None:
    with pytest.raises(LanguageError, match=r"^steps = 50: must be at least those of eta$"):
        axes({"steps": [500, 50]}, shared=[SCHEDULE]).run({"steps": 50})
    found = axes({"warmup": [10, 60, 20], "eta.steps": [40, 80]}, shared=[SCHEDULE])
    ends = np.array([40.0, 80.0])
    found.run({"warmup": np.array([[10.0], [20.0]]), "eta.steps": ends})
    with pytest.raises(LanguageError, match=r"^rule\.eta\.warmup = 60\.0: must be .* \[0, 40\]$"):
        found.run({"warmup": np.array([[10.0], [60.0]]), "eta.steps": ends})


def test_each_static_combination_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(*args: Any) -> Any:
        built.append(args)
        return original(*args)

    original = module.build
    found = axes({"rule": ["sgd", "sign"], "steps": [1, 2], "momentum": [0.1, 0.2]})
    monkeypatch.setattr(module, "build", build)
    for steps in (1, 2, 1):
        for momentum in (0.1, 0.2):
            found.run({"steps": steps, "rule": "sign", "momentum": momentum})
    assert len(built) == 2


def test_settings_are_assigned_once_for_all_values_of_an_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    assign = Language.assign

    def counted(*args: Any) -> Any:
        calls.append(args)
        return assign(*args)

    monkeypatch.setattr(Language, "assign", counted)
    Axes(LANGUAGE, Experiment(), {"seed": np.arange(50)})
    assert len(calls) == 1


def test_a_required_setting_may_be_an_axis() -> None:
    found = axes({"eta": ["cosine"], "eta.steps": [5, 6]}, shared=[("problem", "bowl")])
    assert found.run({"eta.steps": 6.0}).rule.eta == Cosine(steps=6.0)
