"""Sweeps: their runs are single runs, whatever the chunks, tiles and devices."""

import dataclasses
import gc
import math
import re
import types
import weakref
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from dynsim.compiling import Cost
from odes.yz import population
from sweeps import Sweep, experiment
from sweeps.runner import labels, progress, tiles, work
from sweeps.runner.labels import valid
from sweeps.runner.program import jobs, kept
from tests.systems.layers import initial_weights, simulate

pytestmark = pytest.mark.usefixtures("quick_theory")

TRAINING = experiment(
    task="syn-medium",
    steps=6,
    length=16,
    batch=8,
    start="uniform",
    num_queries=1,
)
BY_RATIO = TRAINING.at({"eta": "ratio"})
GRID = Sweep(
    BY_RATIO,
    {"ratio": [1, 2, 5], "seed": [0, 3], "eta_z": [0.5, 2], "momentum": [0.1, 0.9]},
    zip=(("eta_z", "momentum"),),
    record=("entropy", "loss", "batch_loss"),
    times=(0, 6),
    root=7,
)


@pytest.fixture(scope="module")
def whole() -> xr.Dataset:
    return sweeps.run(GRID).load()


def same(a: xr.Dataset, b: xr.Dataset, **tolerance: float) -> None:
    assert set(a.variables) == set(b.variables)
    for name in a.variables:
        assert a[name].dims == b[name].dims
        np.testing.assert_allclose(a[name].values, b[name].values, **{"rtol": 0, **tolerance})


@pytest.mark.more
def test_a_run_of_a_sweep_is_the_run_that_simulate_makes(whole: xr.Dataset) -> None:
    assert dict(whole.sizes) == {"ratio": 3, "seed": 2, "eta_z": 2, "time": 2}
    np.testing.assert_array_equal(whole.time, [0, 6])
    task = dynsim.SynMedium(1).build()
    for ratio, seed, i in ((1, 0, 0), (5, 3, 1), (2, 3, 0)):
        eta_z, momentum = (0.5, 2)[i], (0.1, 0.9)[i]
        run = simulate(
            task,
            dynsim.sgd(ratio * eta_z, eta_z, momentum=momentum),
            jax.random.fold_in(jax.random.key(7), seed),
            steps=6,
            length=16,
            batch=8,
            init="uniform",
            times=[0, 6],
            record=["entropy", "loss"],
        )
        cell = whole.sel(ratio=ratio, seed=seed, eta_z=eta_z)
        assert cell.momentum == momentum
        for name in ("entropy", "loss", "batch_loss"):
            # Float32 rounding of six steps, in another batch.
            np.testing.assert_allclose(cell[name], run[name], rtol=3e-5)


@pytest.mark.parametrize(
    ("chunk", "tile", "devices"),
    [
        pytest.param(1, 16, 4, marks=pytest.mark.full),
        (5, 4, 2),
        pytest.param(100, 2, 4, marks=pytest.mark.full),
        pytest.param(7, None, 3, marks=pytest.mark.full),
    ],
)
@pytest.mark.more
def test_chunks_tiles_and_devices_do_not_matter(
    whole: xr.Dataset, chunk: int, tile: int | None, devices: int
) -> None:
    found = sweeps.run(GRID, chunk=chunk, tile=tile, devices=jax.devices()[:devices])
    # Another batch size may round differently: float32, six steps.
    same(found, whole, rtol=3e-5)


@pytest.mark.full("test_chunks_tiles_and_devices_do_not_matter")
def test_four_devices_give_bitwise_what_one_gives() -> None:
    one, four = (sweeps.run(GRID, tile=4, devices=jax.devices()[:n]) for n in (1, 4))
    same(one, four)


@pytest.mark.full(
    "sweeps/systems/test_problems.py::test_a_grid_of_numbers_is_one_program_and_found_again"
)
def test_new_values_and_grid_sizes_compile_nothing() -> None:
    def run(ratios: int, seeds: int, **change: object) -> None:
        axes = {"ratio": {"linspace": [1, 3, ratios]}, "seed": {"range": seeds}}
        sweeps.run(Sweep(BY_RATIO, axes, record=("loss",), **change), tile=4)

    jobs.forget()
    run(4, 2)
    before = len(jobs.PROGRAMS)
    run(11, 3)
    run(17, 2, root=5)
    assert len(jobs.PROGRAMS) == before
    run(2, 2)
    assert len(jobs.PROGRAMS) == before + 1, "another tile is another program"


ANEW = """
import jax, jax.numpy as jnp, dynsim
class Anew(dynsim.Problem):
    def init(self, key): return jax.random.normal(key)
    def draw(self, key, batch): return jax.random.normal(key, (batch,))
    def loss(self, params, data): return jnp.mean((params - data) ** {number})
"""
RULE = """
import optax, dynsim
class Longer(dynsim.Rule):
    def direction(self): return optax.scale({number} + 1.0)
"""


def executed(source: str, name: str, number: int) -> type:
    found = {"__name__": "anew"}
    exec(source.format(number=number), found)
    return found[name]


OTHER = executed(ANEW.replace("Anew", "Other"), "Other", 2)


def made_by_a_function(number: int) -> type:
    class Anew(executed(ANEW, "Anew", 0)):
        def loss(self, params: Any, data: Any) -> Any:
            return jnp.mean((params - data) ** number)

    return Anew


def made_by_types(number: int) -> type:
    def loss(self: Any, params: Any, data: Any) -> Any:
        return jnp.mean((params - data) ** number)

    body = {"__module__": "anew", "loss": loss}
    return types.new_class(
        "Anew", (executed(ANEW, "Anew", 0),), {}, lambda space: space.update(body)
    )


@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        (lambda number: executed(ANEW, "Anew", number)(), lambda number: dynsim.sgd(0.1)),
        (lambda number: made_by_a_function(number)(), lambda number: dynsim.sgd(0.1)),
        (lambda number: made_by_types(number)(), lambda number: dynsim.sgd(0.1)),
        (lambda number: OTHER(), lambda number: executed(RULE, "Longer", number)(0.1)),
    ],
    ids=["file", "function", "types", "rule"],
)
@pytest.mark.more
def test_programs_of_classes_that_were_defined_again_are_dropped(
    problem: Any, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no more than eight besides the current one. Programs of other classes are kept."""
    monkeypatch.setattr(jobs, "PROGRAMS", {})

    def traced(run: sweeps.Experiment) -> jobs.Program:
        made = work.Work(Sweep(run, {"eta": [0.1]}, record=("batch_loss",)), tiles.mesh())
        return made.program(())[1]

    other = sweeps.Experiment(OTHER(), dynsim.sgd(0.1), 1, 2)
    kept_one = traced(other)
    number, alive = jobs.MOST_GONE + 2, []
    for i in range(number):
        alive.append(weakref.ref(traced(sweeps.Experiment(problem(i), rule(i), 1, 2))))
        assert len(jobs.PROGRAMS) <= jobs.MOST_GONE + 2
    assert [each() is not None for each in alive] == [False] * (number - 1) + [True]
    assert traced(other) is kept_one


def test_runs_that_differ_in_more_than_values_have_programs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where their arrays are of the same shapes."""
    monkeypatch.setattr(jobs, "PROGRAMS", {})
    # Of 10 operations without arrays, which run for longer than they compile from some turns on.
    costs = kept.Known({}, Cost(), draws=False, of_seed=Cost(10, 1e-3, 0.0))
    monkeypatch.setattr(jobs, "Program", lambda job: SimpleNamespace(known=costs))
    call: Any = GRID.runs({}).call
    job = jobs.Job((np.zeros(3),), {"eta": 0.1}, (2, 4), call, tiles.mesh())
    first = jobs.program(job)
    assert jobs.program(job._replace(arrays=(np.ones(3),), numbers={"eta": 0.2})) is first
    for change in (
        {"arrays": (np.zeros(4),)},
        {"arrays": (np.zeros(3, int),)},
        {"arrays": [np.zeros(3)]},
        {"numbers": {"eta": 0.1, "clip": 0.1}},
        {"tile": (4, 2)},
        {"call": call._replace(theory=dataclasses.replace(call.theory, at_once=1))},
        {"call": call._replace(record=("loss",))},
        {"mesh": tiles.mesh(jax.devices()[:1])},
        {"state": 8},
        {"turns": 10**6},
    ):
        assert jobs.program(job._replace(**change)) is not first, change
        assert jobs.program(job) is first
    assert jobs.program(job._replace(turns=2)) is first, "two turns are as short as one"


def test_programs_are_made_a_few_ahead_and_only_the_last_ones_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    seen: list[int] = []

    class Counted(jobs.Program):
        """Nothing is traced or compiled, and every run ends with its rate as its loss."""

        def __init__(self, job: jobs.Job) -> None:
            made.append(1)
            kinds = {"loss": "f4", "status": "i1", "first_bad_step": "i4"}
            runs = (job.mesh.size, *job.tile)
            shapes = {n: jax.ShapeDtypeStruct(runs, kind) for n, kind in kinds.items()}
            self.known = kept.Known(shapes, Cost(), draws=False)

        def start(self) -> Future[Any]:
            compiled = Future[Any]()
            compiled.set_result(None)
            return compiled

        def __call__(self, *arguments: Any) -> Any:
            seen.append(len(made))
            found = {n: np.zeros(each.shape, each.dtype) for n, each in self.shapes.items()}
            found["loss"] += arguments[1].rule.eta["Z"].peak[:, None]
            return jax.device_put(found)

    monkeypatch.setattr(jobs, "Program", Counted)
    monkeypatch.setattr(jobs, "MOST_PROGRAMS", 2)
    monkeypatch.setattr(work, "AHEAD", 1)
    monkeypatch.setattr(jobs, "PROGRAMS", {})
    lengths = [4, 5, 6, 7]
    found = sweeps.run(Sweep(TRAINING, {"eta_z": [1.0, 2.0], "length": lengths}, record=("loss",)))
    # One is needed and one is ahead, until there are no more.
    assert seen == [2, 3, 4, 4]
    assert len(jobs.PROGRAMS) <= 2
    np.testing.assert_array_equal(found.loss, [4 * [1], 4 * [2]])
    jobs.forget()
    assert not jobs.PROGRAMS


@pytest.mark.more
def test_static_axes_are_runs_of_their_own_shapes() -> None:
    # A rate that varies with the shapes comes first.
    sweep = Sweep(
        TRAINING,
        {"eta_z": [1.0, 9.0], "num_queries": [1, 2], "length": [8, math.inf]},
        zip=(("eta_z", "num_queries", "length"),),
        record=("attention",),
    )
    found = sweeps.run(sweep)
    assert dict(found.sizes) == {"eta_z": 2, "class": 4, "token": 56}
    small, large = found.attention
    assert np.isnan(small[2:]).all()
    assert np.isnan(small[:, 33:]).all()
    np.testing.assert_allclose(small[:2, :33].sum("token"), 1, rtol=1e-6)
    np.testing.assert_allclose(large.sum("token"), 1, rtol=1e-6)
    one = dataclasses.replace(
        sweep,
        axes={"seed": [0]},
        zip=(),
        run=TRAINING.at({"eta_z": 1.0, "num_queries": 1, "length": 8}),
    )
    np.testing.assert_array_equal(small[:2, :33], sweeps.run(one).attention[0])


@pytest.mark.more
def test_steps_as_an_axis_record_at_their_own_times() -> None:
    sweep = Sweep(TRAINING, {"steps": [2, 6], "eta_z": [1.0]}, record=("loss",), times=3)
    found = sweeps.run(sweep)
    np.testing.assert_array_equal(found.time, [[0, 1, 2, np.nan], [0, 1, 2, 6]])
    short, long = found.loss.sel(eta_z=1)
    np.testing.assert_allclose(short[:3], long[:3], rtol=1e-5)
    assert np.isnan(short[3])
    assert np.isfinite(long[3])
    ends = labels.coordinates(dataclasses.replace(sweep, times="end"))["time"]
    assert ends[0] == ("steps",)
    np.testing.assert_array_equal(ends[1], [2, 6])


def test_runs_taken_in_the_order_of_their_rates_come_back_to_their_own_cells() -> None:
    """With attention fixed from zero weights, eta_Y t is all that the loss depends on."""
    axes = {"eta_y": [0.5, 8.0, 1.0], "eta_z": [0.0]}
    sweep = Sweep(experiment(steps=16), axes, "fixed_attention", record=("loss",), times=(1, 8, 16))
    slow, fast, middle = sweeps.run(sweep, tile=2).loss.squeeze("eta_z").values
    # Closed forms in float64.
    np.testing.assert_allclose([slow[2], middle[1]], fast[0], rtol=1e-12)
    assert fast[0] > 2 * fast[2]


# A sweep of each theory.
@pytest.mark.full(
    "test_a_run_of_a_sweep_is_the_run_that_simulate_makes",
    "test_runs_taken_in_the_order_of_their_rates_come_back_to_their_own_cells",
)
def test_theories_and_descent_start_where_the_simulation_starts() -> None:
    axes = {"eta_y": [0.5, 8.0, 1.0], "seed": [4], "eta_z": [0.3]}
    steps = 3
    training = experiment(steps=steps, start="uniform")
    flow, descent, simulated = (
        sweeps.run(Sweep(training, axes, theory=theory, record=("loss",), times=(0, steps)))
        for theory in ("plain", "descent", "simulation")
    )
    key = jax.random.fold_in(jax.random.key(0), 4)
    start = initial_weights(dynsim.SynSmall().build(), "uniform", key)
    for eta_y in axes["eta_y"]:
        want = population.solve(
            dynsim.SynSmall(),
            dynsim.sgd(eta_y, 0.3),
            [0, steps],
            init=start,
            record=["loss"],
        )
        got = flow.loss.sel(eta_y=eta_y).squeeze()
        np.testing.assert_allclose(got, want["loss"], rtol=1e-6)
    for other in (descent, simulated):
        np.testing.assert_allclose(other.loss[..., 0], flow.loss[..., 0], rtol=1e-5)


def test_a_theory_of_another_system_is_refused() -> None:
    message = "theory = 'ode': must be one of simulation, des"
    with pytest.raises(ValueError, match=re.escape(message)):
        Sweep(TRAINING, {"eta_z": [1.0]}, theory="ode").check()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"out": 3}, "out = 3: must be of type str or os.PathLike"),
        ({"reuse": 3}, "reuse = 3: must be of type str or os.PathLike or list or tuple"),
        ({"process": 3}, "process = 3: must be two integers (k, n) with 0 <= k < n"),
        ({"process": (2, 2)}, "process = (2, 2): must be two integers (k, n) with 0 <= k < n"),
        ({"devices": []}, "devices = []: must be devices, such as jax.devices()"),
        ({"devices": ["cpu"]}, "devices = ['cpu']: must be devices, such as jax.devices()"),
        ({"devices": "cpu"}, "devices = 'cpu': must be of type list or tuple"),
        ({"report": "x"}, "report = 'x': must be a function of a line of text"),
    ],
)
def test_arguments_of_another_kind_are_named(argument: dict[str, Any], message: str) -> None:
    sweep = Sweep(experiment(steps=1), {"eta_y": [1.0]}, record=("loss",))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sweeps.run(sweep, **argument)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run: Sweep(run, {3: [1.0]}), "setting = 3: must be the name of a setting"),
        (lambda run: run.setting(3), "setting = 3: must be the name of a setting"),
        (lambda run: run.at(3), "settings = 3: must be of type collections.abc.Mapping"),
        (
            lambda run: Sweep(run, {"rule": [{"momentum": 0.5}]}),
            "axes.rule = {'momentum': 0.5}: must be the name of a kind, or a table with one as its "
            "`kind`",
        ),
    ],
)
def test_settings_and_axes_of_another_kind_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(experiment(steps=1))


@pytest.mark.more
def test_sweeps_leave_nothing_behind_in_the_process(tmp_path: Path) -> None:
    """Apart from caches that are full: of a process that runs hundreds, memory does not grow."""

    def living(number: int) -> int:
        for i in range(4):
            axes = {"eta": [1.0, 2.0 + number + i]}
            sweep = Sweep(experiment("sparse_attention", steps=3), axes, "plain", ("loss",))
            sweeps.run(sweep, tmp_path / f"{number}-{i}", progress=False)
        gc.collect()
        return len(gc.get_objects())

    living(0)
    before = living(10)
    # Fewer than what one call of a function that is compiled anew leaves.
    assert living(20) - before < 4 * 10


def test_the_values_of_an_axis_may_be_an_array_of_jax() -> None:
    run = experiment(steps=1)
    assert Sweep(run, {"eta_y": jnp.array([0.5, 1.0])}).dims[0].axes == {"eta_y": (0.5, 1.0)}


@pytest.mark.more
def test_diverged_runs_are_data_and_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(progress.Runs, "stored", lambda self, *numbers: told.append(numbers))
    sweep = Sweep(TRAINING, {"eta_y": [0.5, 1.0, 1e38]}, record=("loss",))
    found = sweeps.run(sweep)
    assert told == [(3, 1)]
    found = found.isel(eta_y=slice(1, None))
    np.testing.assert_array_equal(found.status, [dynsim.Status.OK, dynsim.Status.DIVERGED])
    np.testing.assert_array_equal(np.isfinite(valid(found).loss), [True, False])
    assert found.first_bad_step[1] >= 1


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
@pytest.mark.more
def test_runs_that_diverge_are_data_where_jax_stops_at_nan(name: str) -> None:
    sweep = Sweep(TRAINING, {"eta_y": [1.0, 1e38]}, record=("loss",))
    jax.config.update(name, True)
    try:
        found = sweeps.run(sweep)
    finally:
        jax.config.update(name, False)
    assert found.status.values.tolist() == [dynsim.Status.OK, dynsim.Status.DIVERGED]


def test_seeds_at_once_are_seeds_in_turn() -> None:
    """An accelerator takes all seeds together, each with its shared arrays and states."""

    def one_seed(
        key: jax.Array, shared: Any, points: Any, begun: jax.Array
    ) -> dict[str, jax.Array]:
        drawn = jax.random.normal(key, points["x"].shape)
        return {"y": drawn + shared["a"] * points["x"] + begun}

    each = jax.random.split(jax.random.key(0), 3), {"a": jnp.arange(3.0)}, jnp.ones((3, 5)) / 7
    points = {"x": jnp.linspace(0, 1, 5)}
    in_turn, at_once = (
        tiles.over_seeds(one_seed, points, each, in_turn=in_turn)["y"] for in_turn in (True, False)
    )
    np.testing.assert_array_equal(in_turn, at_once)
    assert at_once.shape == (3, 5)


@pytest.mark.more
def test_progress_counts_each_run_of_a_chunk_once() -> None:
    sweep = Sweep(TRAINING, {"eta_z": [0.1, 0.2, 0.3], "seed": range(3)}, record=("loss",))
    found = work.Work(sweep, tiles.mesh(jax.devices()[:1], "float32"), chunk=9, tile=4)
    seen: list[int] = []
    found.compute(found.plan.layout.region(0), found.variables(), seen.append)
    # A batch has room for four runs, and holds the three seeds of one rate. A slow one is told of
    # again while it is computed.
    assert list(dict.fromkeys(seen)) == [0, 3, 6]


def test_small_sweeps_have_many_chunks_and_full_tiles() -> None:
    def chunks(seeds: int) -> tuple[int, ...]:
        sweep = Sweep(TRAINING, {"seed": range(seeds)}, record=("loss",))
        mesh = tiles.mesh(jax.devices()[:1], "float32")
        return work.Work(sweep, mesh, tile=4).plan.layout.chunk

    # A tile of 4 is the least, 8 of them are the most, and 32 chunks are wanted in between.
    assert [chunks(number) for number in (3, 100, 4 * 32 * 3, 10**4)] == [(3,), (4,), (12,), (32,)]


@pytest.mark.more
def test_seeds_of_one_point_are_divided_among_devices() -> None:
    def parts(**axes: Any) -> tuple[tuple[int, int], int]:
        mesh = tiles.mesh(jax.devices()[:4], "float32")
        made = work.Work(Sweep(TRAINING, axes, record=("loss",)), mesh)
        return made.tile, made.plan.devices

    assert parts(seed=range(8)) == ((2, 1), 4)
    assert parts(seed=range(3)) == ((1, 1), 3)
    assert parts(seed=[0]) == ((1, 1), 1)
    # Five on each of four devices would be eight in a tile, of which three devices have one.
    assert parts(seed=range(17)) == ((8, 1), 3)
    # Grids of all sizes keep one tile, and so one program.
    grids = [parts(eta_z=np.linspace(0.1, 1, n), seed=range(2)) for n in (11, 16)]
    assert grids == [((1, 16), 4)] * 2


@pytest.mark.parametrize(("theory", "by_seed"), [("simulation", True), ("descent", False)])
def test_chunks_are_computed_by_program_and_by_seed_where_seeds_draw(
    theory: str, by_seed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = experiment(task="overlapping", steps=2, length=8, batch=4, start="uniform")
    axes = {"eta_y": [0.1, 0.2], "K": [2, 3, 4, 5], "seed": {"range": 3}}
    sweep = Sweep(run, axes, theory, record=("loss",))
    started: list[int] = []
    monkeypatch.setattr(work.Work, "start", lambda self, region: started.append(region[1].start))
    one = work.Work(sweep, tiles.mesh(jax.devices()[:1], sweep.dtype), chunk=1, tile=1)
    number = one.plan.layout.num_chunks
    assert number == 24
    places = np.random.default_rng(0).permutation(number).tolist()
    starts = lambda region: tuple(part.start for part in region)
    regions = [one.plan.layout.region(place) for place in places]
    given, found = map(starts, regions), list(map(starts, one.in_turn(regions)))
    # Each place of K has a program; the order is kept otherwise.
    want = sorted(given, key=lambda at: (at[1], at[2] if by_seed else 0))
    assert found == want
    assert started[0] == 0
    assert {*started} == {0, 1, 2, 3}


@pytest.mark.parametrize(("most", "chunk"), [(100, 1), (12, 1), (11, 2), (2, 6), (1, 12)])
def test_a_sweep_has_so_many_chunks_at_most(
    most: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_CHUNKS", most)
    sweep = Sweep(TRAINING, {"eta_y": {"linspace": [0.1, 1, 12]}}, record=("loss",))
    mesh = tiles.mesh(jax.devices()[:1], sweep.dtype)
    found = work.Work(sweep, mesh, tile=1, chunk_tiles=1)
    assert found.plan.layout.chunk == (chunk,)


@pytest.mark.parametrize(("number", "chunk"), [(2 * 2048, 2), (2 * 2048 + 1, 3)])
def test_a_large_sweep_has_2048_chunks_at_most(number: int, chunk: int) -> None:
    sweep = Sweep(TRAINING, {"eta_y": {"linspace": [0.1, 1, number]}}, record=("loss",))
    mesh = tiles.mesh(jax.devices()[:1], sweep.dtype)
    found = work.Work(sweep, mesh, tile=1, chunk_tiles=1)
    assert found.plan.layout.chunk == (chunk,)
