"""Sharpness: its error against dense eigenvalues, and the cost of recording it."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

import dynsim
import sweeps
from papers.central_flows import Network
from sweeps.runner.spec import Sweep
from tests.benchmarks.timing import cold_and_warm, seconds

EXAMPLES, STEPS = 64, 2000
RECORDS, OFTEN = 20, 200
"""Number of records per run: of many runs, and of a single run whose records are timed."""
NETWORKS = {
    "tanh 3-10-1": Network(examples=EXAMPLES),
    "tanh 8-30-30-1": Network(8, 30, 2, examples=EXAMPLES),
    "tanh 20-64-64-1": Network(20, 64, 2, examples=EXAMPLES),
    "linear 10-20-20-20-1": Network(10, 20, 3, "linear", examples=EXAMPLES),
}
KEY = jax.random.key(0)


def report() -> Iterator[str]:
    """Yield for each network the largest relative error of the four largest eigenvalues during
    training, in both precisions, and the cost of a record in gradient evaluations; then the time of
    many runs. All times are warm."""
    for name, network in NETWORKS.items():
        size = ravel_pytree(network.init(KEY))[0].size
        errors = [error(network, dtype) for dtype in ("float32", "float64")]
        cost = record(network)
        yield (
            f"{name}, {size} weights: error {errors[0]:.1e} in float32, {errors[1]:.1e} in "
            f"float64; a record costs {cost:.0f} gradients"
        )
    for name, number in (("tanh 3-10-1", 10_000), ("tanh 8-30-30-1", 200)):
        names = ("loss",), ("loss", "sharpness")
        plain, recorded = (many(NETWORKS[name], number, each) for each in names)
        yield (
            f"{name}, {number} runs of {STEPS // 10} steps, {RECORDS} records: {recorded:.1f} s "
            f"with sharpness, {plain:.1f} s without"
        )


def error(problem: dynsim.Problem, dtype: Any) -> float:
    """Return the largest error of the four largest eigenvalues, relative to the largest."""
    names = [f"sharpness_{i}" for i in range(1, 5)]
    times = np.linspace(0, 200, 5, dtype=int)
    run = train(problem, 0.1, steps=200, times=times, record=[*names, "params"], dtype=dtype)
    leaves, structure = jax.tree.flatten(problem.init(KEY))
    found = np.stack([run[name] for name in names], axis=1)
    wrong = []
    with jax.enable_x64(True):
        for i in range(len(times)):
            now = [np.asarray(run[f"params.{k}"][i], np.float64) for k in range(len(leaves))]
            flat, unravel = ravel_pytree(jax.tree.unflatten(structure, now))
            loss = lambda p, unravel=unravel: problem.population_loss(unravel(p))
            want = np.linalg.eigvalsh(jax.hessian(loss)(flat))[:-5:-1]
            wrong.append(np.abs(found[i] - want).max() / want[0])
    return float(np.max(wrong))


def record(problem: dynsim.Problem) -> float:
    """Return the time of a record relative to that of a step."""

    def took(names: tuple[str, ...]) -> float:
        times = np.linspace(STEPS // OFTEN, STEPS, OFTEN, dtype=int)
        options = {"steps": STEPS, "times": times, "record": names}
        run = jax.jit(lambda eta: train(problem, eta, **options).observables)
        again = lambda: jax.block_until_ready(run(0.1))
        again()
        return min(seconds(again) for _ in range(3))

    without = took(("loss",))
    return (took(("loss", "sharpness")) - without) / OFTEN / (without / STEPS)


def train(problem: dynsim.Problem, eta: Any, **options: Any) -> dynsim.Trajectory:
    return dynsim.train(problem, dynsim.sgd(eta), KEY, batch=math.inf, **options)


def many(problem: dynsim.Problem, number: int, record: tuple[str, ...]) -> float:
    def run(shift: float) -> None:
        axes = {"eta": np.geomspace(0.01 * shift, 0.5 * shift, number // 100)}
        axes |= {"seed": range(100)}
        trained = sweeps.Experiment(problem, dynsim.sgd(0.1), STEPS // 10, math.inf)
        sweeps.run(Sweep(trained, axes, record=record, times=RECORDS), progress=False)

    return cold_and_warm(run)[1]
