"""Tiles fit into the memory of a device, by measurement; and where they compute."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr

import sweeps
from dynsim.compiling import CALL, EFFORTS, ENTRY, PRODUCT, Cost, cost
from dynsim.precision import compiled_for, host, precision
from sweeps import Sweep, experiment
from sweeps.runner import fit, progress, tiles
from sweeps.runner.program import jobs, kept
from sweeps.runner.work import Work, begin

TRAINING = experiment(steps=2, length=8, batch=8)
GRID = Sweep(TRAINING, {"eta_y": [1.0, 2.0, 3.0, 4.0], "seed": {"range": 4}}, record=("loss",))


@dataclasses.dataclass(frozen=True)
class Fake:
    """A device as far as a mesh looks at it."""

    platform: str


def limited(monkeypatch: pytest.MonkeyPatch, available: int) -> Work:
    monkeypatch.setattr(fit, "memory_of", lambda device: available)
    return Work(GRID, tiles.mesh(jax.devices()[:1]))


@pytest.mark.parametrize(
    ("available", "tile", "needed"),
    [
        (20_625, (4, 4), 16_500),
        (20_624, (4, 2), 8_500),
        (5_625, (4, 1), 4_500),
        (5_624, (2, 1), 2_500),
        (1, (1, 1), 1_500),
    ],
)
def test_a_tile_is_halved_until_its_program_takes_no_more_than_there_is(
    available: int, tile: tuple[int, int], needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte a run and a half for all of them, of 0.8 of the memory; one run is tried,
    whatever is said of it."""

    class Sized:
        def __init__(self, job: jobs.Job) -> None:
            self.bytes = 1000 * math.prod(job.tile) + 500
            self.known = kept.Known({}, Cost(), draws=False)

    monkeypatch.setattr(jobs, "Program", Sized)
    monkeypatch.setattr(jobs, "PROGRAMS", {})
    found = limited(monkeypatch, available)
    assert (found.tile, found.plan.bytes_per_device) == (tile, needed)


# Compiles for each tile.
@pytest.mark.full("test_a_tile_is_halved_until_its_program_takes_no_more_than_there_is")
def test_a_tile_is_the_largest_that_the_programs_own_count_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = limited(monkeypatch, 2**40)
    assert whole.tile == (4, 4)
    needed = whole.plan.bytes_per_device
    assert needed == fit.needed(whole.program(())[1].start().result()[0])
    cut = limited(monkeypatch, int(needed / fit.SHARE) - 1)
    assert np.prod(cut.tile) < 16
    assert cut.plan.bytes_per_device <= needed
    none = limited(monkeypatch, 1)
    assert none.tile == (1, 1), "one run is tried, whatever is said of it"


@pytest.mark.parametrize(
    ("tile", "times", "want"),
    [
        ((4, 16), 2, (4, 8)),
        ((4, 16), 2.1, (4, 4)),
        ((4, 16), 32, (2, 1)),
        ((4, 1), 2, (2, 1)),
        ((2, 2), 1000, (1, 1)),
    ],
)
def test_fewer_points_and_then_fewer_seeds(
    tile: tuple[int, int], times: float, want: tuple[int, int]
) -> None:
    assert fit.smaller(tile, times) == want


@pytest.mark.more
def test_memory_that_does_not_suffice_halves_the_tile_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want = sweeps.run(GRID).load()
    called, call = [], jobs.Program.__call__

    def scarce(self: jobs.Program, task: Any, numbers: Any, seeds: Any, *more: Any) -> Any:
        runs = seeds.shape[1] * jax.tree.leaves(numbers)[0].shape[1]
        called.append(runs)
        if runs > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return call(self, task, numbers, seeds, *more)

    monkeypatch.setattr(jobs.Program, "__call__", scarce)
    with pytest.warns(UserWarning, match="2x2 runs") as said:
        found = sweeps.run(GRID, chunk=8, tile=16, devices=jax.devices()[:1]).load()
    assert [str(each.message)[:10] for each in said] == ["a device r"], "it is said once"
    assert called == [8, 4, 4, 4, 4], "the chunks after the first one begin with the smaller tile"
    np.testing.assert_allclose(found.loss, want.loss, rtol=1e-6)
    np.testing.assert_array_equal(found.status, want.status)

    def broken(self: jobs.Program, *arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError(reason)

    monkeypatch.setattr(jobs.Program, "__call__", broken)
    reason = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="else"):
        sweeps.run(GRID)
    reason = "RESOURCE_EXHAUSTED: not even one run"
    with (
        pytest.warns(UserWarning, match="1x1 runs"),
        pytest.raises(jax.errors.JaxRuntimeError, match="not even one run"),
    ):
        sweeps.run(GRID, tile=2)


def test_float64_is_computed_by_the_host_where_a_device_has_none() -> None:
    tpu, gpu = Fake("tpu"), Fake("gpu")
    hosts = jax.local_devices(backend="cpu")
    assert list(tiles.mesh([tpu], "float64").devices) == hosts
    assert list(tiles.mesh([tpu], "float32").devices) == [tpu]
    assert list(tiles.mesh([gpu], "float64").devices) == [gpu]
    for platform, dtype, device in (
        ("tpu", "float64", host()),
        ("tpu", "float32", None),
        ("gpu", "float64", None),
    ):
        with compiled_for(platform), precision(dtype):
            assert jax.default_device.value == device


def test_an_accelerator_begins_with_the_power_of_two_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for available, want in ((100, 64), (128, 128), (None, 65_536), (1, 1)):
        room = None if available is None else available * 2**20
        monkeypatch.setattr(fit, "memory_of", lambda device, room=room: room)
        assert tiles.default_tile(2**20, GRID.method, Fake("gpu")) == want


def test_slow_runs_are_stored_a_few_at_a_time() -> None:
    """A matrix of 100 x 100 squared takes 1e6 products a step, each of 4e-11 s: the time of each
    tile is known, and only that of slow runs makes chunks smaller."""

    def tiled(steps: int) -> Jaxpr:
        def run(x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, _: (x @ x, None), x, length=steps)[0]

        return jax.make_jaxpr(jax.vmap(run))(np.zeros((16, 100, 100))).jaxpr

    _, calls, entries = cost(tiled(1000))
    assert calls == pytest.approx(1000 * 1e-7)
    assert entries == pytest.approx(1000 * 16 * (1e6 * 4e-11 + 1e4 * 1e-10))
    a_run = entries / 16 / 1000
    of_tile = 5 / 16 / a_run
    paced = lambda steps: fit.paced(cost(tiled(round(steps))), 16)
    assert paced(of_tile / 4.5) == (1, 4)
    assert paced(of_tile * 3) == (4, 1)
    assert paced(of_tile * 100) == (16, 1), "one run, however long it takes"


def test_products_are_those_of_the_summed_axes() -> None:
    """Seven products of 3 x 5 and 5 x 2 matrices, and their sum with a vector."""

    def run(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("bij,bjk->bik", a, b).sum()

    program = jax.make_jaxpr(run)(np.zeros((7, 3, 5)), np.zeros((7, 5, 2))).jaxpr
    _, calls, entries = cost(program)
    product, total = 7 * 3 * 2, 1
    assert calls == pytest.approx(len(program.eqns) * CALL)
    other = sum(math.prod(v.aval.shape) for e in program.eqns for v in e.outvars) - product - total
    want = (product + total + other) * ENTRY + product * 5 * PRODUCT
    assert entries == pytest.approx(want)


@pytest.mark.parametrize(
    ("calls", "entries", "runs", "want"),
    [
        (0.0, 80.0, 100, (16, 1)),
        (0.0, 81.0, 100, (32, 1)),
        # At least a run: the last power of two at or above their number.
        (0.0, 1e9, 4, (4, 1)),
        (0.0, 1e9, 5, (8, 1)),
        (3.0, 8.0, 64, (4, 1)),
        # What is around the entries takes longer than they.
        (4.0, 7.0, 64, (2, 1)),
        (0.25, 0.5, 64, (1, 6)),
        (0.0, 0.0, 4, (1, 50_000_000)),
    ],
)
def test_a_tile_takes_five_seconds(
    calls: float, entries: float, runs: int, want: tuple[int, int]
) -> None:
    assert fit.paced(Cost(1, calls, entries), runs) == want


def test_memory_is_what_compiler_and_device_say() -> None:
    said = {"temp": 1000, "argument": 200, "output": 30, "alias": 4}
    found = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in said.items()})
    assert fit.needed(SimpleNamespace(memory_analysis=lambda: found)) == 1226
    assert fit.needed(SimpleNamespace(memory_analysis=lambda: None)) == 0
    for platform, stats, want in (
        ("cpu", {"bytes_limit": 7}, None),
        ("gpu", {"bytes_limit": 7}, 7),
        ("gpu", {}, None),
        ("gpu", None, None),
    ):
        device = SimpleNamespace(platform=platform, memory_stats=lambda stats=stats: stats)
        assert fit.memory_of(device) == want


def test_where_calls_take_the_time_a_smaller_tile_saves_none() -> None:
    def run(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 10**9, lambda _, x: x + 1, x)

    program = jax.make_jaxpr(jax.vmap(run))(np.zeros((16, 3))).jaxpr
    assert fit.paced(cost(program), 16) == (1, 1)


def test_runs_of_an_adaptive_theory_are_sorted_over_many_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs are sorted by stiffness within a chunk, as a tile waits for its stiffest run: a chunk
    has eight tiles, also where smaller ones would lose less."""

    class Known:
        def __init__(self, job: jobs.Job) -> None:
            self.known = kept.Known({}, Cost(), draws=False)

    monkeypatch.setattr(jobs, "Program", Known)
    monkeypatch.setattr(jobs, "PROGRAMS", {})
    rates = {"logspace": [0.1, 10, 64]}
    sweep = Sweep(experiment(steps=10), {"eta_y": rates, "eta_z": rates}, "symmetric", ("loss",))
    with precision("float64"):
        plan = Work(sweep, tiles.mesh(jax.devices()[:1])).plan
    assert math.prod(plan.layout.chunk) == 8 * math.prod(plan.tile) == 512


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    """The numbers of programs since the last call that were compiled quickly, and as those that
    draw: with options by which the compiler writes each program to a folder."""
    folders = [tmp_path / name for name in ("quick", "drawn")]
    quick, drawn = ({"xla_dump_to": str(f), "xla_dump_hlo_as_text": True} for f in folders)
    monkeypatch.setitem(EFFORTS, "quick", EFFORTS["quick"]._replace(options=quick))
    monkeypatch.setattr(jobs, "DRAWN", drawn)
    monkeypatch.setattr(jobs, "PROGRAMS", {})

    def numbers() -> tuple[int, int]:
        found = [list(each.glob("*before_optimizations.txt")) for each in folders]
        for file in itertools.chain(*found):
            file.unlink()
        # An empty program tells whether the compiler knows the options.
        sizes = (sum(".jit_nothing." not in file.name for file in files) for files in found)
        return next(sizes), next(sizes)

    return numbers


DESCENT = experiment("saxe", eta=0.1, steps=20)
"""A run of milliseconds; 1000 of them take longer than they are compiled."""


@pytest.mark.more
def test_a_theory_of_few_runs_is_compiled_quickly_and_a_grid_for_speed(
    compiled: Callable[[], tuple[int, int]],
) -> None:
    sizes = {1: 1, 8: 1, 100_000: 0}
    for size, want in sizes.items():
        sweep = Sweep(DESCENT, {"eta": np.linspace(0.01, 0.1, size)}, "descent", ("loss",), "end")
        with precision(sweep.dtype):
            work = Work(sweep, tiles.mesh(jax.devices()[:1]), tile=4)
            work.first().start().result()
        assert compiled()[0] == want, size


@pytest.mark.more
def test_training_is_compiled_for_speed_and_its_draws_are_not(
    compiled: Callable[[], tuple[int, int]],
) -> None:
    run = experiment(task="syn-small", steps=3, batch=4)
    sweeps.run(Sweep(run, {"seed": {"range": 2}}, record=("loss",)), progress=False)
    assert compiled() == (0, 1)


def test_accelerators_have_the_compilers_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []
    lowered = SimpleNamespace(compile=lambda *options: given.append(options))
    traced = jobs.Traced(SimpleNamespace(lower=lambda: lowered), ())
    for platform in ("gpu", "tpu"):
        mesh = SimpleNamespace(size=1, devices=np.array([SimpleNamespace(platform=platform)]))
        traced.compiled(mesh, {"xla_dump_hlo_as_text": False})
    assert given == [(), ()]


AXES = {"seeds": {"seed": {"range": 6}}, "rates": {"eta": np.linspace(0.1, 0.2, 40)}}


@pytest.mark.parametrize("axes", AXES.values(), ids=list(AXES))
@pytest.mark.more
def test_how_a_sweep_is_compiled_depends_on_nothing_but_the_sweep(
    axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices, chunks and what is left of it change neither the estimate nor the number of runs."""
    sweep = Sweep(DESCENT, axes, "descent", ("loss",))
    made, found = jobs.program, set()

    def program(job: jobs.Job) -> jobs.Program:
        found.add((made(job).known.of_seed, job.turns))
        return made(job)

    monkeypatch.setattr(jobs, "program", program)
    with precision(sweep.dtype):
        for devices in (1, 2, 4):
            for options in ({}, {"chunk": 16}, {"chunk_tiles": 1}):
                Work(sweep, tiles.mesh(jax.devices()[:devices]), **options).first()
    assert len(found) == 1


@pytest.mark.more
def test_programs_are_named_before_they_are_traced_and_counted_before_they_are_compiled(
    compiled: Callable[[], tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    both = [Sweep(DESCENT, {"seed": [0]}, name, ("loss",)) for name in ("descent", "simulation")]
    trace = jobs.trace

    def stop(job: jobs.Job) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "trace", stop)
    with pytest.raises(KeyboardInterrupt):
        begin(both)
    assert capsys.readouterr().err.splitlines()[:1] == ["2 programs: descent, simulation"]
    monkeypatch.setattr(jobs, "trace", trace)
    begin(both[:1])
    assert "compiling 1 of 1 program\n" in capsys.readouterr().err
    begin(both)
    assert "compiling 1 of 2 programs\n" in capsys.readouterr().err
    begin(both)
    assert "compiling" not in capsys.readouterr().err
    with progress.quiet():
        begin(both)
    assert capsys.readouterr().err == ""
