"""Tiles fit into the memory of a device and the patience of a user; and how and where programs
compile."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr

import dynsim
import sweeps
from dynsim.compiling import CALL, EFFORTS, ENTRY, PRODUCT, Cost, cost
from dynsim.precision import compiled_for, host, precision
from sweeps import Experiment, Sweep, experiment
from sweeps.runner import fit, tiles
from sweeps.runner.program import jobs
from sweeps.runner.work import Work
from tests.sweeps.runner.curves import Curve

RUN = Experiment(Curve(), dynsim.sgd(0.1), 2, 2)
GRID = Sweep(RUN, {"eta": [0.1, 0.2, 0.3, 0.4], "seed": {"range": 4}}, record=("w",))


@dataclasses.dataclass(frozen=True)
class Fake:
    """A device as far as a mesh looks at it."""

    platform: str


# Compiles for each tile.
@pytest.mark.more
def test_a_tile_is_the_largest_that_the_programs_own_count_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four fifths of the memory; one run is tried, whatever is said of it."""

    def limited(available: float) -> tuple[tuple[int, int], int]:
        monkeypatch.setattr(fit, "memory_of", lambda device: available)
        sweeps.forget()
        made = Work(GRID, tiles.mesh(jax.devices()[:1]))
        program = made.program(())[1].start().result()[0]
        assert made.plan.bytes_per_device == fit.needed(program)
        found = sweeps.run(GRID, devices=jax.devices()[:1], progress=False)
        np.testing.assert_array_equal(found.w, want.w)
        return made.tile, made.plan.bytes_per_device

    want = sweeps.run(GRID, progress=False).load()
    whole, needed = limited(2**40)
    assert whole == (4, 4)
    assert limited(math.ceil(needed / 0.8)) == (whole, needed)
    smaller, less = limited(needed / 0.8 - 1)
    assert math.prod(smaller) < 16
    assert 0 < less < needed
    assert limited(1)[0] == (1, 1)


def test_fewer_points_and_then_fewer_seeds() -> None:
    for tile, times, want in (
        ((4, 16), 2, (4, 8)),
        ((4, 16), 2.1, (4, 4)),
        ((4, 16), 32, (2, 1)),
        ((4, 1), 2, (2, 1)),
        ((2, 2), 1000, (1, 1)),
    ):
        assert fit.smaller(tile, times) == want


@pytest.mark.parametrize("of_seed", [0, 2**20])
def test_one_measurement_tells_the_largest_tile_that_fits(of_seed: int) -> None:
    """Also where most of the memory is not that of the runs, and a smaller tile saves little."""
    whole, shared = (64, 2**10), fit.SharedBytes(2**22, of_seed)

    def memory(seeds: int, points: int) -> int:
        return shared.by_all + seeds * of_seed + seeds * points * 2**10

    for most in np.geomspace(2, memory(*whole) - 1, 20):
        seeds, points = fit.largest_fitting(whole, memory(*whole), shared, most)
        assert memory(seeds, points) <= most or (seeds, points) == (1, 1)
        assert memory(*((seeds, points * 2) if seeds == 64 else (seeds * 2, 1))) > most


def test_a_tile_that_is_much_too_large_is_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the second measurement says: 2000 bytes here that no count of arguments shows."""
    measured: list[tuple[int, int]] = []

    def measure(self: jobs.Program) -> int:
        measured.append(self._job.tile)
        return 2000 + 10 * math.prod(self._job.tile)

    monkeypatch.setattr(jobs.Program, "bytes", property(measure))
    for available in (1, 2100, 2600):
        measured.clear()
        monkeypatch.setattr(fit, "memory_of", lambda device, most=available: most)
        plan = Work(GRID, tiles.mesh(jax.devices()[:1])).plan
        assert [(4, 4), plan.tile] == measured, available


def test_shared_memory_is_that_of_arguments_without_points() -> None:
    """Of attention on 4 batches of 3 examples and on the tables of its task."""
    run = experiment(task="syn-small", steps=4, batch=3)
    sweep = Sweep(run, {"eta_y": [0.1, 0.2], "seed": {"range": 8}}, record=("loss",))
    work = Work(sweep, tiles.mesh(jax.devices()[:1]))
    arrays, call = sweep.runs({}).arrays, sweep.runs({}).call
    drawn = jax.tree.leaves(call.draw(arrays, jax.random.key(0)))
    of_seed = sum(np.asarray(each).nbytes for each in drawn)
    assert of_seed > 0
    # In 32 bits on the device.
    by_all = sum(4 * np.size(each) for each in jax.tree.leaves(arrays))
    assert work.first().shared == (by_all, of_seed)


@pytest.mark.more
def test_memory_that_does_not_suffice_halves_the_tile_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want = sweeps.run(GRID).load()
    called, call = [], jobs.Program.__call__
    limit, reason = 4, "RESOURCE_EXHAUSTED: out of memory"

    def scarce(self: jobs.Program, task: Any, numbers: Any, seeds: Any, *more: Any) -> Any:
        runs = seeds.shape[1] * jax.tree.leaves(numbers)[0].shape[1]
        called.append(runs)
        if runs > limit:
            raise jax.errors.JaxRuntimeError(reason)
        return call(self, task, numbers, seeds, *more)

    monkeypatch.setattr(jobs.Program, "__call__", scarce)
    with pytest.warns(UserWarning, match="2x2 runs") as said:
        found = sweeps.run(GRID, chunk=8, tile=16, devices=jax.devices()[:1]).load()
    assert len(said) == 1
    assert called == [8, 4, 4, 4, 4], "the chunks after the first one begin with the smaller tile"
    np.testing.assert_array_equal(found.w, want.w)
    limit, reason = 0, "INTERNAL: something else"
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


def test_memory_is_what_compiler_and_device_say() -> None:
    said = {"temp": 1000, "argument": 200, "output": 30, "alias": 4}
    found = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in said.items()})
    assert fit.needed(SimpleNamespace(memory_analysis=lambda: found)) == 1226
    assert fit.needed(SimpleNamespace(memory_analysis=lambda: None)) == 0
    method = GRID.method
    for platform, stats, memory, runs in (
        ("cpu", {"bytes_limit": 7}, None, method.at_once),
        # An accelerator begins with the power of two that fits.
        ("gpu", {"bytes_limit": 100 * 2**20}, 100 * 2**20, 64),
        ("gpu", {"bytes_limit": 128 * 2**20}, 128 * 2**20, 128),
        ("gpu", {"bytes_limit": 1}, 1, 1),
        ("gpu", {}, None, 65_536),
        ("gpu", None, None, 65_536),
    ):
        device: Any = SimpleNamespace(platform=platform, memory_stats=lambda stats=stats: stats)
        assert fit.memory_of(device) == memory
        assert fit.default_tile(2**20, method, device) == runs


def test_a_tile_takes_five_seconds() -> None:
    for calls, entries, runs, want in (
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
    ):
        assert fit.shrink_for_seconds(Cost(1, calls, entries), runs) == want


def test_the_cost_of_a_program_is_that_of_its_calls_products_and_entries() -> None:
    """A matrix of 100 x 100 squared takes 1e6 products a step, each of 4e-11 s; and seven products
    of 3 x 5 and 5 x 2 matrices, and their sum."""

    def tiled(steps: int) -> Jaxpr:
        def run(x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, _: (x @ x, None), x, length=steps)[0]

        return jax.make_jaxpr(jax.vmap(run))(np.zeros((16, 100, 100))).jaxpr

    _, calls, entries = cost(tiled(1000))
    assert calls == pytest.approx(1000 * 1e-7)
    assert entries == pytest.approx(1000 * 16 * (1e6 * 4e-11 + 1e4 * 1e-10))

    def summed(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("bij,bjk->bik", a, b).sum()

    program = jax.make_jaxpr(summed)(np.zeros((7, 3, 5)), np.zeros((7, 5, 2))).jaxpr
    _, calls, entries = cost(program)
    assert calls == pytest.approx(len(program.eqns) * CALL)
    product = 7 * 3 * 2
    other = sum(math.prod(v.aval.shape) for e in program.eqns for v in e.outvars) - product - 1
    want = (product + 1 + other) * ENTRY + product * 5 * PRODUCT
    assert entries == pytest.approx(want)


def test_runs_of_an_adaptive_theory_are_sorted_over_many_tiles() -> None:
    """Runs are sorted by stiffness within a chunk, as a tile waits for its stiffest run: a chunk
    has eight tiles, also where smaller ones would lose less."""
    rates = {"logspace": [0.1, 10, 64]}
    sweep = Sweep(experiment(steps=10), {"eta_y": rates, "eta_z": rates}, "eq10", ("loss",))
    with precision("float64"):
        plan = Work(sweep, tiles.mesh(jax.devices()[:1])).plan
    assert math.prod(plan.layout.chunk) == 8 * math.prod(plan.tile)


@pytest.mark.more
def test_a_sweep_is_solved_to_its_own_tolerance() -> None:
    axes, found = {"eta": [0.1]}, []
    for rtol in (1e-2, 1e-10):
        sweep = Sweep(Experiment(Curve(), dynsim.sgd(0.1), 9), axes, "flow", "first", rtol=rtol)
        found.append(sweeps.run(sweep).first.item())
    # Within what was asked for, and not much better.
    assert 1e-6 < abs(found[0] / found[1] - 1) < 1e-1


@pytest.mark.more
def test_few_runs_of_a_theory_are_compiled_quickly_and_others_for_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the devices and chunks; and of training, the draws are compiled as such."""
    given, compile_ = [], jobs.TracedProgram.compile

    def noted(self: jobs.TracedProgram, mesh: Any, options: Any) -> Any:
        given.append(options)
        return compile_(self, mesh, options)

    monkeypatch.setattr(jobs.TracedProgram, "compile", noted)
    sweeps.forget()
    # A run of milliseconds; 1000 of them take longer than they are compiled.
    run = experiment("saxe", eta=0.1, steps=20)
    for size, quick, devices in ((1, True, 1), (8, True, 2), (100_000, False, 4)):
        sweep = Sweep(run, {"eta": np.linspace(0.01, 0.1, size)}, "descent", ("loss",), "end")
        with precision(sweep.dtype):
            work = Work(sweep, tiles.mesh(jax.devices()[:devices]), tile=4)
            work.first().start().result()
        assert (given.pop() is EFFORTS["quick"].options) is quick, size
    run = experiment(task="syn-small", steps=3, batch=4)
    sweeps.run(Sweep(run, {"seed": {"range": 2}}, record=("loss",)), progress=False)
    assert sorted(each is jobs.DRAWN for each in given) == [False, True]
    assert EFFORTS["quick"].options not in given


def test_accelerators_have_the_compilers_own_options() -> None:
    given: list[tuple[Any, ...]] = []
    lowered = SimpleNamespace(compile=lambda *options: given.append(options))
    traced = jobs.TracedProgram(SimpleNamespace(lower=lambda: lowered), ())  # pyright: ignore
    for platform in ("gpu", "tpu"):
        mesh: Any = SimpleNamespace(size=1, devices=np.array([SimpleNamespace(platform=platform)]))
        traced.compile(mesh, {"xla_dump_hlo_as_text": False})
    assert given == [(), ()]
