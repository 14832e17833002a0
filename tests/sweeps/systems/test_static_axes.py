"""Axes of words and kinds, in every system."""

import pytest

from sweeps import Sweep, experiment
from sweeps.runner.spec import from_table


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("yz", {"start": ["zero", "uniform"], "layout": ["paper", "authors"]}),
        ("joma", {"activation": ["relu", "tanh"], "head": ["signal", "cross-entropy"]}),
        ("joma", {"task": ["joma-classes"], "length": [8, 32], "batch": [4]}),
        ("qkv", {"normalisation": ["l2", "none"]}),
        ("linear_icl", {"attention": ["merged", {"kind": "separate", "rank": 2}]}),
        ("transformer", {"positions": ["learned", "none"]}),
        ("two_stage", {"control": ["none", "forever"], "core": ["fixed"]}),
        ("sparse_attention", {"rule": ["sgd", "adam"]}),
    ],
)
def test_words_of_every_system(system, words):
    from_table({"run": {"problem": system}, "axes": words}).check()


def test_of_very_many_combinations_every_word_is_looked_at():
    many = {"batch": list(range(1, 101)), "rule": ["sgd", "sign", "rmsprop", "adam"]}
    found = Sweep(experiment(steps=2), many).some_slices()
    assert len(found) <= 64
    assert {each["rule"] for each in found} == set(many["rule"])
    zipped = {"batch": list(range(1, 101)), "rule": ["sgd"] * 98 + ["adam", "sgd"]}
    found = Sweep(experiment(steps=2), zipped, zip=(("batch", "rule"),)).some_slices()
    assert {each["rule"] for each in found} == {"sgd", "adam"}
    assert {1, 100} <= {each["batch"] for each in found}
