"""Axes and sweep files: what they mean, and which settings make a sweep another one."""

import dataclasses
import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import dynsim
import sweeps
from sweeps import Sweep, experiment, recipes
from sweeps.language.tree import toml
from sweeps.runner.config import config_of, from_config
from sweeps.runner.spec import from_table, load
from sweeps.runner.store import manifest


def test_the_problem_may_be_given_by_an_override_or_an_axis() -> None:
    table = {"run": {"steps": 3}, "axes": {"seed": [1]}}
    assert from_table(table, ["run.problem=two_stage", "run.r=2"]).first.setting("r") == 2
    axes = {"problem": ["two_stage", "two_stage-fast"]}
    from_table({"axes": axes}).check()


@pytest.mark.parametrize("large", [2**53 + 1, 2**64, 10**38])
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


def test_the_papers_sweeps_are_valid() -> None:
    files = [*(Path(sweeps.__file__).parent / "recipes").glob("*.toml")]
    assert files
    for file in files:
        sweep = load(file.stem)
        sweep.check()
        assert sweep.title


BASE = {"axes": {"eta_z": [1, 2], "seed": [0]}, "run": {"problem": "yz", "steps": 5}}
ZIP = {"axes": {"eta_z": [1, 2], "eta_y": [1, 2]}}
DIFFERENT: list[dict[str, Any]] = [
    {},
    {"root": 1},
    {"run": {"problem": "yz", "steps": 6}},
    {"run": {"problem": "yz", "steps": 5, "batch": 3}},
    {"run": {"problem": "yz", "steps": 5, "momentum": 0.5}},
    {"axes": {"eta_z": [1, 3], "seed": [0]}},
    {"axes": {"seed": [0], "eta_z": [1, 2]}},
    {"axes": {"eta_z": [1, 2], "seed": [1]}},
    {"record": ["loss"]},
    {"times": [0, 5]},
    {"times": 2},
    {"checkpoint": True},
    {"theory": "plain"},
    {"theory": "plain", "rtol": 1e-6},
    ZIP,
    {**ZIP, "zip": [["eta_z", "eta_y"]]},
]
SAME: list[dict[str, Any]] = [
    {"title": "x"},
    {"run": {"problem": {"kind": "yz", "length": 128}, "steps": 5.0}},
    {"axes": {"eta_z": [1.0, 2.0], "seed": {"range": 1}}},
    {"times": "end"},
]


def test_only_what_decides_the_numbers_is_hashed() -> None:
    configs = [config_of(from_table({**BASE, **change})) for change in DIFFERENT]
    prints = [manifest.fingerprint(config) for config in configs]
    assert len(set(prints)) == len(prints)
    for old, new in itertools.combinations(configs, 2):
        assert manifest.differences(old, new)
    for change in SAME:
        assert manifest.fingerprint(config_of(from_table({**BASE, **change}))) == prints[0]
    for config in configs:
        assert config_of(from_config(json.loads(json.dumps(config)))) == config


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
        "eta.Z = { logspace = [0.1, 10, 3] }\n"
        "[axes.task]\nsmall = 'syn-small'\nmedium = { kind = 'syn-medium', num_queries = 2 }\n"
    )
    found = from_table(written, ["axes.rule.momentum=[0, 0.9]"])
    changes = ["axes.rule.eta.Y=", "axes.seed={range = 2}", "run.steps=7", 'theory="descent"']
    left = from_table(written, changes)
    assert [*left.fields] == ["eta.Z", "task", "seed"]
    assert (left.first.steps, left.fields["seed"], left.theory) == (7, (0, 1), "descent")
    assert found.fields == {
        "rule.eta.Y": (0.5, 1.0),
        "eta.Z": pytest.approx((0.1, 1.0, 10.0)),
        "task": ("small", "medium"),
        "rule.momentum": (0.0, 0.9),
    }
