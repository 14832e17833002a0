"""The whole sweep of Fig. 6, 640 trainings, against loops over single runs."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (comes with the extra bench)

import dynsim
import sweeps
from papers.scan_and_snap import published
from sweeps.runner.spec import Sweep, load
from tests.benchmarks.peers.torch_loop import entropy_after_training
from tests.benchmarks.timing import seconds

LOOPS = 4
"""Number of single runs timed for each number of queries; their median represents all runs."""


def report(check: bool = False) -> Iterator[str]:
    """Lines of the report."""
    sweep = load("fig6", ['record = ["entropy"]'])
    per_query = sweep.dims[1].size * sweep.dims[2].size * sweep.dims[3].size
    cold = seconds(lambda: sweeps.run(sweep))
    warm = float(
        np.median([seconds(functools.partial(sweeps.run, rooted(sweep, i))) for i in (1, 2, 3)])
    )
    yield f"{len(jax.devices())} devices, {torch.get_num_threads()} threads in PyTorch"
    yield f"sweep, 640 runs: {warm:.2f} s warm, {cold:.2f} s cold (compilation included)"
    totals = {"PyTorch, one-hot": 0.0, "PyTorch, gathered": 0.0, "jitted single runs": 0.0}
    for number in sweep.fields["num_queries"]:
        task = dynsim.SynMedium(int(number)).build()
        loop = functools.partial(entropy_after_training, task, 2.0, 1.0)
        runs = {
            "PyTorch, one-hot": loop,
            "PyTorch, gathered": functools.partial(loop, compact=True),
            "jitted single runs": functools.partial(single, task),
        }
        for name, one in runs.items():
            one(0)
            took = float(np.median([seconds(functools.partial(one, s)) for s in range(LOOPS)]))
            totals[name] += per_query * took
            yield f"  {name}, {number} queries: {took:.3f} s a run"
    yield "640 runs one after the other, and how much faster the sweep is:"
    for name, total in totals.items():
        yield f"  {name}: {total:.0f} s, {total / warm:.0f}x warm, {total / cold:.0f}x cold"
    if check:
        yield from compared(entropy_after_training)


def compared(train: Callable[..., float]) -> Iterator[str]:
    task, good = dynsim.SynMedium(1).build(), 0
    cells = published().sel(num_queries=1).to_dataframe().reset_index()
    for eta_z, ratio, mean, std in cells[["eta_z", "ratio", "mean", "std"]].to_numpy():
        found = np.array([train(task, ratio * eta_z, eta_z, seed) for seed in range(10)])
        tolerance = 3 * np.sqrt((std**2 + found.var(ddof=1)) / 10)
        good += abs(found.mean() - mean) <= max(tolerance, 0.02 * mean)
    yield f"PyTorch loop: {good} of {len(cells)} published cells of one query reproduced"


def single(task: dynsim.SequenceClasses, seed: int) -> float:
    run = dynsim.train(
        dynsim.Layer(task, start="uniform"),
        dynsim.sgd(2.0, 1.0, momentum=0.9),
        jax.random.key(seed),
        steps=100,
        batch=128,
        times=[100],
        record=["entropy"],
    )
    return float(run["entropy"][0])


def rooted(sweep: Sweep, root: int) -> Sweep:
    return dataclasses.replace(sweep, root=root)
