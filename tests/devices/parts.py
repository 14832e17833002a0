"""The parts of a measurement of a device: generators of lines. References are recorded, published,
or computed by the host's CPU in the same process."""

import functools
import importlib.metadata
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import dynsim
import odes
import sweeps
from dynsim.precision import WITHOUT_FLOAT64, host, on_cpu, precision
from dynsim.yz import model as yz
from dynsim.yz import sampling
from papers.scan_and_snap import published
from sweeps.runner import cluster, fit, tiles
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep, load
from sweeps.runner.work import Work
from sweeps.systems.experiment import experiment
from tests.benchmarks import bandwidth, maps, mlp
from tests.benchmarks.timing import seconds
from tests.devices import check, programs

STEPS = 100
TRAINING = experiment(steps=STEPS)
"""Syn-Small, T = 128, batch 128."""
RECORDED = Path(__file__).parents[1] / "data" / "authors_fig4_sgd.npz"
DIFFERED = {
    "transformer": ("sde", "corrected-sde"),
    "qkv": ("matched-adam", "corrected-adam", "adam", "matched-rmsprop", "rmsprop"),
}
"""Theories that differed most from the host when only their last loss was compared."""
Lines = Iterator[str]
COMPILED = "/jax/core/compile/backend_compile_duration"
"""Event that JAX records for each compiled program."""
SLOW = 1.0
"""Seconds from which on a compilation is a line of its own."""


def start(small: bool) -> Lines:
    """Card, driver and versions, and how long it takes until the device computes."""
    del small
    if shutil.which("nvidia-smi"):
        query = (
            "--query-gpu=name,driver_version,memory.total,memory.used,power.limit,mig.mode.current"
        )
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        yield subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    took = seconds(jax.local_devices)
    device = jax.local_devices()[0]
    number = jax.local_device_count()
    yield f"{number} x {device.platform}: {device.device_kind}, after {took:.1f} s"
    memory = fit.memory_of(device)
    size = "of the host" if memory is None else f"{memory / 2**30:.1f} GiB"
    yield f"memory for programs: {size}; {os.cpu_count()} cores"
    packages = [each.metadata["name"] for each in importlib.metadata.distributions()]
    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in sorted({*packages})
        if name.startswith(("jax", "libtpu", "nvidia-cublas", "diffrax", "equinox"))
    ]
    yield ", ".join(versions)
    took = seconds(lambda: jax.block_until_ready(jnp.ones(8) + 1))
    yield f"first sum after {took:.1f} s"


def map_(small: bool) -> Lines:
    """A large map of training, chunk by chunk."""
    side = 64 if small else 1024
    sweep = Sweep(TRAINING, maps.plane(side, 1.0), record=("loss", "entropy"))
    mesh = tiles.mesh()
    estimate = sweep.runs({}).bytes_per_run
    tile = fit.default_tile(estimate, sweep.method, mesh.devices.flat[0])
    yield f"{side} x {side} runs of {STEPS} steps, {estimate} bytes each by estimate: tile {tile}"
    began = time.perf_counter()
    with precision(sweep.dtype):
        work = Work(sweep, mesh)
        variables = work.variables()
        yield f"{work.plan}"
        program = work.first()
        yield f"the program needs {program.bytes / 2**20:.1f} MiB"
        yield f"compiled after {time.perf_counter() - began:.1f} s"
        layout, took = work.plan.layout, []
        for i in range(layout.num_chunks):
            region = layout.region(i)
            took.append(seconds(functools.partial(work.compute, region, variables)))
            yield f"chunk {i + 1} of {layout.num_chunks}: {took[-1]:.2f} s"
    yield f"{side**2} runs in {sum(took):.2f} s, {side**2 / sum(took):.0f} a second"


def swept(build: Callable[[float], Sweep]) -> Lines:
    """A sweep, and another one of the same shape, which compiles nothing."""
    first = build(1.0)
    float64 = first.dtype == "float64" and jax.default_backend() in WITHOUT_FLOAT64
    where = ", on the host" if float64 else ""
    runs = math.prod(dim.size for dim in first.dims)
    cold = seconds(lambda: sweeps.run(first, progress=False))
    yield f"{runs} runs: {cold:.2f} s with compilation{where}"
    warm = seconds(lambda: sweeps.run(build(1.1), progress=False))
    yield f"{runs} runs: {warm:.2f} s, {runs / warm:.0f} a second"


def fig6(small: bool) -> Lines:
    sets = ['record = ["entropy"]', "axes.seed = { range = 10 }"]
    if small:
        sets.append("axes.num_queries = [1]")

    def build(shift: float) -> Sweep:
        return load("fig6", [*sets, f"root = {round(10 * shift)}"])

    return swept(build)


def training(small: bool) -> Lines:
    return swept(functools.partial(maps.training, 8 if small else 64))


def flows(small: bool) -> Lines:
    return swept(functools.partial(maps.flow, 8 if small else 64))


def descent(small: bool) -> Lines:
    return swept(functools.partial(maps.descent, 128 if small else 1024))


def networks(small: bool) -> Lines:
    return swept(functools.partial(mlp.sweep, 2 if small else mlp.SEEDS))


def svd(small: bool) -> Lines:
    """Two-stage training, first without records of singular values."""
    problem, seeds = ("two_stage-fast", 1) if small else ("two_stage", 6)
    for record in (("K1", "K2", "auc_Q"), ("K1", "K2", "auc_Q", "W_singular", "V_singular")):
        yield ", ".join(record)

        def build(shift: float, record: tuple[str, ...] = record) -> Sweep:
            run = experiment(problem, r=1.4 * shift)
            return Sweep(run, {"seed": {"range": seeds}}, record=record, times=128)

        yield from swept(build)


def differing(small: bool) -> Lines:
    """Differences from the host over the largest value, which for a loss is the first one."""
    cases = (case for case in programs.cases(tuple(DIFFERED)) if differed(case))
    return compared(cases, small)


def others(small: bool) -> Lines:
    """All other theories. The last come first: earlier measurements did not reach them."""
    cases = (case for case in reversed([*programs.cases()]) if not differed(case))
    return compared(cases, small)


def differed(case: programs.Case) -> bool:
    return case.theory in DIFFERED.get(case.system, ())


def compared(cases: Iterator[programs.Case], small: bool) -> Lines:
    yield check.line("theory", *check.RAN)
    for case in cases:
        columns = check.row(functools.partial(check.compared, case, jax.devices()[0]))
        yield check.line(case.label, *columns)
        if small:
            return


def checks(small: bool) -> Lines:
    for name, error in CHECKS.items():
        # Trains for half a minute on two cores.
        if not (small and error is published_column):
            found, allowed = error()
            word = "ok" if found <= allowed else "FAILED"
            yield f"{name}: {word}, {found:.3g}, allowed {allowed:.3g}"


def recorded_run() -> tuple[float, float]:
    """Error of the decoder after 20 steps on the authors' recorded batches, over its largest
    weight."""
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
    runs = valid(sweeps.run(sweep, progress=False)).entropy
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


CHECKS: dict[str, Callable[[], tuple[float, float]]] = {
    "the authors' recorded run": recorded_run,
    "Lemma 1": lemma_1,
    "theory against the host": theory,
    "published column of Fig. 6 (standard errors)": published_column,
}


def peak(small: bool) -> Lines:
    """What the device can do at most, and the rate of training that this allows."""
    size, mesh = 512 if small else 4096, tiles.mesh()
    rows = jnp.ones((mesh.size, size, size), jnp.float32)
    each = PartitionSpec("devices")
    with jax.default_matmul_precision("highest"):
        multiply = jax.jit(jax.shard_map(lambda a: a @ a, mesh=mesh, in_specs=each, out_specs=each))
        run = lambda: jax.block_until_ready(multiply(rows))
        run()
        took = min(seconds(run) for _ in range(5))
    flops = 2 * mesh.size * size**3 / took
    yield f"matrix product in float32: {flops / 1e12:.3g} TFLOP/s"
    yield f"memory: {bandwidth.measured().triad / 1e9:.4g} GB/s"
    step = flops_of_a_step()
    yield (
        f"a training step of Syn-Small has {step:.0f} operations: at most "
        f"{flops / step / STEPS:.0f} runs of {STEPS} steps a second"
    )


def flops_of_a_step() -> float:
    """Return the floating-point operations of a run's step, as counted by XLA."""
    runs, task = 256, dynsim.SynSmall().build()
    examples = sampling.sample_counts(task, jax.random.key(0), 128, 128)
    keys = jax.random.split(jax.random.key(1), runs)
    params = jax.eval_shape(jax.vmap(lambda key: yz.init_uniform(task, key)), keys)

    def step(params: yz.YZ) -> yz.YZ:
        _, gradient = yz.loss_and_grad(params, task, examples, scatter=on_cpu())
        return jax.tree.map(lambda weight, by: weight - 0.1 * by, params, gradient)

    # Before the compiler changes the program, which alters the number by 3 % on a CPU.
    count = jax.jit(jax.vmap(step)).lower(params).cost_analysis() or {}
    return count.get("flops", math.nan) / runs


PARTS: dict[str, Callable[[bool], Lines]] = {
    "start": start,
    "map": map_,
    "fig6": fig6,
    "training": training,
    "flows": flows,
    "mlp": networks,
    "svd": svd,
    "differing": differing,
    "checks": checks,
    "peak": peak,
    "descent": descent,
    "others": others,
}


@functools.cache
def prepare() -> None:
    """Prepare a process that runs parts: with all cores, like the command line. It prints a line
    for each program that takes long to compile."""

    def compiled(event: str, duration_secs: float, **_: object) -> None:
        if event == COMPILED and duration_secs > SLOW:
            print(f"  a program was compiled in {duration_secs:.1f} s", flush=True)

    cluster.use_all_cores()
    jax.monitoring.register_event_duration_secs_listener(compiled)
