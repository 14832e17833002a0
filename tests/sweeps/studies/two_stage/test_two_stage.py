"""The two-stage system in sweeps, comparison and figures."""

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import sweeps
from dynsim import Prompts, Status, train
from dynsim.two_stage import model as relu_prompt
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ
from dynsim.two_stage.task import sample_prompts
from odes import two_stage as reduced
from odes.two_stage.loss import ReducedState
from sweeps import cli
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.studies.two_stage import figure, finite
from sweeps.studies.two_stage.claims import Runs
from sweeps.studies.two_stage.phase import judge
from sweeps.systems.experiment import Experiment, experiment

pytestmark = pytest.mark.usefixtures("quick_theory")

TINY = {
    "d": 4,
    "length": 7,
    "batch": 8,
    "pool": 16,
    "decay": 0.2,
    "eta_2": 0.1,
    "stage_2": 0.5,
}
WORDS = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
"""The same on a command line."""


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def of_two_stages(problem: str = "two_stage", **settings: Any) -> Experiment:
    """An experiment that takes no time, 6 + 25 steps of 8 prompts."""
    return experiment(problem, **TINY, **settings)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments of figures that take no time."""
    for module in (figure, finite):
        monkeypatch.setattr(module, "experiment", of_two_stages)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
@pytest.mark.usefixtures("tiny")
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
@pytest.mark.usefixtures("tiny")
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


def test_moments_of_an_output_are_those_of_its_tokens() -> None:
    """Six tokens of seven places, drawn one by one."""
    task, num, score, across = Prompts(4, 7, gamma0=0.8, s1=0.6, r=1.4), 400_000, 0.7, 0.5
    rng = np.random.default_rng(0)
    label, side = rng.choice([-1.0, 1.0], size=(2, num))
    margin, noise = rng.normal(size=(2, num))
    along = {True: label * (0.8 + 0.6 * abs(margin)), False: np.where(label > 0, 0, 1.4 * side)}
    for on_P, signal in along.items():
        token = label * np.maximum(signal * score + across * noise, 0)
        mean, deviation = finite.moments(task, np.array([score]), np.array([across]), on_P)
        # Four standard errors.
        np.testing.assert_allclose(mean, 6 / 7 * token.mean(), atol=4 * token.std() / num**0.5)
        np.testing.assert_allclose(deviation, np.sqrt(6 * token.var()) / 7, rtol=0.01)


@pytest.mark.parametrize("on_P", [True, False])
def test_drawn_contexts_have_the_moments_of_outputs(on_P: bool) -> None:
    task, num = Prompts(4, 7, gamma0=0.8, s1=0.6, r=1.4), 200_000
    score, across = np.full(num, 0.7), np.full(num, 0.5)
    found = finite.contexts(task, score, across, on_P, np.random.default_rng(0))
    mean, deviation = finite.moments(task, score[:1], across[:1], on_P)
    # Four standard errors of the mean, and of the deviation at a kurtosis of 5.
    np.testing.assert_allclose(found.mean(), mean, atol=4 * found.std() / num**0.5)
    np.testing.assert_allclose(found.std(), deviation, rtol=4 / num**0.5)


def test_drawn_weights_have_the_numbers_of_their_state() -> None:
    d, numbers = 400, np.array([1.3, -0.7, *np.arange(3, 8) / 20])
    drawn = finite.projected(finite.weights(ReducedState(*numbers), d, np.random.default_rng(0)))
    # Four standard errors of a mean of d - 1 squares.
    np.testing.assert_allclose(jax.tree.leaves(drawn), numbers, rtol=4 * math.sqrt(2 / (d - 1)))


def test_errors_at_finite_length_have_a_panel_for_each_moment() -> None:
    made = {
        f"{loss}, {moment}": finite.Remainder(
            *(size / np.array(finite.LENGTHS) for size in (1, 0.1, 0.1, 0.07))
        )
        for loss in ("K1", "K2")
        for moment in finite.MOMENTS[1:]
    }
    axes = finite.draw(made).axes
    assert [ax.get_title() for ax in axes] == ["end of stage 1", "end of stage 2"]
    for ax in axes:
        # Two losses, each without variance and with it, and two guides.
        slopes = [np.polyfit(*np.log(np.array(line.get_data(), float)), 1)[0] for line in ax.lines]
        assert sorted(np.round(slopes, 6)) == [-2, -1, -1, -1, -1, -1]


def test_errors_have_an_exponent_where_sampling_cannot_have_made_them() -> None:
    """1/L in one case, within two errors of nothing in the other."""
    lengths = np.array(finite.LENGTHS, float)
    made = finite.Remainder(1 / lengths, *2 * [0.1 / lengths], 0.07 / lengths)
    *_, line = finite.length_lines({"K1": made})
    assert "infinite like L^-1.00" in line
    assert "gaussian like" not in line


def test_legends_of_many_curves_have_two_columns() -> None:
    runs = Runs(of_two_stages(), np.arange(3.0), np.arange(3.0), {}, 0)
    for number, columns in ((4, 1), (5, 2)):
        ax = plt.figure().gca()
        for place in range(number):
            ax.plot([1, 2], [place, place], label=str(place))
        assert figure.finish(ax, runs, "loss").get_legend()._ncols == columns
    plt.close("all")


def as_trained(runs: Runs) -> xr.Dataset:
    """A theory that predicts what the first run does, in place of one to compile."""
    values = {name: (("seed", "record"), runs.values[name][:1]) for name in Prompts.COMPARED}
    return xr.Dataset(values | {"status": ("seed", [0])})


# A training and a theory for each of its panels.
@pytest.mark.full(
    "test_legends_of_many_curves_have_two_columns",
    "sweeps/studies/two_stage/test_claims.py::test_verdicts_follow_the_numbers",
)
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "controls",
    [("forever",), tuple(figure.CONTROLS)],
    ids=["one-control", "all-controls"],
)
def test_figures_resume_and_keep_what_they_draw(
    controls: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each control is a training and a theory to compile.
    monkeypatch.setattr(figure, "CONTROLS", {name: figure.CONTROLS[name] for name in controls})
    if len(controls) == 1:
        monkeypatch.setattr(figure, "ode", as_trained)
        compute = figure.run_sweep
        known = lambda found, *out: found if isinstance(found, xr.Dataset) else compute(found, *out)
        monkeypatch.setattr(figure, "run_sweep", known)
    out = tmp_path / "two"
    # As many seeds of all, which then share programs.
    command = ["figure", "two_stage", "--seeds", "2", "--control-seeds", "2", "--times", "6"]
    command += WORDS
    assert cli.main([*command, "--out", str(out)]) == 0
    arrays = load(out / "two_stage.npz")
    assert arrays["preset/K2"].shape == arrays["joint/K2"].shape == (2, 6)
    for control in controls:
        assert arrays[f"{control}/K2"].shape == (2, 6)
    verdicts = json.loads((out / "two_stage.json").read_text())
    assert {claim["name"] for claim in verdicts["preset"]} >= {"a.2", "trace", "threshold"}
    before = len(jobs.PROGRAMS)
    assert cli.main([*command, "--out", str(out)]) == 0
    assert len(jobs.PROGRAMS) == before


@pytest.mark.full(
    "test_points_are_counted_on_their_side_of_the_line",
    "odes/two_stage/test_thresholds.py::test_critical_noise_is_the_root",
)
def test_the_plane_of_the_phases_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "phase"
    command = ["figure", "two_stage_phase", "--d", "4", "--length", "7", "--decay", "0.2"]
    command += ["--eta-time", "2", "--resolution", "3", "--points", "2", "--seeds", "2"]
    assert cli.main([*command, "--out", str(out)]) == 0
    arrays = load(out / "two_stage_phase.npz")
    assert arrays["theory/auc"].shape == (3, 3)
    assert arrays["simulation/auc"].shape == (2, 2)
    assert (arrays["lines/finite_time"] < arrays["lines/infinite_time"]).all()


@pytest.mark.full(
    "odes/two_stage/test_maps.py::test_loss_and_gradient_are_those_of_sampled_prompts",
    "odes/two_stage/test_spread.py::test_variance_of_the_gradient_against_tokens_one_by_one",
)
@pytest.mark.usefixtures("tiny")
def test_the_study_of_finite_size_tells_orders_and_variances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "LENGTHS", (9, 33))
    out = tmp_path / "finite"
    command = ["figure", "two_stage_finite", "--samples", "400", "--prompts", "256"]
    assert cli.main([*command, "--out", str(out)]) == 0
    arrays = load(out / "two_stage_finite.npz")
    infinite, gaussian = (
        np.abs(arrays[f"K1, end of stage 2/{kind}"]) for kind in ("infinite", "gaussian")
    )
    assert (gaussian < 0.6 * infinite).all()
    assert arrays["variance"].shape == (3, 7)


@pytest.mark.full(
    "dynsim/two_stage/test_rank_truncation.py::test_directions_are_kept_and_dropped_in_the_order_of_their_singular_values"
)
@pytest.mark.usefixtures("tiny")
def test_the_spectrum_of_runs_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "spectrum"
    assert cli.main(["spectrum", "--seeds", "2", *WORDS, "--out", str(out)]) == 0
    arrays = load(out / "spectrum.npz")
    assert arrays["stage-1/dropped/K1"].shape == (2, 9)
    np.testing.assert_allclose(arrays["stage-2/kept/K2"][:, 0], np.log(2), rtol=1e-6)


def test_variances_of_gradients_are_those_of_single_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same prompts, one by one, in chunks of four; of nine prompts those of whole chunks."""
    monkeypatch.setattr(finite, "CHUNK", 4)
    task, rng = Prompts(3, 5), np.random.default_rng(0)
    U = PQ(*rng.normal(size=(2, 3, 3)).astype(np.float32))
    gradient = jax.jit(jax.grad(lambda U, one: relu_prompt.data_loss(U, task.coupling, one)))
    each = []
    for key in jax.random.split(jax.random.key(1), 2):
        drawn = sample_prompts(task, key, 4)
        for i in range(4):
            one = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], drawn)
            each.append(np.stack([*map(np.asarray, jax.tree.leaves(gradient(U, one)))]))
    W, V = np.var(each, axis=0)
    want = [W[0, 0], V[0, 0], W[0, 1:].mean(), W[1:].mean()]
    want += [V[0, 1:].mean(), V[1:, 0].mean(), V[1:, 1:].mean()]
    # float32 gradients of one, and many squared.
    np.testing.assert_allclose(finite.variance(task, U, 9), want, rtol=1e-4)


def test_points_are_counted_on_their_side_of_the_line() -> None:
    """A line at tau = 1 and a grid of factor 2: tau = 0.5 and 2 are within a cell of it."""
    tau = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    auc = np.array([[0.95, 0.8], [0.5, 0.5], [0.5, 0.5], [0.9, 0.9], [0.5, 0.7]])
    simulated = xr.DataArray(auc, {"tau": tau, "r": [1.0, 2.0]})
    verdict = judge(simulated, np.array([1.0, 1.0]))
    assert verdict == (6, 2, 1, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "two_stage", "--d", "1"], "d = 1: must be an integer from 2"),
        (["compare", "two-stage", "--length", "1"], "length = 1"),
        (["compare", "two_stage", "--r", "0"], "r = 0: must be a number in (0"),
        (["compare", "two_stage", "--s2", "-1"], "s2 = -1"),
        (["compare", "two_stage", "--coupling", "2"], "coupling = 2"),
        (["compare", "two_stage", "--tau-0", "-1"], "tau_0 = -1"),
        (["compare", "two_stage", "--pool", "0"], "pool = 0"),
        (["compare", "two_stage", "--theories", "worst"], "theories = 'worst'"),
        (
            ["compare", "two_stage", "--core", "fixed", "--theories", "ode"],
            "theory 'ode' does not apply: core = 'fixed': must be 'fresh'",
        ),
        (["figure", "two_stage", "--seeds", "0"], "seeds = 0"),
        (["figure", "two_stage", "--times", "2"], "times = 2: must be an integer from 3"),
        (["figure", "two_stage_phase", "--tau", "1", "0.5"], "tau = 1.0, 0.5: must increase"),
        (["figure", "two_stage_phase", "--eta-time", "9"], "eta_time = 9.0"),
        (["figure", "spectrum", "--seeds", "0"], "seeds = 0"),
        (["spectrum", "--checkpoint", "no.safetensors"], "no.safetensors"),
    ],
)
def test_bad_input_is_named_and_nothing_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    # Values that the parser reads end the command there.
    with contextlib.suppress(SystemExit):
        assert cli.main([*arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


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


@pytest.mark.full(
    "sweeps/runner/test_run.py::test_diverged_runs_are_data_and_are_masked",
    "dynsim/two_stage/test_simulate.py::test_a_run_that_blows_up_is_data",
)
@pytest.mark.usefixtures("tiny")
def test_runs_that_diverge_are_left_out_of_the_means() -> None:
    found = sweeps.run(
        Sweep(of_two_stages(num_test=8), {"gamma0": [1.0, 1e15], "tau": [1e15]}, record=("K1",))
    )
    assert found["status"].values.ravel().tolist() == [Status.OK, Status.DIVERGED]
