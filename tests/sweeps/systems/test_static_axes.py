"""Axes of words and kinds, in every system, and bad ones."""

import re
from typing import Any

import pytest

from sweeps import Sweep, experiment
from sweeps.runner.spec import from_table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rule": ["adm"]}, "axes.rule = 'adm': did you mean adam or adamw? It must"),
        ({"rule": [1.0]}, "axes.rule = 1.0: would replace sgd; did you mean rule.eta?"),
        ({"rule": [["sgd"]]}, "axes.rule = ['sgd']: must be one of"),
        ({"rule": []}, "axes.rule = []: is empty; needs at least one value"),
        ({"rule": "sgd"}, "axes.rule = 'sgd': must be a list"),
        ({"rule": {"range": 2}}, "axes.rule = 0: would replace sgd"),
        ({"rule": ["sgd", "adam", "sgd"]}, "axes.rule = 'sgd': is given twice"),
        ({"rule": ["sgd", "sign"], "b1": [0.5]}, "b1 = 0.5: sgd does not have it; adam, adamw do"),
        (
            {"start": ["zero"], "run": {"start": "zero"}},
            "problem.start = 'zero': is also an axis",
        ),
        ({"start": ["zro"]}, "start = 'zro': did you mean zero?"),
        ({"rule": ["sgd", "adamw"]}, "rule.decay: is missing"),
        ({"dtype": ["float32"]}, "dtype"),
        ({"layout": ["paper"], "run": {"task": "overlapping"}}, "overlapping does not have it"),
        ({"start": ["zero"], "run": {"problem": "joma"}}, "joma does not have it; yz do"),
    ],
)
def test_bad_words_are_named(table: dict[str, Any], message: str) -> None:
    run = {"problem": "yz", **table.get("run", {})}
    axes = {name: values for name, values in table.items() if name != "run"}
    with pytest.raises(ValueError, match=re.escape(message)):
        from_table({"axes": axes, "run": run}).check()


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("yz", {"start": ["zero", "uniform"], "layout": ["paper", "authors"]}),
        ("joma", {"activation": ["relu", "tanh"], "head": ["signal", "cross-entropy"]}),
        ("qkv", {"normalisation": ["l2", "none"]}),
        ("linear_icl", {"attention": ["merged", {"kind": "separate", "rank": 2}]}),
        ("transformer", {"positions": ["learned", "none"]}),
        ("two_stage", {"control": ["none", "forever"], "core": ["fixed"]}),
        ("sparse_attention", {"rule": ["sgd", "adam"]}),
    ],
)
def test_words_of_every_system(system: str, words: dict[str, Any]) -> None:
    from_table({"run": {"problem": system}, "axes": words}).check()


def test_of_very_many_combinations_every_word_is_looked_at() -> None:
    many = {"batch": list(range(1, 101)), "rule": ["sgd", "sign", "rmsprop", "adam"]}
    found = Sweep(experiment(steps=2), many).some_slices()
    assert len(found) <= 64
    assert {each["rule"] for each in found} == set(many["rule"])
    zipped = {"batch": list(range(1, 101)), "rule": ["sgd"] * 98 + ["adam", "sgd"]}
    found = Sweep(experiment(steps=2), zipped, zip=(("batch", "rule"),)).some_slices()
    assert {each["rule"] for each in found} == {"sgd", "adam"}
    assert {1, 100} <= {each["batch"] for each in found}
