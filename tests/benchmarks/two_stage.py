"""Two-stage dynamics: training against PyTorch and memory bandwidth, the reduced ODE, a diagram."""

import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (comes with the extra bench)
from jaxtyping import Float

import dynsim
import sweeps
from dynsim import two_stage
from odes import two_stage as reduced
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment, experiment
from tests.benchmarks import bandwidth
from tests.benchmarks.peers import two_stage_claims
from tests.benchmarks.peers.torch_two_stage import trained
from tests.benchmarks.timing import cold_and_warm, seconds

SEEDS = 6
STAGES = (0.05, 1.2)
"""Lengths of stage 2, in units of 1/lambda, of a shorter and a longer run. Their difference gives
the time per step, without the drawing of prompts; only both ends are recorded."""
LOOP = (100, 600)
"""Steps of two runs of the PyTorch loop, whose difference is timed as well."""
LONG = experiment("two_stage", control="forever", stage_2=4.75)
"""One long stage at one rate, to the eta-time 200, as in the phase diagram."""
REPEATS = 7
"""Number of alternating repetitions; the best times are compared, as for the memory."""


def report(check: bool = False) -> Iterator[str]:
    yield from training()
    yield from theory()
    yield from diagram()
    if check:
        yield from two_stage_claims.compared()


def training() -> Iterator[str]:
    """Time both stages of the default preset, and report the memory traffic of a step."""

    def run(training: Experiment, seeds: int, record: tuple[str, ...], times: int) -> None:
        axes = {"seed": {"range": seeds}}
        sweeps.run(Sweep(training, axes, "simulation", record, times=times))

    whole = ("eta_time", "K1", "K2", "auc_Q", "W_trace", "V_trace")
    preset = lambda shift: run(experiment("two_stage", r=1.4 * shift), SEEDS, whole, 128)
    cold, warm = cold_and_warm(preset, 1.01)
    steps = int(dynsim.Annealed().ends[-1])
    yield (
        f"default preset, {SEEDS} seeds of {steps} steps: {cold:.1f} s cold, {warm:.1f} s warm, "
        f"{SEEDS * steps / warm:.0f} steps/s"
    )
    devices = len(jax.devices())
    stages = [experiment("two_stage", stage_2=stage) for stage in STAGES]
    few, many = (int(dynsim.Annealed(stage_2=stage).ends[-1]) for stage in STAGES)
    setup = two_stage()
    loop = functools.partial(trained, setup.task, setup.optimizer.build(), 0)
    before = bandwidth.measured()
    took = fastest(
        *(functools.partial(run, each, devices, ("W_trace",), 2) for each in stages),
        *(functools.partial(loop, [steps]) for steps in LOOP),
    )
    ours = (took[1] - took[0]) / (devices * (many - few))
    theirs = (took[3] - took[2]) / (LOOP[1] - LOOP[0])
    # Two components of d numbers and the label of every token, in float32.
    moved = 4 * setup.batch * setup.task.length * (2 * setup.task.d + 1)
    yield (
        f"a step: {1e3 * ours:.3f} ms in sweeps on {devices} devices, "
        f"{1e3 * theirs:.3f} ms in a PyTorch loop with {torch.get_num_threads()} threads: "
        f"{theirs / ours:.1f}x"
    )
    # The bandwidth varies as well: take the best.
    limit = bandwidth.Bandwidth(*map(max, before, bandwidth.measured()))
    for name, step in (("sweeps", ours), ("PyTorch", theirs)):
        rate = moved / step
        yield (
            f"  {name}: {moved / 1e6:.2f} MB of prompts a step are {rate / 1e9:.1f} GB/s, "
            f"{100 * rate / limit.read:.0f} % of the {limit.read / 1e9:.1f} GB/s that are read "
            f"and {100 * rate / limit.triad:.0f} % of the {limit.triad / 1e9:.1f} GB/s of a triad"
        )


def fastest(*works: Callable[[], object]) -> Float[np.ndarray, " W"]:
    return np.min([[seconds(work) for work in works] for _ in range(REPEATS)], axis=0)


def theory() -> Iterator[str]:
    setup = two_stage()
    times = dynsim.Annealed().stages.times(128)
    solve = lambda tau: jax.block_until_ready(
        reduced.solve(setup.task, dynsim.Annealed(tau=tau), times)
    )
    cold = seconds(lambda: solve(0.25))
    warm = np.median([seconds(lambda tau=tau: solve(tau)) for tau in (0.24, 0.26, 0.27)])
    yield f"reduced ODE, default preset, 128 times: {cold:.1f} s cold, {1e3 * warm:.1f} ms warm"


def diagram() -> Iterator[str]:
    def run(shift: float) -> None:
        axes = {"tau": {"logspace": [0.06 * shift, 0.6, 25]}, "r": {"logspace": [0.9, 2.2, 25]}}
        sweeps.run(Sweep(LONG, axes, "ode", ("auc_Q", "K2")))

    cold, warm = cold_and_warm(run)
    yield f"reduced ODE, 25 x 25 diagram to eta-time 200: {cold:.1f} s cold, {warm:.1f} s warm"
