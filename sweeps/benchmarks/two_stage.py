"""Two-stage dynamics: six trainings at once, the reduced ODE, and a diagram of 625 of them."""

from collections.abc import Iterator

import jax
import numpy as np

import sweeps
from dynsim import two_stage
from odes import two_stage as reduced
from sweeps.benchmarks.timing import seconds
from sweeps.runner.spec import Sweep
from sweeps.studies.two_stage.phase import TwoStagePhase
from sweeps.systems.two_stage.settings import TwoStage

SEEDS = 6


def report() -> Iterator[str]:
    """Lines of the report; what compiles is timed twice, the second time at other values."""
    yield from training()
    yield from theory()
    yield from diagram()


def training() -> Iterator[str]:
    """Both stages of the default preset."""

    def run(r: float) -> None:
        axes = {"seed": {"range": SEEDS}}
        record = ("eta_time", "K1", "K2", "auc_Q", "W_trace", "V_trace")
        sweeps.run(Sweep(axes, TwoStage(r=r), "simulation", record, times=128))

    cold, warm = (seconds(lambda r=r: run(r)) for r in (1.4, 1.41))
    steps = int(TwoStage().make_optimizer().total_steps)
    yield (
        f"default preset, {SEEDS} seeds of {steps} steps: {cold:.1f} s cold, {warm:.1f} s warm, "
        f"{SEEDS * steps / warm:.0f} steps/s"
    )


def theory() -> Iterator[str]:
    """The reduced ODE of the default preset at 128 times."""
    setup = two_stage()
    times = setup.optimizer.times(128)
    solve = lambda tau: jax.block_until_ready(  # noqa: E731
        reduced.solve(setup.task, TwoStage(tau=tau).make_optimizer(), times)
    )
    cold = seconds(lambda: solve(0.25))
    warm = np.median([seconds(lambda tau=tau: solve(tau)) for tau in (0.24, 0.26, 0.27)])
    yield f"reduced ODE, default preset, 128 times: {cold:.1f} s cold, {1e3 * warm:.1f} ms warm"


def diagram() -> Iterator[str]:
    """25 x 25 solves of the phase diagram."""

    def run(first: float) -> None:
        axes = {"tau": {"logspace": [first, 0.6, 25]}, "r": {"logspace": [0.9, 2.2, 25]}}
        sweeps.run(Sweep(axes, TwoStagePhase().training(), "ode", ("auc_Q", "K2")))

    cold, warm = (seconds(lambda first=first: run(first)) for first in (0.06, 0.061))
    yield f"reduced ODE, 25 x 25 diagram to eta-time 200: {cold:.1f} s cold, {warm:.1f} s warm"
