"""Some two hundred of what `make fuzz` tries, always the same ones; and each kind of input that
once ended in an error that was not ours. Nothing compiles."""

import math
import re
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps.commands.views import plot
from sweeps.runner.spec import Sweep, from_table
from sweeps.systems.experiment import experiment
from tests.sweeps import fuzz

EXAMPLES = {
    "sweep files": 40,
    "sweeps in Python": 40,
    "runs in Python": 60,
    "command lines": 40,
}


@pytest.mark.parametrize("name", fuzz.CLASSES)
@pytest.mark.more
def test_whatever_is_given_is_accepted_or_refused_by_us(name: str) -> None:
    found = fuzz.count(name, EXAMPLES[name])
    assert not [key for key in found if " at " in key]
    assert found["accepted"] >= 1
    assert found["refused"] >= EXAMPLES[name] / 2


AXES = {"axes": {"eta_z": [1.0]}, "record": ["loss"], "run": {"problem": "yz"}}
TEXT = {"axes": {"eta": [1]}}
RATES = ("eta_y", "eta_z", "momentum")
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"run": 3}, "run = 3: must be a table"),
    ({"axes": "abc"}, "axes = 'abc': must be a table"),
    ({"axes": {}}, "axes: needs a table with at least one axis"),
    ({"theory": []}, "theory = list: must be of type str"),
    ({"record": 0.5}, "record = 0.5: must be names"),
    ({"record": ["loss", 3]}, "record = ['loss', 3]: must be names"),
    ({"zip": 3}, "zip = 3: must be a list of lists"),
    ({"zip": [[["eta_z"]]]}, "zip = [[['eta_z']]]: must be a list of lists"),
    ({"root": {}}, "root = {}: must be an integer >= 0"),
    ({"times": ["a"]}, "times = ['a']: must be 'end'"),
    ({"times": 10**12}, "times = 1000000000000: must be an integer <= 1048576"),
    ({"title": 3}, "title = 3: must be of type str"),
    ({"root": 2**63}, "root = 9223372036854775808: must be an integer <= 4294967295"),
    ({"record": fuzz.deep(40)}, "must be names"),
    ({"axes": {"seed": [math.inf]}}, "axes.seed = inf: must be an integer"),
    ({"axes": {"seed": [10**20]}}, "must be an integer from 0 to 4294967295"),
    ({"axes": {"eta_z": [0.1, math.nan]}}, "axes.rule.eta.Z = nan: must be a number"),
    ({"axes": {"eta_z": [10**400]}}, "must be a number"),
    ({"axes": {"eta_z": fuzz.deep(40)}}, "must be a number"),
    ({"axes": {"eta_z": {"range": [0, math.inf]}}}, "must be an integer"),
    ({"axes": {"seed": {"range": 2**32}}}, "must be an integer from 0 to 16777216"),
    ({"run": {"problem": "yz", "steps": 10**20}}, "must be an integer from 1 to 2147483647"),
    ({"run": {"problem": "yz", "eta_y": 1e39}}, "is inf in float32"),
    ({"axes": {"eta_z": [0.1, 1e39]}}, "peak = 1e+39: is inf in float32"),
    ({"axes": {"momentum": [0, 1 - 1e-9]}}, "momentum = 0.999999999: is 1 in float32"),
    ({"run": {"problem": "yz", "task": 3}}, "problem.task = 3: must be one of"),
    ({"run": {"problem": "yz", "task": "\0.npz"}}, "no such file"),
    ({"run": {"problem": "yz", "task": f"{'x' * 300}.npz"}}, "no such file"),
    (TEXT | {"run": {"problem": "transformer", "corpus": "\0"}}, "must be one of synthetic"),
    (TEXT | {"run": {"problem": "linear_icl", "D": 10**8}}, "problem.D = 100000000: must be"),
    (TEXT | {"run": {"problem": "transformer", "width": 2**20}}, "GiB of memory"),
    ({"axes": {n: {"linspace": [0.1, 0.9, 2**14]} for n in RATES}}, "give 4398046511104 runs"),
    ({"axes": {"batch": {"range": [1, 70000]}}}, "change shapes, and compile a program each"),
]


@pytest.mark.parametrize(("table", "message"), TABLES)
def test_kinds_of_bad_sweeps_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        from_table({**AXES, **table}).check()
    assert fuzz.ours(raised.value)


def test_bad_places_are_named() -> None:
    with pytest.raises(ValueError, match="path = 3: must be of type str"):
        sweeps.load(3)  # pyright: ignore[reportArgumentType]


def test_numbers_of_numpy_and_lists_count_as_pythons_own() -> None:
    run = experiment(steps=np.int64(3), eta_z=np.float32(0.5), batch=np.array(4))
    assert (run.steps, run.batch, run.setting("eta_z")) == (3, 4, 0.5)
    assert type(run.steps) is int


def test_a_range_is_that_of_the_precision_of_the_run() -> None:
    axes = {"eta_z": [0.1]}
    fine = experiment(rule="adam", b1=1 - 1e-9, steps=3)
    Sweep(experiment(rule="adam", b1=1 - 1e-9, steps=3, dtype="float64"), axes).check()
    with pytest.raises(ValueError, match="or dtype = 'float64'"):
        Sweep(fine, axes).check()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"eta_z": 3, "eta_y": 25}, "would draw 25 panels, at most 24"),
        ({"eta_z": 3, "ratio": 257}, "would draw 257 lines, at most 256"),
        ({"eta_z": 2**21, "seed": 3}, "would draw 6291456 points, at most 4194304"),
    ],
)
def test_pictures_that_nobody_can_read_are_refused(sizes: dict[str, int], message: str) -> None:
    hue = "ratio" if "ratio" in sizes else None
    with pytest.raises(ValueError, match=message):
        plot.check_drawable(sizes, plot.Plot("runs/none", "eta_z", hue=hue))
    plot.check_drawable(
        {**sizes, "eta_z": 3, "eta_y": 24, "ratio": 9}, plot.Plot("runs/none", "eta_z", hue="ratio")
    )
