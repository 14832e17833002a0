"""Axes and sweep files: what they mean, and every way to get them wrong."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

import sweeps
from sweeps.runner import axes, files
from sweeps.runner.spec import Sweep
from sweeps.runner.store import manifest
from sweeps.systems.yz import Training

SWEEPS = Path(sweeps.__file__).parent / "recipes"
FIELDS = Training.AXES


def test_values_are_what_the_file_says() -> None:
    assert axes.values("eta_y", [1, 0.5]) == (1, 0.5)
    assert axes.values("seed", {"range": 3}) == (0, 1, 2)
    assert axes.values("seed", {"range": [2, 4]}) == (2, 3)
    np.testing.assert_allclose(axes.values("eta_y", {"logspace": [0.01, 1, 3]}), [0.01, 0.1, 1])
    np.testing.assert_allclose(axes.values("eta_y", {"linspace": [0, 1, 3]}), [0, 0.5, 1])


def test_zipped_axes_share_a_dimension_and_the_others_form_a_grid() -> None:
    dims = axes.dimensions(
        {"eta_y": [1, 2], "seed": {"range": 3}, "eta_z": [5, 6], "length": [8, 9]},
        [["eta_z", "eta_y"]],
        FIELDS,
    )
    assert [(d.name, d.size, d.static) for d in dims] == [
        ("eta_y", 2, False),
        ("seed", 3, False),
        ("length", 2, True),
    ]
    assert dims[0].axes == {"eta_y": (1, 2), "eta_z": (5, 6)}
    # Points of a part of a grid, which share single values but not both.
    (dim,) = axes.dimensions({"eta_y": [1, 1, 2], "eta_z": [5, 6, 6]}, [["eta_y", "eta_z"]], FIELDS)
    assert dim.axes == {"eta_y": (1, 1, 2), "eta_z": (5, 6, 6)}


@pytest.mark.parametrize("size", [1, 5, 12, 1000])
def test_chunks_tile_the_array_of_runs_without_crossing_static_values(size: int) -> None:
    dims = axes.dimensions(
        {"K": [2, 3], "eta_y": [1, 2, 3], "seed": {"range": 4}, "eta_z": {"linspace": [1, 5, 5]}},
        [],
        FIELDS,
    )
    layout = axes.layout(dims, size)
    visits = np.zeros(layout.shape, int)
    regions = list(layout.regions())
    assert len(regions) == layout.num_chunks
    for region in regions:
        visits[region] += 1
        assert region[0].stop - region[0].start == 1
        assert math.prod(part.stop - part.start for part in region) <= size
    assert (visits == 1).all()
    assert axes.layout(dims, 20).chunk == (1, 3, 1, 5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"axes": {"eta_q": [1]}}, "axes = 'eta_q': did you mean 'eta_"),
        ({"axes": {"eta_y": []}}, "axes.eta_y = []: needs at least one value"),
        ({"axes": {"eta_y": [1, "a"]}}, "axes.eta_y = 'a': must be a number"),
        ({"axes": {"eta_y": [1, 1.0]}}, "axes.eta_y: has the value 1.0 twice"),
        ({"axes": {"eta_y": [1, -1]}}, "eta_y = -1.0: must be finite and in [0, inf)"),
        ({"axes": {"eta_y": 3}}, "axes.eta_y = 3: must be a list, or a table"),
        ({"axes": {"eta_y": {"cubic": [1, 2, 3]}}}, "axes.eta_y = 'cubic': must be one of"),
        ({"axes": {"eta_y": {"logspace": [0, 2, 3]}}}, "axes.eta_y.logspace = 0.0: must be"),
        ({"axes": {"eta_y": {"logspace": [1, 2]}}}, "must be [first, last, number of values]"),
        ({"axes": {"seed": [0.5]}}, "axes.seed = 0.5: must be a whole number"),
        ({"axes": {"seed": [-1]}}, "axes.seed = -1: must be an integer >= 0"),
        ({"axes": {"eta_y": [1], "ratio": [2]}}, "leave one of eta_y and ratio out"),
        ({"axes": {"T": [8]}}, "axes = 'T': must be one of eta_y"),
        ({"axes": {"eta_y": [1, 2], "eta_z": [1]}, "zip": [["eta_y", "eta_z"]]}, "same number"),
        (
            {"axes": {"eta_y": [1, 2, 1], "eta_z": [3, 3, 3]}, "zip": [["eta_y", "eta_z"]]},
            "axes.eta_y, eta_z: has the value (1, 3) twice",
        ),
        (
            {"axes": {"eta_y": [1]}, "zip": [["eta_y", "eta_z"]]},
            "zip = 'eta_z': did you mean 'eta_y'?",
        ),
        ({"axes": {"eta_y": [1], "seed": [1]}, "zip": [["eta_y", "seed"]]}, "axis of its own"),
        ({"axes": {"num_queries": [1]}}, "axes.num_queries: task 'syn-small' does not read it"),
        ({"axes": {"b1": [0.9]}}, "axes.b1: optimizer 'sgd' does not read it"),
        ({"axes": {"length": [1]}}, "length = 1: must be an integer >= 2, or inf"),
        ({"axes": {"momentum": [0.5, 1]}}, "momentum = 1.0: must be finite and in [0, 1)"),
        ({"axes": {"overlap": [1]}, "run": {"task": "overlapping"}}, "overlap = 1: must be"),
        ({"axes": {}}, "axes: needs a table with at least one axis"),
        ({"axes": {"eta_y": [1]}, "run": {"eta_y": 2}}, "run.eta_y = 2: is an axis as well"),
        ({"axes": {"eta_y": [1]}, "run": {"stepz": 2}}, "run = 'stepz': did you mean 'steps'"),
        ({"axes": {"eta_y": [1]}, "run": {"steps": 0}}, "steps = 0: must be an integer >= 1"),
        (
            {"axes": {"eta_y": [1]}, "ingine": "x"},
            "key = 'ingine': did you mean",
        ),
        (
            {"axes": {"eta_y": [1]}, "engine": "x"},
            "engine = 'x': must be one of simulation",
        ),
        ({"axes": {"eta_y": [1]}, "engine": "matched"}, "'matched' does not apply"),
        (
            {"axes": {"eta_y": [1]}, "record": ["x"]},
            "record = 'x': did you mean 'xi'?",
        ),
        ({"axes": {"eta_y": [1]}, "record": []}, "record = []: needs at least one"),
        ({"axes": {"eta_y": [1]}, "rtol": 0.1}, "rtol = 0.1: engine 'simulation' does not read"),
        (
            {"axes": {"eta_y": [1]}, "engine": "plain", "rtol": 1.0},
            "rtol = 1.0: must be finite",
        ),
        ({"axes": {"steps": [5, 3]}, "times": [0, 4]}, "must increase within [0, steps = 3]"),
    ],
)
def test_bad_settings_are_named(table: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        files.from_table(table).check()


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_papers_sweeps_are_valid(path: Path) -> None:
    sweep = files.load(path.stem)
    sweep.check()
    assert sweep.title


def test_overrides_replace_what_the_file_says(tmp_path: Path) -> None:
    sweep = files.load("fig6", ["run.steps = 7", "axes.seed = {range = 2}", 'engine = "descent"'])
    assert (sweep.run.steps, sweep.fields["seed"], sweep.engine) == (7, (0, 1), "descent")
    with pytest.raises(ValueError, match=r"set = 'run\.steps': must be KEY = VALUE"):
        files.load("fig6", ["run.steps"])
    with pytest.raises(ValueError, match="no such file; built-in sweeps: fig4, fig5"):
        files.load("fig66")
    (tmp_path / "bad.toml").write_text("axes = [")
    with pytest.raises(ValueError, match="not readable as TOML"):
        files.load(tmp_path / "bad.toml")


def test_only_what_decides_the_numbers_is_hashed() -> None:
    base = {"axes": {"eta_z": [1, 2], "seed": [0]}, "run": {"steps": 5}}
    variants = [
        base,
        {**base, "root": 1},
        {**base, "run": {"steps": 6}},
        {**base, "axes": {"eta_z": [1, 3], "seed": [0]}},
        {**base, "axes": {"seed": [0], "eta_z": [1, 2]}},
        {**base, "record": ["loss"]},
        {**base, "times": [0, 5]},
        {**base, "engine": "plain"},
        {**base, "engine": "plain", "rtol": 1e-6},
        {**base, "axes": {"eta_z": [1, 2], "eta_y": [1, 2]}},
        {**base, "axes": {"eta_z": [1, 2], "eta_y": [1, 2]}, "zip": [["eta_z", "eta_y"]]},
    ]
    prints = [manifest.fingerprint(files.from_table(table).as_json()) for table in variants]
    assert len(set(prints)) == len(prints)
    for same in ({**base, "title": "x"}, {**base, "run": {"steps": 5, "b1": 0.5, "M": 77}}):
        assert manifest.fingerprint(files.from_table(same).as_json()) == prints[0]
    for a, b in itertools.combinations(variants, 2):
        old, new = (files.from_table(table).as_json() for table in (a, b))
        assert manifest.differences(old, new)


def test_a_ratio_means_eta_y_over_eta_z() -> None:
    rates = experiment(ratio=4.0, eta_z=0.5).make_optimizer().schedules
    assert (rates["Y"].peak, rates["Z"].peak) == (2.0, 0.5)


@pytest.mark.full(
    "sweeps/systems/test_words.py::test_of_very_many_combinations_every_word_is_looked_at"
)
def test_of_very_many_shapes_all_ranges_are_checked_and_the_tasks_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, make = set(), Training.make_task
    monkeypatch.setattr(Training, "make_task", lambda run: (made.add(run.K), make(run))[1])
    even = list(range(2, 302, 2))
    run = experiment(task="syn", num_common=2, num_distinct=1)
    Sweep(run, {"K": even}, record=("loss",)).check()
    assert {2, 300} <= made
    assert len(made) <= 64
    with pytest.raises(ValueError, match=r"K = -4: must be an integer >= 1"):
        Sweep(run, {"K": [*even[:5], -4, *even[5:]]}, record=("loss",)).check()
    # Two classes a query; what is not looked at beforehand is when it is computed.
    odd = Sweep(run, {"K": [2, 5, *even[1:]]}, record=("loss",))
    odd.check()
    with pytest.raises(ValueError, match="K = 5: must be a multiple of classes_per_query = 2"):
        odd.problem({"K": 5})
