"""Axes of settings: what is traced, what is static, and the runs at all combinations."""

import math

import jax
import numpy as np
import pytest

from sweeps.language.axes import Axes
from sweeps.language.fields import Field
from sweeps.language.tree import build
from tests.doors import refuses
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
    Part,
    language_with,
)

RATES, INF = {"Y": 1.0, "Z": 0.1}, math.inf


def axes(given, zipped=(), **shared):
    return Axes(LANGUAGE, build(LANGUAGE, LANGUAGE.assign({}, shared.items())), given, zipped)


def of(rule=None, problem=None, **settings):
    return Experiment(problem or YZ(), rule or SGD(RATES), **settings)


COSINE = {"kind": "cosine", "steps": 9}
RULES = [SGD(0.5), AdamW(Cosine(steps=9), decay=1)]
NAMED = {"plain": SGD(0.5), "annealed": SGD(Cosine(steps=9)), "by word": "adam"}
SETTINGS = [SGD(RATES), SGD(RATES, momentum=0.5), SGD(Cosine(steps=9.0))]
# An axis, whether it is traced, its labels, and the run at each of them.
AXES = [
    ("eta.Y", [1, 2], True, [1.0, 2.0], [of(SGD({"Y": y, "Z": 0.1})) for y in (1.0, 2.0)]),
    ("seed", {"range": 2}, True, [0, 1], [of(seed=seed) for seed in (0, 1)]),
    ("momentum", np.array([0.5, 0.25], "float32"), True, [0.5, 0.25],
     [of(SGD(RATES, momentum=value)) for value in (0.5, 0.25)]),
    ("length", [16, INF], False, [16, INF], [of(problem=YZ(length=n)) for n in (16, INF)]),
    ("batch", [32, "inf"], False, [32, INF], [of(batch=n) for n in (32, INF)]),
    ("task", ["overlapping"], False, ["overlapping"], [of(problem=YZ(Overlapping()))]),
    ("nesterov", [True, False], False, ["true", "false"],
     [of(SGD(RATES, nesterov=each)) for each in (True, False)]),
    ("decay", [None, 0.5], False, ["null", "0.5"], [of(SGD(RATES, decay=d)) for d in (None, 0.5)]),
    ("record", [["loss"], ["loss", "rank"]], False, ['["loss"]', '["loss", "rank"]'],
     [of(record=("loss",)), of(record=("loss", "rank"))]),
    # Kinds of one word are labelled by their settings, files by their names.
    ("rule", ["sgd", {"kind": "SGD", "momentum": 0.5}, {"kind": "sgd", "eta": COSINE}], False,
     ["sgd", "sgd momentum=0.5", "sgd eta=cosine eta.steps=9"], [of(rule) for rule in SETTINGS]),
    ("task", ["a.npz", "b.npz"], False, ["a.npz", "b.npz"],
     [of(problem=YZ(File(name))) for name in ("a.npz", "b.npz")]),
    # A table names its values.
    ("rule", NAMED, False, [*NAMED], [of(NAMED["plain"]), of(NAMED["annealed"]), of(Adam(RATES))]),
    ("length", {"short": 8, "long": 16}, False, ["short", "long"],
     [of(problem=YZ(length=n)) for n in (8, 16)]),
    ("momentum", {"none": 0, "some": 0.5}, False, ["none", "some"],
     [of(SGD(RATES, momentum=m)) for m in (0.0, 0.5)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "traced", "labels", "runs"), AXES)
def test_labels_of_an_axis_are_its_runs(name, given, traced, labels, runs):
    found = axes({name: given})
    axis = found.named[name]
    assert (axis.labels, axis.traced, found.dims[0].static) == (labels, traced, not traced)
    assert [found.run({name: label}) for label in labels] == runs


SPACINGS = [
    ({"linspace": [0, 1, 3]}, [0.0, 0.5, 1.0]),
    ({"linspace": [1, 3, 2]}, [1.0, 3.0]),
    ({"logspace": [0.01, 1, 3]}, [0.01, 0.1, 1.0]),
    ({"range": [3, 6]}, [3, 4, 5]),
    ({"range": [0, 1]}, [0]),
    (range(2), [0, 1]),
    ((0, 1), [0, 1]),
    (np.array([0.0, 1.0]), [0.0, 1.0]),
]


@pytest.mark.parametrize(("given", "values"), SPACINGS)
def test_spacings(given, values):
    labels = axes({"eta.Y": given}).named["eta.Y"].labels
    np.testing.assert_allclose(labels, values, rtol=1e-15)


def test_infinite_numbers_are_traced():
    language = language_with(stiff=Field(types=("number",), traced=True))
    stiff = Axes(language, Experiment(Bowl()), {"stiff": [1, INF]}).named["stiff"]
    assert (stiff.traced, stiff.labels) == (True, [1, INF])


def test_objects_functions_and_schedules_are_values():
    found = axes({"rule": RULES}, momentum=0.9)
    runs = [found.run({"rule": label}) for label in found.named["rule"].labels]
    assert runs == [of(rule) for rule in RULES]
    found = axes({"activation": [jax.nn.relu, abs]}, problem="bowl")
    runs = [found.run({"activation": label}) for label in found.named["activation"].labels]
    assert runs == [Experiment(Bowl(part=Part(activation=each))) for each in (jax.nn.relu, abs)]
    found = axes({"eta": [0.1, "constant"], "problem": ["bowl"]})
    rules = [found.run({"eta": label}).rule for label in (0.1, "constant")]
    assert rules == [SGD(0.1), SGD(Constant())]


def test_kinds_keep_the_shared_settings_and_may_need_an_axis():
    rules = ["adam", {"kind": "adamw", "decay": 0.1}]
    found = axes({"rule": rules, "b1": [0.5, 0.6]}, eta=2, b2=0.7, rule="adam")
    assert found.run({"rule": "adam"}).rule == Adam(2.0, b1=0.5, b2=0.7)
    assert found.run({"rule": "adamw", "b1": 0.6}).rule == AdamW(2.0, b1=0.6, b2=0.7, decay=0.1)
    found = axes({"eta": ["cosine"], "eta.steps": [5, 6]}, problem="bowl")
    assert found.run({"eta.steps": 6.0}).rule.eta == Cosine(steps=6.0)


def test_zipped_axes_share_a_dimension():
    given = {"K": [2, 3], "eta.Z": [1, 2, 3], "eta.Y": [4, 5, 6], "momentum": [0.1, 0.2]}
    found = axes(given, [["eta-y", "eta.Z"], ["momentum", "K"]], task="overlapping")
    paths = [[axis.path[-1] for axis in dim.members] for dim in found.dims]
    assert (paths, [dim.size for dim in found.dims]) == ([["K", "momentum"], ["Z", "Y"]], [2, 3])
    # A number that is zipped with a size changes with the program.
    assert [dim.static for dim in found.dims] == [True, False]
    run = found.run({"K": 3, "momentum": 0.2, "eta.Y": 5.0, "eta.Z": 2.0})
    assert run == of(SGD({"Y": 5.0, "Z": 2.0}, momentum=0.2), YZ(Overlapping(3)))


def test_checks_between_fields_are_made_for_all_values():
    cosine = {"kind": "cosine", "steps": 100, "peak": 1}
    steps = axes({"steps": [500, 50]}, eta=cosine)
    refuses(lambda: steps.run({"steps": 50}), "steps = 50", "eta")
    found = axes({"warmup": [10, 60, 20], "eta.steps": [40, 80]}, eta=cosine)
    ends = np.array([40.0, 80.0])
    found.run({"warmup": np.array([[10.0], [20.0]]), "eta.steps": ends})
    beyond = {"warmup": np.array([[10.0], [60.0]]), "eta.steps": ends}
    refuses(lambda: found.run(beyond), "rule.eta.warmup = 60.0", "[0, 40]")
