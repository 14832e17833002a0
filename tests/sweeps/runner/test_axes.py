"""Axes and sweep files: what they mean, and every way to get them wrong."""

import dataclasses
import itertools
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynsim
import sweeps
from sweeps import recipes
from sweeps.language.tree import toml
from sweeps.runner.config import config_of, from_config
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep, from_table, load
from sweeps.runner.store import manifest
from sweeps.runner.work import layout_of
from sweeps.systems.experiment import experiment

SWEEPS = Path(sweeps.__file__).parent / "recipes"


@pytest.mark.parametrize("size", [1, 5, 12, 1000])
def test_chunks_tile_the_array_of_runs_without_crossing_static_values(size: int) -> None:
    varied = {"K": [2, 3], "eta_y": [1, 2, 3], "seed": {"range": 4}, "eta_z": [1, 2, 3, 4, 5]}
    dims = Sweep(experiment(task="overlapping"), varied, record=("loss",)).dims
    layout = layout_of(dims, size)
    visits = np.zeros(layout.shape, int)
    regions = list(map(layout.region, range(layout.num_chunks)))
    assert len(regions) == layout.num_chunks
    for region in regions:
        visits[region] += 1
        assert region[0].stop - region[0].start == 1
        assert math.prod(part.stop - part.start for part in region) <= size
    assert (visits == 1).all()
    assert layout_of(dims, 20).chunk == (1, 3, 1, 5)


NEXT = 2.0**-23
"""Distance of the next float32 from 1."""
EQUAL = "1 and 1.00000001 are equal in float32"


@pytest.mark.parametrize(
    ("axes", "zipped", "message"),
    [
        ({"eta_y": [1, 1 + 1e-8]}, (), f"axes.eta_y: {EQUAL}; choose values further apart"),
        ({"eta_y": [1, 1 + NEXT]}, (), None),
        ({"eta_y": {"linspace": [1, 1 + 2 * NEXT, 9]}}, (), r"\(3 of 9 values differ\)"),
        ({"momentum": {"logspace": [0.5, 0.50000001, 4]}}, (), "2 of 4|1 of 4"),
        ({"eta_y": [1e-50, 0.0]}, (), "1e-50 and 0 are equal in float32"),
        ({"decay": [None, 1, 1 + 1e-8]}, (), f"axes.decay: {EQUAL}"),
        ({"eta_y": {"a": 1.0, "b": 1 + 1e-8}}, (), f"axes.eta_y: {EQUAL}"),
        # All of zipped numbers have to be equal.
        ({"eta_y": [1, 1 + 1e-8], "eta_z": [1, 2]}, [("eta_y", "eta_z")], None),
        ({"eta_y": [1, 1 + 1e-8], "eta_z": [2, 2]}, [("eta_y", "eta_z")], f"eta_z: {EQUAL}"),
        (
            {"rule": [dynsim.sgd(1), dynsim.sgd(1 + 1e-8)]},
            (),
            "axes.rule: sgd eta=1.0 .* and sgd eta=1.00000001 ",
        ),
        ({"rule": [dynsim.sgd(1), dynsim.sgd(1 + NEXT)]}, (), None),
        ({"rule": {"a": dynsim.sgd(1), "b": dynsim.sgd(1, 0.3)}}, (), None),
        # Integers are not rounded.
        ({"seed": [2**24, 2**24 + 1], "steps": [2**24, 2**24 + 1]}, (), None),
    ],
)
@pytest.mark.more
def test_runs_that_float32_makes_equal_are_an_error_before_anything_is_compiled(
    axes: dict[str, Any], zipped: Any, message: str | None
) -> None:
    run, programs = experiment(decay=0.1, momentum=0.5), len(jobs.PROGRAMS)
    sweep = Sweep(run, axes, record="loss", zip=zipped)
    if message is None:
        sweep.check()
    else:
        with pytest.raises(ValueError, match=message):
            sweep.check()
        with pytest.raises(ValueError, match="dtype = 'float64'"):
            sweeps.run(sweep)
    assert len(jobs.PROGRAMS) == programs
    # Double precision tells them apart, in training and in theory.
    dataclasses.replace(sweep, run=run.at({"dtype": "float64"})).check()
    if not {"seed", "momentum", "decay"} & {*axes}:
        dataclasses.replace(sweep, run=experiment(), theory="eq10").check()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"axes": {"eta_q": [1]}}, "eta_q = 1: is not a setting; did you mean eta"),
        ({"axes": {"eta_y": []}}, "axes.eta_y = []: is empty; needs at least one value"),
        ({"axes": {"eta_y": [1, "a"]}}, "eta.Y = 'a': must be a number"),
        ({"axes": {"eta_y": [1, 1.0]}}, "axes.rule.eta.Y = 1.0: is given twice"),
        ({"axes": {"eta_y": [1, -1]}}, "axes.rule.eta.Y = -1: must be a number in [0, inf)"),
        ({"axes": {"eta_y": 3}}, "axes.eta_y = 3: must be a list, or a table"),
        ({"axes": {"eta_y": {"logspac": [1, 2, 3]}}}, "did you mean logspace?"),
        ({"axes": {"eta_y": {"logspace": [0, 2, 3]}}}, "axes.eta_y.logspace = 0: must be"),
        ({"axes": {"eta_y": {"logspace": [1, 2]}}}, "must be [first, last, number of values]"),
        ({"axes": {"seed": [0.5]}}, "seed = 0.5: must be an integer from 0"),
        ({"axes": {"seed": [-1]}}, "seed = -1: must be an integer from 0"),
        (
            {"axes": {"eta_y": [1], "ratio": [2]}},
            "does not have it; ratio does",
        ),
        ({"axes": {"T": [8]}}, "T = 8: is not a setting; there are problem, task"),
        ({"axes": {"eta_y": [1, 2], "eta_z": [1]}, "zip": [["eta_y", "eta_z"]]}, "same number"),
        (
            {"axes": {"eta_y": [1, 2, 1], "eta_z": [3, 3, 3]}, "zip": [["eta_y", "eta_z"]]},
            "axes.rule.eta.Y, rule.eta.Z = (1.0, 3.0): is given twice",
        ),
        (
            {"axes": {"eta_y": [1]}, "zip": [["eta_y", "eta_z"]]},
            "zip = 'eta_z': did you mean eta_y?",
        ),
        (
            {"axes": {"eta_y": [1], "seed": [1]}, "zip": [["eta_y", "seed"]]},
            "axes.seed: must be called seed, and not be zipped with other axes",
        ),
        ({"axes": {"Seed": [1]}}, "axes.Seed: must be called seed"),
        ({"axes": {"dtype": ["float32", "float64"]}}, "axes.dtype: cannot vary"),
        ({"axes": {"num_queries": [1]}}, "syn-small does not have it; syn-medium, syn do"),
        ({"axes": {"b1": [0.9]}}, "b1 = 0.9: sgd does not have it; adam, adamw do"),
        ({"axes": {"length": [1]}}, "problem.length = 1: must be an integer from 2 to"),
        ({"axes": {"momentum": [0.5, 1]}}, "axes.rule.momentum = 1.0: must be a number in [0, 1)"),
        (
            {"axes": {"overlap": [1]}, "run": {"problem": "yz", "task": "overlapping"}},
            "overlap = 1: must be a number in [0, 1)",
        ),
        ({"axes": {}}, "axes: needs a table with at least one axis"),
        (
            {"axes": {"eta_y": [1]}, "run": {"problem": "yz", "stepz": 2}},
            "stepz = 2: is not a setting; did you mean steps",
        ),
        (
            {"axes": {"eta_y": [1]}, "run": {"problem": "yz", "steps": 0}},
            "steps = 0: must be an integer from 1",
        ),
        (
            {"axes": {"eta_y": [1]}, "thory": "x"},
            "key = 'thory': did you mean",
        ),
        (
            {"axes": {"eta_y": [1]}, "theory": "x"},
            "theory = 'x': must be one of simulation",
        ),
        ({"axes": {"eta_y": [1]}, "theory": "matched"}, "'matched' does not apply"),
        (
            {"axes": {"eta_y": [1]}, "record": ["x"]},
            "record = 'x': did you mean 'xi'?",
        ),
        ({"axes": {"eta_y": [1]}, "record": []}, "record = []: needs at least one"),
        ({"axes": {"eta_y": [1]}, "rtol": 0.1}, "rtol = 0.1: theory 'simulation' does not use"),
        (
            {"axes": {"eta_y": [1]}, "theory": "plain", "rtol": 1.0},
            "rtol = 1.0: must be finite",
        ),
        (
            {"axes": {"eta_y": [1]}, "times": 1.5},
            "times = 1.5: must be 'end', a number of them, or",
        ),
        ({"axes": {"eta_y": [1]}, "times": [[1], 2]}, "times = [[1], 2]: must be 'end', a number"),
        ({"axes": {"eta_y": [1]}, "zip": ["eta_y"]}, "zip = ['eta_y']: must be a list of lists"),
        ({"axes": {"steps": [5, 3]}, "times": [0, 4]}, "must increase within [0, steps = 3]"),
    ],
)
def test_bad_settings_are_named(table: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_table({"run": {"problem": "yz"}} | table).check()


@pytest.mark.parametrize("run", [{}, {"steps": 3}, {"eta_z": 1}, {"problem": {"task": "syn"}}])
def test_a_file_without_a_problem_is_told_so(run: dict[str, Any]) -> None:
    message = r"run\.problem: is missing \(what is trained\); must be one of yz, qkv, two_stage,"
    for axes in ({"eta_y": [1]}, {"seed": [1]}):
        with pytest.raises(ValueError, match=message):
            from_table({"run": run, "axes": axes})
        with pytest.raises(ValueError, match=message):
            Sweep(run, axes)
    with pytest.raises(ValueError, match=message):
        from_table({"axes": {"seed": [1]}})


def test_the_problem_may_be_given_by_an_override_or_an_axis() -> None:
    table = {"run": {"steps": 3}, "axes": {"seed": [1]}}
    assert from_table(table, ["run.problem=two_stage", "run.r=2"]).first.setting("r") == 2
    axes = {"problem": ["two_stage", "two_stage-fast"]}
    from_table({"axes": axes}).check()


@pytest.mark.parametrize("large", [2**53 + 1, 2**63, 2**64, 10**38])
def test_integers_of_any_size_are_numbers(large: int) -> None:
    """In place of a number that need not be whole, in files, stores and Python: nearest float."""
    text = f"axes = {{seed = [0]}}\n[run]\nproblem = 'yz'\neta_y = {large}\n"
    in_file = from_table(tomllib.loads(text))
    axis = Sweep(experiment(), {"eta_y": [large, 1]})
    for sweep in (in_file, axis, Sweep(experiment(eta_y=large), {"seed": [0]})):
        sweep.check()
        rate = sweep.first.setting("eta_y")
        assert type(rate) is float
        assert rate == float(large)
        config = config_of(sweep)
        stored = json.loads(json.dumps(config))
        assert config_of(from_config(stored)) == config == stored
        run = {name: value for name, value in config["run"].items() if name != "kind"}
        written = tomllib.loads(toml({"run": run, "axes": config["axes"]}))
        left = from_table(written, ["run.rule.eta.Y=" if sweep is axis else "run.seed="])
        assert left.first.setting("eta_y") == rate
    with pytest.raises(ValueError, match=r"eta\.Y = 1000.*0000: must be a number in \[0, inf\)"):
        experiment(eta_y=10**400)


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_papers_sweeps_are_valid(path: Path) -> None:
    sweep = load(path.stem)
    sweep.check()
    assert sweep.title


def test_overrides_replace_what_the_file_says(tmp_path: Path) -> None:
    sweep = load("fig6", ["run.steps = 7", "axes.seed = {range = 2}", 'theory = "descent"'])
    assert (sweep.first.steps, sweep.fields["seed"], sweep.theory) == (7, (0, 1), "descent")
    with pytest.raises(ValueError, match=r"set = 'run\.steps': must be KEY = VALUE"):
        load("fig6", ["run.steps"])
    with pytest.raises(ValueError, match="no such file; built-in sweeps: fig4, fig5"):
        load("fig66")
    (tmp_path / "bad.toml").write_text("axes = [")
    with pytest.raises(ValueError, match="not readable as TOML"):
        load(tmp_path / "bad.toml")


def test_only_what_decides_the_numbers_is_hashed() -> None:
    base = {"axes": {"eta_z": [1, 2], "seed": [0]}, "run": {"problem": "yz", "steps": 5}}
    variants = [
        base,
        {**base, "root": 1},
        {**base, "run": {"problem": "yz", "steps": 6}},
        {**base, "axes": {"eta_z": [1, 3], "seed": [0]}},
        {**base, "axes": {"seed": [0], "eta_z": [1, 2]}},
        {**base, "record": ["loss"]},
        {**base, "times": [0, 5]},
        {**base, "theory": "plain"},
        {**base, "theory": "plain", "rtol": 1e-6},
        {**base, "axes": {"eta_z": [1, 2], "eta_y": [1, 2]}},
        {**base, "axes": {"eta_z": [1, 2], "eta_y": [1, 2]}, "zip": [["eta_z", "eta_y"]]},
    ]
    prints = [manifest.fingerprint(config_of(from_table(table))) for table in variants]
    assert len(set(prints)) == len(prints)
    for same in (
        {**base, "title": "x"},
        {**base, "run": {"problem": {"kind": "yz", "length": 128}, "steps": 5.0}},
    ):
        assert manifest.fingerprint(config_of(from_table(same))) == prints[0]
    for a, b in itertools.combinations(variants, 2):
        old, new = (config_of(from_table(table)) for table in (a, b))
        assert manifest.differences(old, new)


def test_the_root_is_any_key_of_32_bits() -> None:
    assert Sweep(experiment(), {"seed": [0]}, root=2**32 - 1).root == 2**32 - 1
    with pytest.raises(ValueError, match="root = 4294967296: must be an integer <= 4294967295"):
        Sweep(experiment(), {"seed": [0]}, root=2**32)


def test_differences_are_told_by_field_and_long_lists_by_their_ends() -> None:
    eight, nine = [list(range(n)) for n in (8, 9)]
    old = {"title": "a", "steps": 1, "task_holds": "x", "axes": {"b": eight, "c": [1], "d": 0}}
    new = {"title": "b", "root": 0, "task_holds": "y", "axes": {"c": [1], "b": nine, "d": 0}}
    assert manifest.differences(old, new) == [
        "order of the axes: b, c, d -> c, b, d",
        "axes.b: [0, 1, 2, 3, 4, 5, 6, 7] -> [0, 1, 2, 3, 4, 5, 6, ..., 8] (9 values)",
        "root: None -> 0",
        "steps: 1 -> None",
        "task_holds: the arrays of the task changed ('x' -> 'y')",
    ]
    # Values of the same axes in the same order are no other order.
    assert manifest.differences({"axes": {"b": [1]}}, {"axes": {"b": [2]}}) == [
        "axes.b: [1] -> [2]"
    ]
    assert manifest.differences(old, dict(old)) == []


@pytest.mark.full(
    "sweeps/systems/test_static_axes.py::test_of_very_many_combinations_every_word_is_looked_at"
)
def test_of_very_many_shapes_all_ranges_are_checked_and_the_tasks_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, make = set(), dynsim.Syn.build
    monkeypatch.setattr(dynsim.Syn, "build", lambda task: (made.add(task.M), make(task))[1])
    sizes = list(range(20, 170))
    run = experiment(task="syn", num_common=2, num_distinct=1)
    Sweep(run, {"M": sizes}, record=("loss",)).check()
    assert {20, 169} <= made
    assert len(made) <= 64
    with pytest.raises(ValueError, match=r"M = -4: must be an integer from 1"):
        Sweep(run, {"M": [*sizes[:5], -4, *sizes[5:]]}, record=("loss",)).check()


def test_kinds_along_an_axis_share_nothing_that_one_of_them_has() -> None:
    """Whatever their order: what the run does not say, the first kind does not say for others."""
    kinds = [{"kind": "adamw", "decay": 0.1}, {"kind": "adam", "clip": 1.0}, "sgd"]
    for order in (kinds, kinds[::-1]):
        sweep = from_table({"run": {"problem": "yz", "eta": 0.1}, "axes": {"rule": order}})
        rules = {name: sweep.point({"rule": name}).rule for name in sweep.fields["rule"]}
        assert rules == {
            "adamw": dynsim.adamw(0.1, decay=0.1),
            "adam": dynsim.adam(0.1, clip=1.0),
            "sgd": dynsim.sgd(0.1),
        }


def test_a_file_has_the_fields_of_a_sweep() -> None:
    assert tuple(field.name for field in dataclasses.fields(Sweep)) == recipes.KEYS


def test_names_of_axes_need_no_quotes() -> None:
    written = tomllib.loads(
        '[run]\nproblem = "yz"\n[axes]\nrule.eta.Y = [0.5, 1.0]\n'
        "eta.Z = { logspace = [0.1, 1, 3] }\n"
        "[axes.task]\nsmall = 'syn-small'\nmedium = { kind = 'syn-medium', num_queries = 2 }\n"
    )
    found = from_table(written, ["axes.rule.momentum=[0, 0.9]"])
    left = from_table(written, ["axes.rule.eta.Y=", "axes.seed=[1]"])
    assert [*left.fields] == ["eta.Z", "task", "seed"]
    assert {name: len(values) for name, values in found.fields.items()} == {
        "rule.eta.Y": 2,
        "eta.Z": 3,
        "task": 2,
        "rule.momentum": 2,
    }
    assert found.fields["task"] == ("small", "medium")
