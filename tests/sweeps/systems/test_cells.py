"""A cell of a sweep is the run of its values, in every system: the same task, rule and numbers."""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim.precision import precision
from dynsim.two_stage.annealing import Annealed, Annealing
from sweeps.runner import tiles
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.experiment import experiment
from sweeps.systems.training import names_of_numbers, partition


class Case(NamedTuple):
    """Settings of a run, the values of a cell, the task and rule that they stand for, and how far
    rounding takes each observable: the same operations in another order, in float32 over all steps.
    No task where none of the values is part of it."""

    settings: dict[str, Any]
    cell: dict[str, float]
    task: Any
    rule: Any
    allowed: dict[str, tuple[float, float]]
    times: Any = "end"


CASES = {
    "yz": Case(
        {"momentum": 0.5, "steps": 6, "length": 12, "batch": 8},
        {"eta_y": 2.0, "eta_z": 0.3, "momentum": 0.6},
        dynsim.SynSmall().build(),
        dynsim.sgd(2.0, 0.3, momentum=0.6),
        {"loss": (1e-4, 0)},
    ),
    "qkv": Case(
        {"momentum": 0.5, "width": 34, "steps": 6, "length": 12, "batch": 8},
        {"eta_y": 2.0, "eta_z": 0.3, "momentum": 0.6, "scale": 1.5},
        dynsim.QKV(dynsim.SynSmall().build(), width=34, scale=1.5),
        dynsim.sgd(2.0, 0.3, momentum=0.6),
        {"loss": (1e-4, 0), "z_top_distinct": (1e-3, 0)},
    ),
    # Rates change the number of steps, r and coupling the task: none of them the program.
    "two_stage": Case(
        {"d": 4, "length": 7, "batch": 8, "pool": 16, "num_test": 32, "stage_2": 0.5, "eta_2": 0.1},
        {"r": 2.0, "s1": 0.7, "coupling": 0.4, "eta_1": 0.1, "decay": 0.2, "tau": 0.3},
        dynsim.Prompts(4, 7, gamma0=1.0, s1=0.7, s2=1.0, r=2.0, coupling=0.4, tau_0=0.3),
        Annealed(0.1, 0.1, 0.2, 0.3, stage_2=0.5).build(),
        {"K2": (1e-4, 0), "V_trace": (1e-3, 1e-5), "eta_time": (1e-6, 0)},
        5,
    ),
    "linear_icl": Case(
        {"spectrum": "geometric", "batch": math.inf, "scale": 0.3, "steps": 40},
        {"eta": 0.4, "ratio": 0.7, "scale": 0.2},
        dynsim.Regression(spectrum=dynsim.GeometricSpectrum(0.7), scale=0.2),
        dynsim.sgd(0.4),
        {"loss": (1e-4, 0)},
    ),
    "sparse_attention": Case(
        {"length": 8, "d": 4, "steps": 30, "batch": 4},
        {"eta": 0.4, "p": 0.7},
        dynsim.Retrieval(8, 4, p=0.7),
        dynsim.sgd(0.4),
        {"loss": (1e-4, 0)},
    ),
    "joma": Case(
        {"length": 16, "batch": 4, "steps": 20},
        {"eta_y": 0.4, "eta_z": 0.2, "temperature": 0.7, "scale": 0.3},
        dynsim.JoMA(dynsim.SynMedium(1).build(), 16, temperature=0.7, scale=0.3),
        dynsim.sgd(0.4, 0.2),
        {"loss": (1e-4, 0)},
    ),
    "transformer": Case(
        {"clip": 0.5, "length": 6, "width": 4, "mlp": 0, "steps": 3, "num_held_out": 4, "batch": 2},
        {"eta": 4.0, "clip": 0.1},
        None,
        dynsim.sgd(4.0, clip=0.1),
        dict.fromkeys(("entropy", "layer_change", "batch_loss"), (1e-4, 1e-6)),
        3,
    ),
}


def grid(system, seeds, **options):
    """A sweep over half of each value of a cell and all of it."""
    case = CASES[system]
    axes = {name: [value / 2, value] for name, value in case.cell.items()} | {"seed": seeds}
    return Sweep(experiment(system, **case.settings), axes, record=tuple(case.allowed), **options)


@pytest.mark.parametrize("system", registry.BUILT_IN)
def test_a_cell_has_the_task_and_the_rule_of_its_values(system):
    _, cell, task, rule, *_ = CASES[system]
    sweep = grid(system, [0, 1])
    assert len(list(sweep.slices())) == 1, "its numbers share a program"
    runs = sweep.runs({})
    given = partition(sweep.point(cell).training())[0]
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


@pytest.mark.full("test_a_cell_has_the_task_and_the_rule_of_its_values")
@pytest.mark.parametrize("system", CASES)
def test_a_grid_is_one_program_and_its_single_runs(system):
    cell, allowed, times = CASES[system].cell, CASES[system].allowed, CASES[system].times
    sweep, before = grid(system, [3], times=times), len(jobs.PROGRAMS)
    found = sweeps.run(sweep).load()
    assert len(jobs.PROGRAMS) == before + 1
    run, at = sweep.run.at(cell), found.sel(cell).isel(seed=0)
    problem, rule = run.built
    if system == "two_stage":
        steps = np.rint(Annealing.of(rule).spread(times))
        np.testing.assert_allclose(at["time"], steps)
    else:
        steps = np.atleast_1d(found["time"].values) if "time" in found.dims else [run.steps]
    alone = dynsim.train(
        problem, rule, jax.random.fold_in(jax.random.key(0), 3), steps=run.steps, batch=run.batch,
        times=np.asarray(steps, int), record=tuple(allowed),
    )  # fmt: skip
    for name, (rtol, atol) in allowed.items():
        want = alone[name] if at[name].shape == alone[name].shape else alone[name][0]
        np.testing.assert_allclose(at[name], want, rtol=rtol, atol=atol, err_msg=name)
    first = next(iter(allowed))
    assert len(np.unique(found[first].values.reshape(-1, *at[first].shape), axis=0)) > 2


SMALL: dict[str, dict[str, Any]] = {
    "yz": {"batch": 8, "length": 32},
    "qkv": {"batch": 4, "length": 8},
    "linear_icl": {"batch": 8},
    "sparse_attention": {"batch": 8},
    "joma": {"batch": 8, "length": 8},
    "transformer": {"corpus": "synthetic", "batch": 2, "length": 8, "rule": "adam"},
}
RESUMABLE = [
    (system, theory)
    for system in registry.BUILT_IN
    for theory, method in registry.theories(registry.system(system)).items()
    if method.resumes
]


@pytest.mark.parametrize(("system", "theory"), RESUMABLE)
@pytest.mark.more
def test_every_theory_that_resumes_leaves_a_checkpoint(system, theory):
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
        with pytest.raises(ValueError, match="larger than step 5"):
            jax.eval_shape(lambda: ended(at))


# Three programs for each theory.
@pytest.mark.full("test_every_theory_that_resumes_leaves_a_checkpoint")
# Traced numbers stand in fields for floats where a problem is made from another.
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("system", "theory"), RESUMABLE)
def test_two_parts_are_the_run_bit_for_bit(system, theory, tmp_path):
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
