"""Some two hundred of what `make fuzz` tries, always the same ones; and each kind of input that
once ended in an error that was not ours. Nothing compiles."""

import decimal
import math
import re
from typing import Any

import numpy as np
import pytest

import dynsim
import sweeps
from dynsim import checks, decoding
from sweeps.commands.views import plot
from sweeps.compare import compare
from sweeps.runner.files import from_table
from sweeps.runner.spec import Sweep
from sweeps.systems.linear_icl import LinearICL
from sweeps.systems.two_stage import TwoStage
from sweeps.systems.yz import Training
from tests.sweeps import fuzz

EXAMPLES = {
    "sweep files": 40,
    "sweeps in Python": 40,
    "runs in Python": 60,
    "command lines": 40,
}


@pytest.mark.parametrize("name", fuzz.CLASSES)
def test_whatever_is_given_is_accepted_or_refused_by_us(name: str) -> None:
    found = fuzz.count(name, EXAMPLES[name])
    assert not [key for key in found if " at " in key]
    assert found["accepted"] >= 1
    assert found["refused"] >= EXAMPLES[name] / 2


TWO_STAGE = {"axes": {"r": [1.0]}, "record": ["K2"]}
RATES = ("eta_y", "eta_z", "momentum")
AXES = {"axes": {"eta_z": [1.0]}, "record": ["loss"]}
TEXT = {"system": "transformer", "axes": {"eta": [1]}}
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"run": 3}, "run = 3: must be a table"),
    ({"axes": "abc"}, "axes: needs a table"),
    ({"axes": {}}, "axes: needs a table with at least one axis"),
    ({"engine": []}, "engine = (): must be text"),
    ({"engine": {"a": 1}}, "engine = {'a': 1}: must be text"),
    ({"record": 0.5}, "record = 0.5: must be names"),
    ({"record": ["loss", 3]}, "record = ('loss', 3): must be names"),
    ({"zip": 3}, "zip = 3: must be a list of lists"),
    ({"zip": ["eta_z"]}, "must be a list of lists"),
    ({"times": ["a"]}, "times = ('a',): must be 'end'"),
    ({"times": 10**12}, "times = 1000000000000: must be 'end'"),
    ({"times": True}, "times = True: must be 'end'"),
    ({"title": 3}, "title = 3: must be text"),
    ({"root": 2**63}, "root = 9223372036854775808: must be an integer <= 4294967295"),
    ({"root": 10**400}, "must be an integer <= 4294967295"),
    ({"system": []}, "system = []: must be one of"),
    ({"record": fuzz.deep(40)}, "),),),),): must be names"),
    ({"axes": {"seed": [math.inf]}}, "axes.seed = inf: must be a whole number"),
    ({"axes": {"seed": [10**20]}}, "must be a number of 64 bits"),
    ({"axes": {"eta_z": [0.1, math.nan]}}, "axes.eta_z = nan: must be a number"),
    ({"axes": {"eta_z": [1, 2**63]}}, "must be a number of 64 bits"),
    ({"axes": {"eta_z": [10**400]}}, "must be a number of 64 bits"),
    ({"axes": {"eta_z": fuzz.deep(40)}}, "must be a number"),
    ({"axes": {"eta_z": np.array(0.5)}}, "axes.eta_z = 0.5: must be a list"),
    ({"axes": {"eta_z": {"range": [0, math.inf]}}}, "must be a whole number"),
    ({"axes": {"eta_z": {"linspace": [1e308, -1e308, 3]}}}, "must be finite and in"),
    ({"axes": {"seed": {"range": 2**32}}}, "would have 4294967296 values"),
    ({"run": {"init": []}}, "run.init = []: must be one value"),
    ({"run": {"steps": 10**20}}, "run.steps = 100000000000000000000: must be an integer <= "),
    ({"run": {"steps": 2.5}}, "run.steps = 2.5: must be an integer >= 1"),
    ({"run": {"eta_y": "0.1"}}, "run.eta_y = '0.1': must be a number, in 1/step"),
    ({"run": {"eta_y": 1e39}}, "eta_y = 1e+39: is inf in float32"),
    ({"run": {"eta_y": math.nan}}, "run.eta_y = nan: must be finite and in [0, inf), in 1/step"),
    ({"run": {"task": 3}}, "run.task = 3: must be text"),
    ({"run": {"length": 2.5}}, "run.length = 2.5: must be an integer >= 2, or inf"),
    ({"run": {"optimizer": "adam", "b1": 1 - 1e-9}}, "b1 = 0.999999999: is 1 in float32"),
    ({"system": "qkv", "run": {"residual": "false"}}, "run.residual = 'false': must be true or"),
    (
        {"system": "linear_icl", "axes": {"eta": [1]}, "run": {"D": 10**8}},
        "run.D = 100000000: must be",
    ),
    # Names of files that no file can have.
    ({"run": {"task": f"{'x' * 300}.npz"}}, "no such file"),
    ({"run": {"task": "\0.npz"}}, "no such file"),
    (TEXT | {"run": {"corpus": "x" * 300}}, "must be a readable file"),
    (TEXT | {"run": {"corpus": "\0"}}, "must be a readable file"),
    # Tables that take all memory while they are made.
    ({"run": {"task": "syn", "M": 10**8}}, "run.M = 100000000: must be an integer <= 1048576"),
    ({"run": {"task": "syn", "num_queries": 100, "M": 2**20}}, "would take 1.6 GiB"),
    # What is legal in every field, and absurd.
    ({"axes": {n: {"linspace": [0.1, 0.9, 2**14]} for n in RATES}}, "are 4398046511104 runs"),
    (
        {"axes": {n: {"linspace": [0.1, 0.9, 1024]} for n in RATES}, "run": {"steps": 2**30}},
        "years",
    ),
    ({"axes": {"batch": {"range": [1, 70000]}}}, "change shapes, and compile a program each"),
    ({"system": "two_stage", **TWO_STAGE, "run": {"eta_1": 1e-12}}, "steps, at most"),
    ({"system": "two_stage", **TWO_STAGE, "run": {"pool": 2**30}}, "GiB of memory"),
    ({"system": "transformer", "axes": {"eta": [1]}, "run": {"width": 2**20}}, "GiB of memory"),
    ({"system": "transformer", "axes": {"eta": [1]}, "run": {"batch": 2**30}}, "GiB of memory"),
]


@pytest.mark.parametrize(("table", "message"), TABLES)
def test_kinds_of_bad_sweeps_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        from_table({**AXES, **table}).check()
    assert fuzz.ours(raised.value)
    assert len(str(raised.value)) < 500


PYTHON: list[tuple[Any, str]] = [
    (lambda: Sweep(3).check(), "axes = 3: needs a mapping"),
    (lambda: Sweep({}).check(), "axes = {}: needs a mapping"),
    (lambda: Sweep({3: [1]}).check(), "axes = {3: [1]}: must be a mapping from"),
    (lambda: Sweep({"seed": [0]}, run=3).check(), "run = 3: must be the run of a system"),
    (lambda: Sweep({"seed": [0]}, Training(eta_z=[0.1])).check(), "run.eta_z = (0.1,): must be"),
    (lambda: Sweep({"seed": [0]}, Training(eta_z=np.ones(2))).check(), "run.eta_z = array("),
    (lambda: Sweep({"seed": [0]}, Training(eta_z=1 + 2j)).check(), "run.eta_z = (1+2j): must be"),
    (lambda: Sweep({"seed": [0]}, Training(task=3)).check(), "run.task = 3: must be text"),
    (lambda: Sweep({"seed": [0]}, LinearICL(D=True)).check(), "run.D = True: must be an integer"),
    (lambda: TwoStage(eta_2=-1).check(), "eta_2 = -1: must be finite and in (0, inf)"),
    (lambda: dynsim.sequence_classes(np.eye(2) + 1j, [0, 1]), "probs: must be an array of real"),
    (lambda: checks.real("eta", 1 + 2j), "eta = (1+2j): must be a real number"),
    (lambda: sweeps.load(3), "path = 3: must be of type str or os.PathLike"),
    (lambda: sweeps.register(3), "system = 3: must be of type sweeps.System"),
    (lambda: sweeps.explain(3), "config = 3: must be of type str or"),
    (lambda: sweeps.explain("linear-icl"), "did you mean 'linear_icl'?"),
    (lambda: sweeps.explain(eta_y="a"), "eta_y = 'a': must be a number, in 1/step"),
    (lambda: compare(3), "task = 3: must be of type str or dynsim.Sequence"),
    (lambda: compare(theories=3), "theories = 3: must be of type collections.abc.Sequence"),
    (lambda: compare(stps=3), "compare: setting = 'stps': did you mean 'steps' or 'eta_steps'?"),
    (lambda: compare(eta_y=math.nan), "eta_y = nan: must be finite and in [0, inf)"),
]


@pytest.mark.parametrize(("call", "message"), PYTHON)
def test_kinds_of_bad_values_in_python_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        call()
    assert fuzz.ours(raised.value)


def test_numbers_of_numpy_and_lists_count_as_pythons_own() -> None:
    run = Training(steps=np.int64(3), eta_z=np.float32(0.5), batch=np.array(4), ratio=None)
    assert run == Training(steps=3, eta_z=0.5, batch=4)
    assert type(run.steps) is int
    sweep = Sweep({"eta_y": np.linspace(1, 2, 3)}, run, record=["loss"], root=np.uint32(7))
    sweep.check()
    assert sweep.record == ("loss",)
    assert sweep.as_json()["run"]["eta_z"] == 0.5
    assert decoding.plain(decimal.Decimal("0.25")) == 0.25


def test_a_range_is_that_of_the_precision_of_the_run() -> None:
    fine = Training(optimizer="adam", b1=1 - 1e-9, steps=3)
    axes = {"eta_z": [0.1]}
    Sweep(axes, Training(optimizer="adam", b1=1 - 1e-9, steps=3, dtype="float64")).check()
    # A theory computes in float64, whatever the runs do.
    Sweep(axes, fine, "adam", ("loss",)).check()
    with pytest.raises(ValueError, match="or dtype = 'float64'"):
        Sweep(axes, fine).check()


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
