"""Correctness and speed of the devices of this machine, in one table and one file.

Correctness comes first; references are recorded, published, or computed by the host's CPU in the
same process.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import dynsim
import odes
import sweeps
from dynsim.precision import WITHOUT_FLOAT64, host, on_cpu
from dynsim.yz import model as yz
from dynsim.yz import sampling
from papers.scan_and_snap import published
from sweeps import output
from sweeps.runner import tiles
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep, load
from sweeps.systems.experiment import experiment
from tests.benchmarks import bandwidth, maps
from tests.benchmarks.timing import cold_and_warm, seconds

STEPS = 100
TRAINING = experiment(steps=STEPS)
"""Syn-Small, T = 128, batch 128."""
SIDES, SMALL_SIDES = (32, 100, 320, 1024), (8, 16)
"""Numbers of rates along a side of the timed maps."""
MATRIX, SMALL_MATRIX = 4096, 512
RECORDED = Path(__file__).parents[1] / "data" / "authors_fig4_sgd.npz"
Rows = dict[str, Any]


def report(
    small: bool = False, out: Path = Path("out/bench"), only: tuple[str, ...] = ()
) -> Iterator[str]:
    about = output.environment()
    found: Rows = {"environment": about, "devices": len(jax.local_devices()), "small": small}
    yield f"{found['devices']} x {about['device']}, jax {about['jax']}"
    for name, measure in rows(small).items():
        if name.startswith(only or ("",)):
            line, found[name] = measure()
            output.write(out, "device", report=output.as_json(found))
            yield f"{name}: {line}"
    yield f"wrote {out / 'device.json'}"


def rows(small: bool) -> dict[str, Callable[[], tuple[str, Rows]]]:
    sides = SMALL_SIDES if small else SIDES
    checks = {f"check {name}": functools.partial(checked, run) for name, run in CHECKS.items()}
    maps = {f"training, {n} x {n}": functools.partial(trained, n, small) for n in sides}
    timed = {name: functools.partial(swept, *each) for name, each in studies(small).items()}
    return checks | timed | maps


def checked(check: Callable[[], tuple[float, float] | None]) -> tuple[str, Rows]:
    compared = check()
    if compared is None:
        return "left out, an installed package has no record of it", {}
    error, allowed = compared
    good = bool(error <= allowed)
    row = {"error": error, "allowed": allowed, "ok": good}
    return f"{'ok' if good else 'FAILED'}, {error:.3g}, allowed {allowed:.3g}", row


def recorded_run() -> tuple[float, float] | None:
    """Error of the decoder after 20 steps on the authors' recorded batches, over its largest
    weight; None outside of a checkout."""
    if not RECORDED.exists():
        return None
    run, task = np.load(RECORDED), dynsim.SynSmall().build()
    found = dynsim.train(
        dynsim.Layer(task),
        dynsim.sgd(float(run["lr_y"]), float(run["lr_z"]), momentum=float(run["momentum"])),
        steps=20,
        times=[20],
        init=dynsim.YZ(run["K1_init"].T, run["K2_init"][np.asarray(task.queries)]),
        data=jax.tree.map(
            lambda x: x[:20], sampling.examples_from_tokens(task, run["x"], run["label"])
        ),
    )
    want = run["K1_after20_f64"].T
    # float32 over 20 steps, as in the tests.
    return float(np.abs(found.params.Y - want).max() / np.abs(want).max()), 1e-5


def lemma_1() -> tuple[float, float]:
    """Error of the explicit gradient against the host's automatic differentiation in float64."""
    task = dynsim.SynMedium(3).build()
    examples = sampling.sample_counts(task, jax.random.key(0), 128, 128)
    params = yz.init_uniform(task, jax.random.key(1))
    with jax.default_matmul_precision("highest"):
        written = functools.partial(yz.loss_and_grad, scatter=on_cpu())
        _, found = jax.jit(written)(params, task, examples)
    with jax.enable_x64(True), jax.default_device(host()):
        exact = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), params)
        want = jax.device_get(jax.grad(yz.loss)(exact, task.astype("float64"), examples))
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(want))
    errors = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), found, want)
    return float(max(jax.tree.leaves(errors)) / scale), 1e-5


def published_column() -> tuple[float, float]:
    """Largest deviation from the published means of Fig. 6 at one query and eta_Z = 1, in standard
    errors of the difference, or in units of 2/3 % of the mean if these are larger."""
    sweep = load("fig6", ["axes.num_queries = [1]", "axes.eta_z = [1]", 'record = ["entropy"]'])
    runs = valid(sweeps.run(sweep)).entropy
    worst = 0.0
    for ratio in runs.ratio.values:
        known = published().sel(num_queries=1, eta_z=1, ratio=ratio)
        mean, std = float(known["mean"]), float(known["std"])
        cell = runs.sel(ratio=ratio).values.ravel()
        error = math.sqrt((std**2 + np.nanvar(cell, ddof=1)) / cell.size)
        worst = max(worst, abs(np.nanmean(cell) - mean) / max(error, 0.02 * mean / 3))
    return worst, 3.0


def theory() -> tuple[float, float]:
    """Error of the population flow of Syn-Small up to t = 100 against the host's CPU."""
    solve = functools.partial(
        odes.population.solve,
        dynsim.SynSmall().build(),
        dynsim.sgd(1.0, 0.1),
        [10, 100],
        record="z",
    )
    found = np.asarray(solve()["z"])
    with jax.default_device(host()):
        want = np.asarray(solve()["z"])
    # Both have a tolerance of 1e-8, but may take different steps.
    return float(np.abs(found - want).max() / np.abs(want).max()), 1e-7


CHECKS: dict[str, Callable[[], tuple[float, float] | None]] = {
    "the authors' recorded run": recorded_run,
    "Lemma 1": lemma_1,
    "published column of Fig. 6 (standard errors)": published_column,
    "theory against the host": theory,
}


def trained(side: int, small: bool) -> tuple[str, Rows]:
    """Measure runs per second of a map of training, and the share of the devices' peak speed."""
    build = lambda shift: Sweep(TRAINING, maps.plane(side, shift), record=("loss", "entropy"))
    cold, warm = cold_and_warm(lambda shift: sweeps.run(build(shift)))
    flops, moved = of_a_step()
    peak, memory = limits(small)
    steps = side**2 * STEPS / warm
    row = {"seconds": warm, "cold": cold, "runs_per_second": side**2 / warm, "flops": flops}
    row |= {"bytes": moved, "peak_flops": peak, "bandwidth": memory}
    return (
        f"{warm:.2f} s ({cold:.1f} s with compilation), {side**2 / warm:.0f} runs of {STEPS} steps "
        f"per second, {100 * steps * flops / peak:.1f} % of {peak / 1e12:.3g} TFLOP/s in float32",
        row,
    )


@functools.cache
def limits(small: bool) -> tuple[float, float]:
    return peak_flops(SMALL_MATRIX if small else MATRIX), bandwidth.measured().triad


def swept(first: Sweep, second: Callable[[], Sweep]) -> tuple[str, Rows]:
    cold = seconds(functools.partial(sweeps.run, first))
    again = second()
    warm = seconds(functools.partial(sweeps.run, again))
    runs = math.prod(dim.size for dim in first.dims)
    where = ", on the host" if _on_host(first) else ""
    row = {"runs": runs, "seconds": warm, "cold": cold}
    return f"{runs} runs in {warm:.2f} s ({cold:.1f} s with compilation){where}", row


def studies(small: bool) -> dict[str, tuple[Sweep, Callable[[], Sweep]]]:
    """Return a sweep, and a function that returns another one of the same shape, by name."""
    seeds = "axes.seed = { range = 2 }" if small else "axes.seed = { range = 10 }"
    figure = load("fig6", ['record = ["entropy"]', seeds])
    side = 8 if small else 64
    flow = TRAINING.at({"momentum": 0.9, "steps": 1000})
    return {
        "Fig. 6": (figure, lambda: dataclasses.replace(figure, root=1)),
        "two-stage training": _two_stage(1 if small else 6, small),
        "two-stage training, 16 times as many": _two_stage(16 if small else 96, small),
        "descent, T infinite, reduced": _twice(16 * side, TRAINING, "symmetric-descent"),
        "momentum flow, reduced": _twice(side, flow, "symmetric"),
        "population flow": _twice(side // 4, TRAINING, "plain"),
    }


def _twice(side: int, training: Any, theory: str) -> tuple[Sweep, Callable[[], Sweep]]:
    def build(shift: float) -> Sweep:
        return Sweep(training, maps.plane(side, shift), theory, ("entropy",))

    return build(1.0), functools.partial(build, 1.1)


def _two_stage(seeds: int, small: bool) -> tuple[Sweep, Callable[[], Sweep]]:
    problem = "two_stage-fast" if small else "two_stage"

    def build(r: float) -> Sweep:
        record = ("K1", "K2", "auc_Q", "W_trace", "V_trace")
        return Sweep(experiment(problem, r=r), {"seed": {"range": seeds}}, record=record, times=128)

    return build(1.4), functools.partial(build, 1.41)


def _on_host(sweep: Sweep) -> bool:
    return sweep.dtype == "float64" and jax.default_backend() in WITHOUT_FLOAT64


@functools.cache
def of_a_step() -> tuple[float, float]:
    """Return the floating-point operations and bytes of a run's step, as counted by XLA."""
    runs, task = 256, dynsim.SynSmall().build()
    examples = sampling.sample_counts(task, jax.random.key(0), 128, 128)
    params = jax.vmap(lambda key: yz.init_uniform(task, key))(
        jax.random.split(jax.random.key(1), runs)
    )

    def step(params: yz.YZ) -> yz.YZ:
        _, gradient = yz.loss_and_grad(params, task, examples, scatter=on_cpu())
        return jax.tree.map(lambda weight, by: weight - 0.1 * by, params, gradient)

    count = jax.jit(jax.vmap(step)).lower(params).compile().cost_analysis() or {}
    return count.get("flops", math.nan) / runs, count.get("bytes accessed", math.nan) / runs


def peak_flops(size: int) -> float:
    mesh = tiles.mesh()
    rows = jnp.ones((mesh.size, size, size), jnp.float32)
    each = PartitionSpec("devices")
    with jax.default_matmul_precision("highest"):
        multiply = jax.jit(jax.shard_map(lambda a: a @ a, mesh=mesh, in_specs=each, out_specs=each))
        run = lambda: jax.block_until_ready(multiply(rows))
        run()
        took = min(seconds(run) for _ in range(5))
    return 2 * mesh.size * size**3 / took
