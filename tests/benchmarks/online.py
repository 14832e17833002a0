"""Online learning, training next to its theory, against StatPhys-ML: its own linear regression in
PyTorch, and its own committee machine in NumPy.

StatPhys-ML is in no package index: clone it (github.com/Yuma-Ichikawa/StatPhysMLSimPlayground) and
install the clone. Its functions are called as its README and its tests call them.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import statphys  # pyright: ignore[reportMissingImports]
from statphys.experiment import online_committee  # pyright: ignore[reportMissingImports]

import dynsim
import odes
import sweeps
from papers.saad_solla import Committee
from tests.benchmarks.timing import cost, medians

REPEATED = 3
SEEDS = 3, 30
"""Numbers of seeds: that of the example, and ten times as many."""
LINEAR = {"d": 400, "lr": 0.5, "t_max": 10.0}
COMMITTEE = {"d": 128, "k": 2, "lr": 1.0, "t_max": 100.0, "init_scale": 1e-3}
RECORDED = 51


class Linear(dynsim.Problem):
    """Linear regression on fresh examples of a teacher of ones, as in StatPhys-ML.

    Attributes:
        d: number of inputs.
    """

    d: int = LINEAR["d"]

    def init(self, key: Any) -> Any:
        return jax.random.normal(key, (self.d,))

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch, self.d))

    def loss(self, w: Any, x: Any) -> Any:
        return jnp.mean((x @ (w - 1)) ** 2) / (2 * self.d)

    def population_loss(self, w: Any) -> Any:
        return jnp.mean((w - 1) ** 2) / 2

    @classmethod
    def theories(cls) -> Any:
        return (OVERLAPS,)


def overlaps(t: Any, state: Any, training: Any) -> Any:
    """Equations of motion of the overlaps, with the teacher and of the weights, per step."""
    m, q = state
    eta = training.rate(t)
    moved = jnp.array([1 - m, 2 * (m - q) + eta * (1 - 2 * m + q)])
    return eta / training.problem.d * moved


OVERLAPS = odes.system(
    "overlaps",
    "order parameters",
    "d -> infinity, fresh examples",
    overlaps,
    lambda training, w: jnp.array([w.mean(), jnp.mean(w**2)]),
    lambda t, state, training: {"loss": (1 - 2 * state[0] + state[1]) / 2},
)


class Small(Committee):
    """The committee of Saad and Solla from weights as small as those of StatPhys-ML."""

    def init(self, key: Any) -> Any:
        scale = COMMITTEE["init_scale"] / self.N**0.5
        return scale * jax.random.normal(key, (self.K, self.N))

    @classmethod
    def theories(cls) -> Any:
        return Committee.theories()


def report() -> Iterator[str]:
    """Yield seconds of wall and CPU time, the ratio of their loop, and the losses of all."""
    d, k, rate = COMMITTEE["d"], COMMITTEE["k"], COMMITTEE["lr"]
    # A sum of units in place of their sum over sqrt(k), and lengths without sqrt(d).
    small = sweeps.Experiment(
        Small(N=d, K=k), dynsim.sgd(rate / k / d), int(COMMITTEE["t_max"] * d), 1
    )
    steps = int(LINEAR["t_max"] * LINEAR["d"])
    linear = sweeps.Experiment(Linear(), dynsim.sgd(LINEAR["lr"]), steps, 1)
    yield f"{len(jax.devices())} devices; medians of {REPEATED}"
    for name, run, theirs, scale in (
        ("linear regression", linear, regression, 1.0),
        ("committee machine", small, committee, 1.0 / k),
    ):
        for seeds in SEEDS:
            cold, ours, loss = measured(functools.partial(swept, run, seeds))
            # Their loop has no state between seeds, so that a few tell the time of many.
            looped = min(seeds, SEEDS[0])
            _, loop, other = measured(functools.partial(theirs, looped))
            loop = [each * seeds / looped for each in loop]
            yield f"{name}, {run.steps} steps, {seeds} seeds, with theory:"
            for what, took in {"dynsim, first": cold, "dynsim": ours, "StatPhys-ML": loop}.items():
                yield f"  {what:<14} {took[0]:8.2f} s by the clock {took[1]:8.2f} s of CPU"
            clock, cpu = (a / b for a, b in zip(loop, ours, strict=True))
            yield f"  StatPhys-ML takes {clock:.1f} times as long, {cpu:.1f} times the CPU time"
            numbers = [scale * each for each in loss], other
            yield "  loss at the end, mean over seeds (theory): " + ", ".join(
                f"{mean:.3g} ({theory:.3g})" for mean, theory in numbers
            )


def measured(work: Callable[[], Any]) -> tuple[list[float], list[float], Any]:
    """Return the cost of the first call, the median of more, and the last result."""
    found: list[Any] = []
    first = cost(lambda: found.append(work()))
    return first, medians([cost(lambda: found.append(work())) for _ in range(REPEATED)]), found[-1]


def swept(run: sweeps.Experiment, seeds: int) -> tuple[float, float]:
    """Train all seeds, and solve the order parameters of the first; return both last losses."""
    ends = []
    for theory, number in (("simulation", seeds), ("overlaps", 1)):
        sweep = sweeps.Sweep(run, {"seed": range(number)}, theory, ("loss",), RECORDED)
        ends.append(float(sweeps.run(sweep, progress=False).loss.isel(time=-1).mean()))
    return ends[0], ends[1]


def regression(seeds: int) -> tuple[float, float]:
    """`statphys.quick_online`, as in its README, without figures."""
    found = statphys.quick_online(**LINEAR, n_seeds=seeds, t_steps=RECORDED, plot=False)
    m, q = (np.asarray(found.theory_results.order_params[name])[-1] for name in "mq")
    # Its error in training takes the drawn teacher for one of length 1, so it tends to no zero.
    return math.nan, float(1 - 2 * m + q) / 2


def committee(seeds: int) -> tuple[float, float]:
    """`simulate_online_committee`, as in its tests; it has no theory of finite rates to solve."""
    ends = [
        online_committee.simulate_online_committee(**COMMITTEE, n_snapshots=RECORDED, seed=seed)
        for seed in range(seeds)
    ]
    return statistics.fmean(float(each["eps_g"][-1]) for each in ends), math.nan
