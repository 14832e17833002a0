"""The claims of two-stage training, tested on the PyTorch loop and on sweeps.

The same code measures both, on weights at the same times, so that only the training is compared.
"""

from collections.abc import Iterator, Mapping

import jax
import numpy as np
import xarray as xr

import sweeps
from dynsim import Prompts
from dynsim.two_stage.model import PQ, Split
from dynsim.two_stage.observables import OBSERVABLES, measure
from dynsim.two_stage.task import sample_prompts
from papers import two_stage
from tests.benchmarks.peers.torch_two_stage import trained

SEEDS = 3
NUM_TIMES = 32
EXPERIMENTS = {
    "preset": sweeps.experiment("two_stage"),
    "joint": sweeps.experiment("two_stage-joint"),
    "forever": sweeps.experiment("two_stage", control="forever"),
}


def compared() -> Iterator[str]:
    """Yield every claim for both, and the number of means over seeds that agree."""
    ours, predicted = {}, {}
    for name, run in EXPERIMENTS.items():
        training = two_stage.training(run, SEEDS, NUM_TIMES)
        ours[name] = two_stage.ended(sweeps.run(training).load(), run)
        predicted[name] = sweeps.run(two_stage.ode(run, NUM_TIMES)).load().isel(seed=0)
    theirs = {name: by_torch(EXPERIMENTS[name], each) for name, each in ours.items()}
    both = [two_stage.verdicts(EXPERIMENTS, runs, predicted) for runs in (ours, theirs)]
    same, number = 0, 0
    for name in both[0]:
        yield f"{name}: {SEEDS} runs by sweeps, {SEEDS} by the PyTorch loop"
        for a, b in zip(*(found[name] for found in both), strict=True):
            same, number = same + (a.holds == b.holds), number + 1
            said = " and ".join("holds" if claim.holds else "FAILS" for claim in (a, b))
            yield f"  {a.name:<10}{a.text:<64}{a.measured:>10.4g}{b.measured:>10.4g}  {said}"
    good = agreeing(ours, theirs)
    yield (
        f"PyTorch loop: {same} of {number} claims end as by sweeps; {sum(good)} of {len(good)} "
        "means at the ends of the stages lie within three standard errors"
    )


def by_torch(training: sweeps.Experiment, ours: xr.Dataset) -> xr.Dataset:
    """Run the same experiment with the PyTorch loop, measured on its own prompts."""
    task, optimizer = training.built
    steps = ours.time[0].values.astype(int).tolist()
    batch = int(training.batch)

    @jax.jit
    def measured(weights: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        test = sample_prompts(task, key, task.num_test)

        def at(weights: jax.Array) -> dict[str, jax.Array]:
            snapshot = measure(Split(*(PQ(W, V) for W, V in weights)), test)
            return {name: observable(snapshot) for name, observable in OBSERVABLES.items()}

        return jax.lax.map(at, weights)

    found = [
        jax.device_get(measured(trained(task, optimizer, seed, steps, batch=batch), key))
        for seed, key in enumerate(jax.random.split(jax.random.key(1), ours.sizes["seed"]))
    ]
    values = {name: np.stack([each[name] for each in found]) for name in OBSERVABLES}
    return ours.assign({name: (ours[name].dims, each) for name, each in values.items()})


def agreeing(ours: Mapping[str, xr.Dataset], theirs: Mapping[str, xr.Dataset]) -> list[bool]:
    good = []
    for name, a in ours.items():
        for observable in Prompts.COMPARED:
            both = a[observable].values, theirs[name][observable].values
            distance = abs(both[0].mean(0) - both[1].mean(0))
            error = np.sqrt(sum(values.var(0, ddof=1) for values in both) / SEEDS)
            good += (distance <= 3 * error)[[a.switch, -1]].tolist()
    return good
