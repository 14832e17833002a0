"""The two-stage system in sweeps: programs, draws, theories, and mistakes."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import sweeps
from dynsim import Prompts, train
from dynsim.two_stage.annealing import Annealing
from odes import two_stage as reduced
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment, experiment

pytestmark = pytest.mark.usefixtures("quick_theory")


def of_two_stages(**settings: Any) -> Experiment:
    """An experiment that takes no time, 6 + 25 steps of 8 prompts."""
    sizes = {"d": 4, "length": 7, "batch": 8, "pool": 16}
    rates = {"decay": 0.2, "eta_2": 0.1, "stage_2": 0.5}
    return experiment("two_stage", **sizes, **rates, **settings)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_a_sweep_over_traced_numbers_is_the_single_runs_and_compiles_once() -> None:
    """Rates change the number of steps, r and coupling the task: none of them the program."""
    axes = {"eta_1": [0.1, 0.2], "r": [1.0, 2.0], "coupling": [0.0, 0.7], "seed": [3]}
    run = of_two_stages(num_test=32)
    before = len(jobs.PROGRAMS)
    found = sweeps.run(Sweep(run, axes, "simulation", ("K2", "V_trace", "eta_time"), 5)).load()
    assert len(jobs.PROGRAMS) == before + 1
    assert found["K2"].dims == ("eta_1", "r", "coupling", "seed", "record")
    np.testing.assert_allclose(found["time"][:, 0, 0, 0, -1], [12 + 25, 6 + 25])
    problem, rule = run.at({"eta_1": 0.1, "r": 2.0, "coupling": 0.7}).built
    key = jax.random.fold_in(jax.random.key(0), 3)
    times, record = Annealing.of(rule).spread(5), ("K2", "V_trace", "eta_time")
    times = np.rint(times).astype(int)
    alone = train(problem, rule, key, steps=None, batch=8, times=times, record=record)
    cell = found.sel(eta_1=0.1, r=2.0, coupling=0.7, seed=3)
    # float32, the same operations in another order over 37 steps.
    np.testing.assert_allclose(cell["K2"], alone["K2"], rtol=1e-4)
    np.testing.assert_allclose(cell["V_trace"], alone["V_trace"], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(cell["eta_time"], alone["eta_time"], rtol=1e-6)


@pytest.mark.full(
    "dynsim/two_stage/test_simulate.py::test_a_run_is_the_algorithm_step_by_step",
    "sweeps/runner/test_run.py::test_steps_as_an_axis_record_at_their_own_times",
)
def test_prompts_are_drawn_once_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the points, the chunks and the order of the axes; and anew for other sizes."""
    drawn: list[list[int]] = []

    def draw(program: jobs.Program, task: object, seeds: np.ndarray, root: object) -> object:
        drawn.append(seeds.ravel().tolist())
        return made(program, task, seeds, root)

    made = jobs.Program.draw
    monkeypatch.setattr(jobs.Program, "draw", draw)
    axes = {"length": [7, 5], "r": [1.0, 2.0], "seed": [3, 5], "tau": [0.1, 0.2]}
    sweep = Sweep(of_two_stages(num_test=16), axes, "simulation", ("K2",), "end")
    found = sweeps.run(sweep, chunk=1, devices=jax.devices()[:1])
    assert drawn == 2 * [[3], [5]]
    for cell in ({"length": 5, "r": 2.0}, {"length": 7, "tau": 0.1}):
        part = {name: [cell[name]] if name in cell else axes[name] for name in axes}
        alone = sweeps.run(dataclasses.replace(sweep, axes=part), chunk=4)
        np.testing.assert_array_equal(
            found.sel({n: [v] for n, v in cell.items()})["K2"], alone["K2"]
        )


@pytest.mark.parametrize(
    ("theory", "coupling"),
    [
        ("infinite", 0.0),
        pytest.param("ode", 0.5, marks=pytest.mark.full),
        pytest.param("anchored", 0.0, marks=pytest.mark.full),
    ],
)
@pytest.mark.more
def test_theories_are_the_solver(theory: str, coupling: float) -> None:
    run, record = of_two_stages(coupling=coupling, num_test=8), ("K1", "K2", "state")
    found = sweeps.run(Sweep(run, {"tau": [0.1, 0.5], "seed": [3]}, theory, record, 4))
    problem, rule = run.at({"tau": 0.5}).built
    times, key = np.rint(Annealing.of(rule).spread(4)), jax.random.fold_in(jax.random.key(0), 3)
    if theory == "anchored":
        alone = reduced.solve_anchored(problem, rule, times, key=key, batch=8, record=record)
        # The first stage has six steps.
        at = [0, 6]
        kept = train(problem, rule, key, steps=None, batch=8, times=at, record="state")["state"]
        here = found["state"].sel(tau=0.5).values[0, np.searchsorted(times, at)]
        np.testing.assert_array_equal(here, kept)
    else:
        finite = theory == "ode"
        alone = reduced.solve(problem, rule, times, finite_length=finite, record=record)
    for name in record:
        # Rounding alone: the same steps in a batch.
        np.testing.assert_allclose(found[name].sel(tau=0.5)[0], alone[name], rtol=1e-9)


def test_the_sweep_that_comes_along_loads() -> None:
    sweep = sweeps.load("two_stage", ["axes.seed = [0]"])
    sweep.check()
    assert isinstance(sweep.first.problem, Prompts)
    assert [dim.size for dim in sweep.dims] == [4, 3, 1]


@pytest.mark.parametrize(
    ("axes", "settings", "theory", "record", "message"),
    [
        ({"eta_y": [1.0]}, {}, "simulation", "K1", "eta_y"),
        ({"r": [1.0, -1.0]}, {}, "simulation", "K1", "r = -1.0"),
        ({"r": [1.0]}, {}, "plain", "K1", "theory = 'plain'"),
        ({"r": [1.0]}, {}, "simulation", "loss", "record = 'loss'"),
        ({"r": [1.0]}, {"bias": True}, "ode", "K1", "bias = True"),
        ({"r": [1.0]}, {"core": "fixed"}, "ode", "K1", "core = 'fixed'"),
    ],
)
def test_bad_sweeps_are_named(
    axes: dict, settings: dict, theory: str, record: str, message: str
) -> None:
    run = experiment("two_stage", **settings)
    with pytest.raises(ValueError, match=message):
        Sweep(run, axes, theory, record).check()
