"""Contribution of rare sequences to the loss late in training: `make tables TABLES=tails`."""

from collections.abc import Iterator

import jax
import numpy as np

import dynsim
from odes import symmetric
from sweeps import output

RATES = (1.0, 0.1)
TIMES = (100, 300, 1000)
SIZE = 128
SEEDS = 96
"""Number of runs, which determines their standard deviation to 7 %."""


def markdown() -> str:
    """Return a table of mean and standard deviation of the loss, by runs and by theories."""
    lines = output.markdown_table(("", *(f"{step} steps" for step in TIMES)), rows(SEEDS, TIMES))
    about = f"Syn-Small, SGD, eta_Y = {RATES[0]:g}, eta_Z = {RATES[1]:g}, T = B = {SIZE}"
    return "\n".join((f"{about}, {SEEDS} runs.", "", *lines)) + "\n"


def rows(seeds: int, times: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the mean with its standard error, theories' relative errors, standard deviations."""
    runs = trained(seeds, times)
    means, deviations = predicted(times)
    mean, std = runs.mean(0), runs.std(0, ddof=1)
    error = std / seeds**0.5
    yield "mean, runs", *(f"{m:.6g} ± {e:.1g}" for m, e in zip(mean, error, strict=True))
    for name, values in means.items():
        yield f"mean, {name}", *(f"{100 * value:+.2f} %" for value in values / mean - 1)
    relative = 100 / (2 * (seeds - 1)) ** 0.5
    yield f"standard deviation, runs (± {relative:.0f} %)", *(f"{value:.2e}" for value in std)
    for name, values in deviations.items():
        yield f"standard deviation, {name}", *(f"{value:.2e}" for value in values)


def trained(seeds: int, times: tuple[int, ...]) -> np.ndarray:
    """Return the losses (seeds, times) of runs."""
    layer, rule = dynsim.Layer(dynsim.SynSmall(), length=SIZE), dynsim.sgd(*RATES)
    options = {"steps": times[-1], "batch": SIZE, "times": times, "record": ["loss"]}
    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(0), seed))(np.arange(seeds))
    runs = jax.vmap(lambda key: dynsim.train(layer, rule, key, **options))(keys)
    return np.asarray(runs["loss"], np.float64)


def predicted(
    times: tuple[int, ...],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return means and standard deviations of the loss by theories of the symmetric reduction."""
    task, rule = symmetric.symmetric_task(dynsim.SynSmall().build()), dynsim.sgd(*RATES)
    saddle = symmetric.descend(
        task, rule, steps=times[-1], times=times, length=SIZE, tails=True, record=["loss"]
    )
    first, sample = (
        symmetric.spread(task, rule, times, batch=SIZE, length=SIZE, tails=tails, record=["loss"])
        for tails in (False, True)
    )
    means = {"first order": first, "saddle point": saddle, "4096 sequences": sample}
    deviations = {"first order": first, "4096 sequences": sample}
    return (
        {name: np.asarray(found["loss"]) for name, found in means.items()},
        {name: np.asarray(found.std["loss"]) for name, found in deviations.items()},
    )


if __name__ == "__main__":
    print(markdown())
