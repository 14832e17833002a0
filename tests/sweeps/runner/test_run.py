"""A sweep is the loop of `dynsim.train` over its axes, bit for bit, whatever its chunks, tiles,
devices and processes; and how a sweep is divided."""

import gc
import math
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import sweeps
from dynsim import Status
from sweeps import Experiment, Sweep, experiment
from sweeps.runner import fit, tiles, work
from sweeps.runner.program import jobs
from sweeps.systems import budget
from tests.sweeps.runner.curves import Curve, Power, Square

RUN = Experiment(Curve(shift=0.3), dynsim.sgd(0.1, momentum=0.4), 5, 3)


class Grid(NamedTuple):
    """Axes, and options of the sweep and of how it runs."""

    axes: dict[str, Any]
    sweep: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


FORMS = {"square": Square(), "power": Power(3.0)}
RULES = {
    "momentum": lambda eta: dynsim.sgd(eta, momentum=0.5),
    "adam": lambda eta: dynsim.adam(eta, b2=0.99),
}
KINDS = {
    "momentum": {"kind": "sgd", "momentum": 0.5},
    "adam": {"kind": "adam", "b2": 0.99},
}
GRIDS = {
    # Three rates, four momenta of which two have rates of their own, and two seeds.
    "rates": Grid(
        {"eta": jnp.array([0.125, 0.25, 0.5]), "seed": [7, 0], "momentum": [0.0, 0.5]},
        {"root": 11},
        {"chunk": 5, "tile": 4, "devices": 2},
    ),
    "zip": Grid(
        {"shift": [0.1, 0.6, 0.9], "seed": [3], "eta": [0.1, 0.2, 0.05]},
        {"zip": [("shift", "eta")]},
        {"chunk": 2, "devices": 3},
    ),
    "kinds": Grid({"form": FORMS, "rule": KINDS, "eta": [0.1, 0.2]}, {}, {"tile": 2}),
    "sizes": Grid({"batch": [3, 5], "width": [1, 3], "seed": [0, 2], "eta": [0.1]}),
    "steps": Grid({"eta": [0.1, 0.2], "steps": [2, 5]}, {"times": 3}),
    "diverging": Grid({"eta": [1e38, 0.1], "shift": [0.2, 0.4]}, {}, {"devices": 1}),
}


def single(
    eta: float,
    *,
    form: str = "square",
    shift: float = 0.3,
    width: int = 2,
    rule: str = "",
    momentum: float = 0.4,
    seed: int = 0,
    root: int = 0,
    steps: int = 5,
    batch: int = 3,
    times: Any = (0, 2, 5),
) -> dict[str, np.ndarray]:
    """What `dynsim.train` records of one run, with the key that a sweep gives it."""
    problem = Curve(FORMS[form], shift, width)
    made = RULES[rule](eta) if rule else dynsim.sgd(eta, momentum=momentum)
    key = jax.random.fold_in(jax.random.key(root), seed)
    times = [t for t in ((0, 1, 2, 5) if times == 3 else times) if t <= steps]
    run = dynsim.train(
        problem, made, key, record=["w", "first"], steps=steps, batch=batch, times=times
    )
    names = ("w", "first", "batch_loss")
    return {name: np.asarray(run[name]) for name in names} | {"status": np.asarray(run.status)}


def run(grid: Grid, out: Path | None = None, **more: Any) -> Any:
    sweep = {"record": ("w", "first", "batch_loss"), "times": (0, 2, 5), **grid.sweep}
    options = {**grid.options, **more}
    if number := options.pop("devices", None):
        options["devices"] = jax.devices()[:number]
    return sweeps.run(Sweep(RUN, grid.axes, **sweep), out, progress=False, **options)


def by_two_processes(grid: Grid, out: Path) -> Any:
    half = run(grid, out, process=(1, 2)).load()
    assert (half.status == -1).any()
    return run(grid, out, process=(0, 2), chunk=None)


def by_threads(grid: Grid, out: Path) -> Any:
    with ThreadPoolExecutor(2) as executor:
        return run(grid, out, executor=executor, devices=None)


HOW = {
    "memory": lambda grid, out: run(grid),
    "tiles": lambda grid, out: run(grid, chunk=7, tile=2, devices=3),
    "folder": lambda grid, out: run(grid, out),
    "two processes": by_two_processes,
    "threads": by_threads,
    "seeds": lambda grid, out: run(grid, chunk=1, tile=16, devices=4),
}
CASES = [("rates", how) for how in HOW] + [(name, "memory") for name in GRIDS if name != "rates"]


@pytest.fixture(scope="module")
def loop() -> dict[str, dict[tuple[int, ...], dict[str, np.ndarray]]]:
    """The single runs of each grid that was asked for, by index."""
    return {}


@pytest.mark.parametrize(
    ("name", "how"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.more) for case in CASES[1:])],
)
def test_a_sweep_is_the_loop_of_train_bit_for_bit(
    name: str, how: str, loop: dict[str, Any], tmp_path: Path
) -> None:
    grid = GRIDS[name]
    found = HOW[how](grid, tmp_path / "s").load()
    dims = found.status.dims
    if name not in loop:
        loop[name] = {}
        more = {n: value for n, value in grid.sweep.items() if n != "zip"}
        for index in np.ndindex(found.status.shape):
            point = found.isel(dict(zip(dims, index, strict=True))).coords
            values = {n: point[n].values.item() for n in grid.axes}
            loop[name][index] = single(**values, **more)
    assert [*dims] == [n for n in grid.axes if n in found.dims]
    for index, want in loop[name].items():
        cell = found.isel(dict(zip(dims, index, strict=True)))
        for quantity in ("w", "first", "status"):
            have, own = cell[quantity].values, want[quantity]
            inside = tuple(map(slice, own.shape))
            np.testing.assert_array_equal(have[inside], own, f"{quantity} of {index}")
            outside = np.ones(have.shape, bool)
            outside[inside] = False
            assert np.isnan(have[outside]).all()
        ok = np.isfinite(want["batch_loss"])
        # The only sum, over a batch, is taken in another order: six numbers of float32.
        np.testing.assert_allclose(
            cell.batch_loss.values[: len(ok)][ok], want["batch_loss"][ok], rtol=1e-6
        )
    if name == "zip":
        assert found.eta.dims == ("shift",)
    elif name == "diverging":
        ok = found.status == Status.OK
        np.testing.assert_array_equal(ok, [[False] * 2, [True] * 2])
        np.testing.assert_array_equal(found.first_bad_step == -1, ok)
        np.testing.assert_array_equal(np.isfinite(sweeps.valid(found).first[..., -1]), ok)


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
def test_runs_that_diverge_are_data_where_jax_stops_at_nan(name: str) -> None:
    jax.config.update(name, True)
    try:
        found = run(GRIDS["diverging"])
    finally:
        jax.config.update(name, False)
    assert (found.status == Status.DIVERGED).sel(eta=1e38).all()


def test_descent_is_that_of_numpy_from_the_start_of_training() -> None:
    """In float64: shift - w and a quartic, whose gradient is written out here."""
    axes = {"seed": [4, 1], "eta": [0.01, 0.05], "shift": [0.3, 0.7]}
    options = {"record": ("w",), "times": (0, 2, 5), "root": 3}
    found = sweeps.run(Sweep(RUN.at({"momentum": 0.0}), axes, "descent", **options))
    start = sweeps.run(Sweep(RUN, {"seed": axes["seed"]}, **{**options, "times": (0, 5)})).w[:, 0]
    for i, j, k in np.ndindex(2, 2, 2):
        w = start.values[i].astype(np.float64)
        for step in range(6):
            if step in (0, 2, 5):
                have = found.w[i, j, k].sel(time=step)
                # Rounding of five steps in float64; the start is one of float32.
                np.testing.assert_allclose(have, w, rtol=1e-6 if step == 0 else 3e-6)
            w -= axes["eta"][j] * ((w - axes["shift"][k]) * 2 / 2 + 4 * w**3)


@pytest.mark.usefixtures("quick_theory")
def test_runs_taken_in_the_order_of_their_rates_come_back_to_their_own_cells() -> None:
    """With attention fixed from zero weights, eta_Y t is all that the loss depends on."""
    axes = {"eta_y": [0.5, 8.0, 1.0], "eta_z": [0.0]}
    sweep = Sweep(experiment(steps=16), axes, "fixed_attention", record=("loss",), times=(1, 8, 16))
    slow, fast, middle = sweeps.run(sweep, tile=2).loss.squeeze("eta_z").values
    # Closed forms in float64.
    np.testing.assert_allclose([slow[2], middle[1]], fast[0], rtol=1e-12)
    assert fast[0] > 2 * fast[2]


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


def planned(axes: dict[str, Any], devices: int = 1, **options: Any) -> work.Work:
    sweep = Sweep(RUN, axes, record=("batch_loss",))
    return work.Work(sweep, tiles.mesh(jax.devices()[:devices]), **options)


def rates(number: int) -> dict[str, Any]:
    return {"eta": {"linspace": [0.1, 1, number]}}


def test_a_sweep_is_cut_into_chunks_and_tiles() -> None:
    for axes, options, chunk, tile in (
        # A tile of 4 is the least, 8 of them are the most, and 32 chunks are wanted in between.
        ({"seed": range(3)}, {"tile": 4}, (3,), (4, 1)),
        ({"seed": range(100)}, {"tile": 4}, (4,), (4, 1)),
        ({"seed": range(4 * 32 * 3)}, {"tile": 4}, (12,), (4, 1)),
        ({"seed": range(10**4)}, {"tile": 4}, (32,), (4, 1)),
        # At most 2048 chunks.
        (rates(2 * 2048), {"tile": 1, "chunk_tiles": 1}, (2,), (1, 1)),
        (rates(2 * 2048 + 1), {"tile": 1, "chunk_tiles": 1}, (3,), (1, 1)),
        # Grids are cut along their last axis first, and seeds last; points fill a tile.
        (
            {"seed": range(4), **rates(6), "shift": [0.1, 0.2]},
            {"chunk": 5, "tile": 4},
            (1, 2, 2),
            (1, 4),
        ),
        ({**rates(3), "seed": range(4)}, {"chunk": 7, "tile": 8}, (3, 2), (2, 4)),
    ):
        plan = planned(axes, **options).plan
        assert (plan.layout.chunk, plan.tile) == (chunk, tile)


def test_seeds_of_one_point_are_divided_among_devices() -> None:
    for axes, tile, devices in (
        ({"seed": range(8)}, (2, 1), 4),
        ({"seed": range(3)}, (1, 1), 3),
        ({"seed": [0]}, (1, 1), 1),
        # Five on each of four devices would be eight in a tile, of which three devices have one.
        ({"seed": range(17)}, (8, 1), 3),
        # Grids of all sizes keep one tile, and so one program.
        ({**rates(11), "seed": range(2)}, (1, 16), 4),
        ({**rates(16), "seed": range(2)}, (1, 16), 4),
    ):
        plan = planned(axes, 4).plan
        assert (plan.tile, plan.devices) == (tile, devices)


@pytest.mark.parametrize("size", [1, 5, 12, 1000])
def test_chunks_tile_the_array_of_runs_without_crossing_static_values(size: int) -> None:
    varied = {"width": [2, 3], "eta": [1, 2, 3], "seed": {"range": 4}, "shift": [1, 2, 3, 4, 5]}
    dims = Sweep(RUN, varied).dims
    layout = fit.layout_of(dims, size)
    visits = np.zeros(layout.shape, int)
    for number in range(layout.num_chunks):
        region = layout.region(number)
        visits[region] += 1
        assert layout.number(region) == number
        assert region[0].stop - region[0].start == 1
        assert math.prod(part.stop - part.start for part in region) <= size
    assert (visits == 1).all()
    assert fit.layout_of(dims, 20).chunk == (1, 3, 1, 5)


@pytest.mark.parametrize(("theory", "by_seed"), [("simulation", True), ("descent", False)])
def test_chunks_are_computed_by_program_and_by_seed_where_seeds_draw(
    theory: str, by_seed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = experiment(task="overlapping", steps=2, length=8, batch=4, start="uniform")
    axes = {"eta_y": [0.1, 0.2], "K": [2, 3, 4, 5], "seed": {"range": 3}}
    sweep = Sweep(run, axes, theory, record=("loss",))
    compiled: list[Future] = []

    def start(self: work.Work, region: tuple[slice, ...]) -> Future:
        compiled.append(Future())
        return compiled[-1]

    monkeypatch.setattr(work.Work, "start", start)
    one = work.Work(sweep, tiles.mesh(jax.devices()[:1], sweep.dtype), chunk=1, tile=1)
    places = np.random.default_rng(0).permutation(24).tolist()
    starts = lambda region: tuple(part.start for part in region)
    regions = [one.plan.layout.region(place) for place in places]
    turns = one.schedule(regions)
    found = [starts(next(turns))]
    # The first and those ahead of it compile at once.
    assert len(compiled) == min(1 + work.AHEAD, 4)
    given, found = map(starts, regions), found + [starts(each) for each in turns]
    # Each place of K has a program; the order is kept otherwise.
    assert found == sorted(given, key=lambda at: (at[1], at[2] if by_seed else 0))


def test_progress_counts_each_run_of_a_chunk_once() -> None:
    found = planned({"eta": [0.1, 0.2, 0.3], "seed": range(3)}, chunk=9, tile=4)
    seen: list[int] = []
    found.compute(found.plan.layout.region(0), found.variables(), seen.append)
    # A batch has room for four runs, and holds the three seeds of one rate. A slow one is told of
    # again while it is computed.
    assert list(dict.fromkeys(seen)) == [0, 3, 6]


@pytest.mark.more
def test_only_the_last_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps.forget()
    assert not jobs.PROGRAMS
    monkeypatch.setattr(jobs, "MAX_PROGRAMS", 2)
    found = sweeps.run(Sweep(RUN, {"width": [1, 2, 3]}, record="w")).load()
    assert 0 < len(jobs.PROGRAMS) <= 2
    assert np.isfinite(found.w).sum() == 1 + 2 + 3


@pytest.mark.more
def test_programs_of_classes_that_were_defined_again_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are no more than two, here, besides the current one. Those of other classes are kept."""

    def traced(run: Experiment) -> jobs.Program:
        made = work.Work(Sweep(run, {"eta": [0.1]}, record=("batch_loss",)), tiles.mesh())
        return made.program(())[1]

    def anew(number: int) -> Experiment:
        class Anew(dynsim.Rule):
            def direction(self) -> Any:
                return optax.scale(number + 1.0)

        return Experiment(Curve(), Anew(0.1), 1, 2)

    sweeps.forget()
    other = traced(RUN)
    monkeypatch.setattr(jobs, "MAX_OUTDATED", 2)
    number = 4
    alive = [weakref.ref(traced(anew(i))) for i in range(number)]
    assert [each() is not None for each in alive] == [False] * (number - 1) + [True]
    assert len(jobs.PROGRAMS) == 2
    assert traced(RUN) is other


@pytest.mark.usefixtures("quick_theory")
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
    # Fewer, at least once, than what one call of a function that is compiled anew leaves: a cache
    # of a library may grow meanwhile, but not each time.
    assert min(np.diff([living(number) for number in (10, 20, 30)])) < 4 * 10


def test_results_that_no_memory_holds_are_an_error_before_any_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"eta": np.linspace(0.1, 1, 10**4), "shift": np.linspace(0.1, 1, 10**4)}
    # Of each run two weights, status and the first bad step; kept twice.
    for axes, runs in ((large, 10**8), ({"seed": [0, 1]}, 2)):
        sweep, needed = Sweep(RUN, axes, record=("w",)), 2 * runs * (2 * 4 + 1 + 4)
        monkeypatch.setattr(budget, "memory", lambda needed=needed: needed - 1)
        with pytest.raises(ValueError, match=f"axes.* {runs} runs"):
            sweeps.run(sweep)
    monkeypatch.setattr(budget, "memory", lambda: needed)
    assert sweeps.run(sweep).w.shape == (2, 2)
    monkeypatch.setattr(budget, "memory", lambda: 2**10)
    with pytest.raises(ValueError, match=r"a chunk of \d+ runs .* smaller chunk"):
        sweeps.run(Sweep(RUN, large, record=("w",)), tmp_path / "s")
    assert not (tmp_path / "s").exists()
