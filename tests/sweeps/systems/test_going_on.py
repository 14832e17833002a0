"""Every theory whose runs can go on: in two parts a run ends where it ends at once, to the bit."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import sweeps
from dynsim.precision import precision
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.experiment import experiment

SMALL: dict[str, dict[str, Any]] = {
    "yz": {"batch": 8, "length": 32},
    "qkv": {"batch": 4, "length": 8},
    "linear_icl": {"batch": 8},
    "sparse_attention": {"batch": 8},
    "joma": {"batch": 8, "length": 8},
    "transformer": {
        "corpus": "synthetic",
        "batch": 2,
        "length": 8,
        "rule": "adam",
    },
}
THEORIES = [
    (system, theory)
    for system in registry.BUILT_IN
    for theory, method in registry.theories(registry.system(system)).items()
    if method.resumes
]


def test_training_of_every_system_that_can_goes_on() -> None:
    assert {name for name, _ in THEORIES} == set(registry.BUILT_IN) - {"two_stage"}


@pytest.mark.parametrize(("system", "theory"), THEORIES)
@pytest.mark.more
def test_every_theory_that_can_go_on_leaves_a_checkpoint(system: str, theory: str) -> None:
    method = registry.theories(registry.system(system))[theory]
    run = experiment(system, steps=5, **SMALL[system])
    names = method.observables(run.bare).names()
    sweep = Sweep(run, {"seed": [1]}, theory, names[:1], checkpoint=True)
    runs = sweep.runs({})

    def ended(checkpoint: Any) -> Any:
        key = jax.random.key(0)
        drawn = runs.call.draw(runs.arrays, key) if runs.call.draws else None
        call = runs.call._replace(checkpoint=checkpoint)
        return call.run(runs.numbers, runs.arrays, key, drawn)

    with precision(sweep.dtype):
        left = jax.eval_shape(lambda: ended(True).checkpoint)
        assert left.step == 5
        # It begins there, as it says where no step is left to make.
        at = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), left)
        with pytest.raises(ValueError, match="must be larger than step 5 of the checkpoint"):
            jax.eval_shape(lambda: ended(at))


# Three programs for each theory.
@pytest.mark.full(
    "test_every_theory_that_can_go_on_leaves_a_checkpoint",
    "sweeps/runner/store/test_reuse.py::test_runs_go_on_for_more_steps",
    "dynsim/training/test_loop.py::test_two_parts_are_the_run",
)
# Traced numbers stand in fields for floats where a problem is made from another.
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("system", "theory"), THEORIES)
def test_two_parts_are_the_run(system: str, theory: str, tmp_path: Path) -> None:
    run = experiment(system, steps=5, **SMALL[system])
    names = registry.theories(registry.system(system))[theory].observables(run.bare).names()
    record = ("loss",) if "loss" in names else tuple(names)[:1]
    if system == "transformer":
        record = (*record, "change")
    short = Sweep(run, {"seed": [1]}, theory, record, (0, 3, 5), checkpoint=True)
    sweeps.run(short, tmp_path / "short")
    long = dataclasses.replace(short, run=run.at({"steps": 8}), times=(0, 3, 5, 7, 8))
    found = sweeps.run(long, tmp_path / "long", reuse=[tmp_path / "short"])
    want = sweeps.run(long)
    for name in (*record, "status", "first_bad_step"):
        np.testing.assert_array_equal(found[name], want[name])
