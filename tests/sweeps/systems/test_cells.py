"""A cell of a sweep has the task and the rule that its values name, in every system."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import pytest

import dynsim
from dynsim.two_stage.annealing import Annealed
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.experiment import experiment
from sweeps.systems.training import divided, names_of_numbers


class Case(NamedTuple):
    """Settings of a run, the values of a cell, and the task and rule that they stand for; no task
    where none of the values is part of it."""

    settings: dict[str, Any]
    cell: dict[str, float]
    task: Any
    rule: Any


CASES = {
    "yz": Case(
        {"momentum": 0.5},
        {"eta_y": 2.0, "eta_z": 0.3, "momentum": 0.6},
        dynsim.SynSmall().build(),
        dynsim.sgd(2.0, 0.3, momentum=0.6),
    ),
    "qkv": Case(
        {"momentum": 0.5, "width": 34},
        {"eta_y": 2.0, "eta_z": 0.3, "momentum": 0.6, "scale": 1.5},
        dynsim.QKV(dynsim.SynSmall().build(), width=34, scale=1.5),
        dynsim.sgd(2.0, 0.3, momentum=0.6),
    ),
    "two_stage": Case(
        {},
        {"r": 2.0, "s1": 0.7, "coupling": 0.4, "eta_1": 0.1, "decay": 0.2, "tau": 0.3},
        dynsim.Prompts(32, 129, gamma0=1.0, s1=0.7, s2=1.0, r=2.0, coupling=0.4, tau_0=0.3),
        Annealed(0.1, 0.01, 0.2, 0.3, stage_2=3.0).build(),
    ),
    "linear_icl": Case(
        {"spectrum": "geometric", "batch": math.inf, "scale": 0.3},
        {"eta": 0.4, "ratio": 0.7, "scale": 0.2},
        dynsim.Regression(spectrum=dynsim.GeometricSpectrum(0.7), scale=0.2),
        dynsim.sgd(0.4),
    ),
    "sparse_attention": Case(
        {"length": 8, "d": 4},
        {"eta": 0.4, "p": 0.7},
        dynsim.Retrieval(8, 4, p=0.7),
        dynsim.sgd(0.4),
    ),
    "joma": Case(
        {"length": 16, "batch": 4},
        {"eta_y": 0.4, "eta_z": 0.2, "temperature": 0.7, "scale": 0.3},
        dynsim.JoMA(dynsim.SynMedium(1).build(), 16, temperature=0.7, scale=0.3),
        dynsim.sgd(0.4, 0.2),
    ),
    "transformer": Case({"clip": 0.5}, {"eta": 0.4, "clip": 0.7}, None, dynsim.sgd(0.4, clip=0.7)),
}


def test_every_system_has_a_case() -> None:
    assert set(CASES) == set(registry.BUILT_IN)


@pytest.mark.parametrize("system", CASES)
def test_a_cell_has_the_task_and_the_rule_of_its_values(system: str) -> None:
    settings, cell, task, rule = CASES[system]
    axes = {name: [value / 2, value] for name, value in cell.items()}
    sweep = Sweep(experiment(system, **settings), {**axes, "seed": [0, 1]}, record=("loss",))
    assert len(list(sweep.slices())) == 1, "its numbers share a program"
    runs = sweep.runs({})
    given = divided(sweep.point(cell).training())[0]
    assert names_of_numbers(given) == names_of_numbers(runs.numbers)
    numbers = tiles.unflat(runs.numbers, tiles.flat(given))
    found = eqx.combine(numbers, runs.arrays, runs.call.rest.tree)
    wanted = (found.problem if task is None else task, rule)
    ours, theirs = (jax.tree.leaves(each) for each in ((found.problem, found.rule), wanted))
    for got, want in zip(ours, theirs, strict=True):
        if isinstance(want, str):
            assert got == want
            continue
        # Tasks may be in float32.
        np.testing.assert_allclose(got, want, rtol=1e-6)
