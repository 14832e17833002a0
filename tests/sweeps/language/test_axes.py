"""Axes of settings: what is traced, what is static, and the runs at all combinations."""

from typing import Any

import jax
import numpy as np
import pytest

from sweeps.language import axes as module
from sweeps.language.axes import Axes
from sweeps.language.describe import describe
from sweeps.language.fields import Field, LanguageError
from sweeps.language.grammar import Language
from sweeps.language.tree import put
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
    Overlapping,
    SynSmall,
    loss,
)

RATES = {"Y": 1.0, "Z": 0.1}


def axes(given: dict[str, Any], zipped: Any = (), shared: Any = ()) -> Axes:
    return Axes(LANGUAGE, LANGUAGE.assign({}, shared), given, zipped)


def test_a_traced_grid_is_its_single_runs() -> None:
    shared = ("problem", "bowl"), ("steps", 5)
    found = axes({"momentum": [0, 0.5, 0.9], "eta": {"linspace": [0.01, 0.04, 4]}}, shared=shared)
    (run,) = found.runs.values()
    with jax.enable_x64(True):
        grid = jax.vmap(lambda numbers: loss(put(run, numbers)))(found.numbers)
        alone = [
            [loss(Experiment(Bowl(), SGD(jax.numpy.float64(eta), momentum=m), 5))
            for eta in np.linspace(0.01, 0.04, 4)]
            for m in (0.0, 0.5, 0.9)
        ]  # fmt: skip
    np.testing.assert_array_equal(grid.reshape(3, 4), alone)
    assert len(np.unique(grid)) == 12


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
    assert [dim.traced for dim in found.dims] == [
        True,
        False,
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    assert [dim.size for dim in found.dims] == [2, 2, 2, 1, 2, 2, 2, 2]
    (task,) = found.dims[3].axes
    assert (task.path, task.labels) == (("problem", "task"), ["overlapping"])
    assert found.dims[1].axes[0].labels == [16, "inf"]
    assert found.dims[6].axes[0].labels == ['["loss"]', '["loss", "rank"]']
    assert [*found.numbers] == [("rule", "eta", "Y"), ("seed",), ("rule", "momentum")]
    assert len(found.runs) == 2 * 1 * 2 * 2 * 2
    first = Experiment(YZ(Overlapping(), 16), SGD(RATES, momentum=0.5, nesterov=True))
    assert found.runs[0, 0, 0, 0, 0] == first
    last = SGD(RATES, decay=0.5, momentum=0.5)
    expected = Experiment(YZ(Overlapping(), float("inf")), last, record=("loss", "rank"))
    assert found.runs[1, 0, 1, 1, 1] == expected


def test_the_last_traced_dimension_is_the_fastest() -> None:
    found = axes({"seed": [3, 4], "rule": ["sgd"], "eta.Y": [1, 2, 3]}).numbers
    np.testing.assert_array_equal(found["seed",], [3, 3, 3, 4, 4, 4])
    np.testing.assert_array_equal(found["rule", "eta", "Y"], [1, 2, 3, 1, 2, 3])
    assert found["seed",].dtype == np.int64


def language_with(**fields: Field) -> Language:
    """The language with other fields in the kind of the bowl."""
    bowl = describe(Bowl, "bowl")
    kinds = [kind for kind in LANGUAGE.kinds if kind.word != "bowl"]
    return Language([*kinds, bowl._replace(fields=bowl.fields | fields)])


def test_infinite_numbers_are_traced_and_other_infinities_static() -> None:
    language = language_with(stiff=Field(types=("number",), traced=True))
    found = Axes(language, {"problem": {"kind": "bowl"}}, {"stiff": [1, float("inf")]})
    np.testing.assert_array_equal(found.numbers["problem", "stiff"], [1, np.inf])
    assert axes({"batch": [32, "inf"]}).runs[1,].batch == float("inf")


def test_names_that_mean_several_settings_along_kinds_are_errors() -> None:
    language = language_with(overlap=describe(Bowl).fields["stiff"])
    given = language.assign({}, [("task", "overlapping")])
    with pytest.raises(LanguageError) as error:
        Axes(language, given, {"problem": ["yz", "bowl"], "overlap": [0.1, 0.2]})
    text = "axes.overlap: is ambiguous; write problem.task.overlap or problem.overlap"
    assert str(error.value) == text


def test_kinds_keep_the_shared_settings() -> None:
    rules = ["adam", {"kind": "adamw", "decay": 0.1}]
    found = axes(
        {"rule": rules, "b1": [0.5, 0.6]}, shared=[("eta", 2), ("b2", 0.7), ("rule", "adam")]
    )
    assert found.dims[0].axes[0].labels == ["adam", "adamw"]
    assert found.runs == {
        (0,): Experiment(rule=Adam(2.0, b1=0.5, b2=0.7)),
        (1,): Experiment(rule=AdamW(2.0, b1=0.5, b2=0.7, decay=0.1)),
    }


def test_kinds_with_one_word_are_labelled_by_their_settings() -> None:
    rate = {"kind": "cosine", "steps": 9}
    rules = ["sgd", {"kind": "SGD", "momentum": 0.5}, {"kind": "sgd", "eta": rate}]
    (axis,) = axes({"rule": rules}).dims[0].axes
    assert axis.labels == ["sgd", "sgd momentum=0.5", "sgd eta=cosine eta.steps=9"]


def test_objects_are_values_of_axes() -> None:
    rules = [SGD(0.5), AdamW(Cosine(steps=9), decay=1)]
    found = axes({"rule": rules}, shared=[("momentum", 0.9)])
    assert [*found.runs.values()] == [Experiment(rule=rule) for rule in rules]


def test_schedules_and_numbers_are_values_of_one_axis() -> None:
    found = axes({"eta": [0.1, "constant"], "problem": ["bowl"]})
    assert found.dims[0].axes[0].labels == [0.1, "constant"]
    assert found.runs[1, 0].rule.eta == Constant()
    assert found.runs[0, 0].rule.eta == 0.1


def test_zipped_axes_share_a_dimension() -> None:
    given = {"K": [2, 3], "eta.Z": [1, 2, 3], "eta.Y": [4, 5, 6], "momentum": [0.1, 0.2]}
    found = axes(given, [["eta-y", "eta.Z"], ["momentum", "K"]], shared=[("task", "overlapping")])
    paths = [[axis.path[-1] for axis in dim.axes] for dim in found.dims]
    assert paths == [["K", "momentum"], ["Z", "Y"]]
    # A number that is zipped with a size is a number of the run.
    assert [dim.traced for dim in found.dims] == [False, True]
    assert found.runs[1,].rule == SGD({"Y": 4.0, "Z": 1.0}, momentum=0.2)
    np.testing.assert_array_equal(found.numbers["rule", "eta", "Y"], [4, 5, 6])


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
    (axis,) = axes({"eta.Y": given}).dims[0].axes
    np.testing.assert_allclose(axis.labels, values, rtol=1e-15)


SCHEDULE = ("eta", {"kind": "cosine", "steps": 100, "peak": 1})


def test_checks_between_fields_are_made_along_all_axes() -> None:
    static = {"steps": [500, 50]}
    with pytest.raises(LanguageError, match=r"^steps = 50: must be at least those of eta$"):
        axes(static, shared=[SCHEDULE])
    traced = {"warmup": [10, 60, 20], "eta.steps": [40, 80, 100]}
    with pytest.raises(LanguageError, match=r"^rule\.eta\.warmup = 60\.0: must be .* \[0, 40\]$"):
        axes(traced, shared=[SCHEDULE])
    # Zipped, each warm-up fits to its own length.
    axes(traced, [["warmup", "eta.steps"]], shared=[SCHEDULE])
    zipped = {"warmup": [10, 50, 90], "eta.steps": [40, 45, 100]}
    with pytest.raises(LanguageError, match=r"^rule\.eta\.warmup = 50\.0: must be .* \[0, 45\]$"):
        axes(zipped, [["warmup", "eta.steps"]], shared=[SCHEDULE])


def test_of_a_large_grid_the_corners_are_checked() -> None:
    large = {"linspace": [10, 50, 100]}, {"linspace": [60, 100, 100]}
    axes({"warmup": large[0], "eta.steps": large[1]}, shared=[SCHEDULE])
    with pytest.raises(LanguageError, match=r"^rule\.eta\.warmup = 50\.0: must be .* \[0, 49\]$"):
        axes({"warmup": large[0], "eta.steps": [*range(60, 160), 49, 200]}, shared=[SCHEDULE])


def test_each_combination_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(*args: Any) -> Any:
        built.append(args)
        return original(*args)

    original = module.build
    monkeypatch.setattr(module, "build", build)
    axes({"rule": ["sgd", "sign"], "steps": [1, 2, 3], "momentum": [0.1, 0.2], "seed": [1, 2]})
    assert len(built) == 6


def test_settings_are_assigned_once_for_all_values_of_an_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    assign = Language.assign

    def counted(*args: Any) -> Any:
        calls.append(args)
        return assign(*args)

    monkeypatch.setattr(Language, "assign", counted)
    Axes(LANGUAGE, {}, {"seed": np.arange(50)})
    assert len(calls) == 2


def test_a_required_setting_may_be_an_axis() -> None:
    found = axes({"eta": ["cosine"], "eta.steps": [5, 6]}, shared=[("problem", "bowl")])
    assert found.runs[0,].rule.eta == Cosine(steps=5.0)
    assert SynSmall() == axes({"task": ["syn-small"]}).runs[0,].problem.task
