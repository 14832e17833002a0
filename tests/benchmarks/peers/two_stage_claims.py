"""The claims of two-stage training, tested on the PyTorch loop and on sweeps.

The same code measures both, on weights at the same times, so that only the training is compared.
"""

from collections.abc import Iterator, Mapping

import jax
import numpy as np

from dynsim import Prompts
from dynsim.two_stage.model import PQ, Split
from dynsim.two_stage.observables import OBSERVABLES, measure
from dynsim.two_stage.task import sample_prompts
from sweeps.runner.run import run
from sweeps.studies.two_stage import claims
from sweeps.studies.two_stage.claims import RECORD, Runs, ode
from sweeps.studies.two_stage.figure import runs
from sweeps.systems.experiment import experiment
from tests.benchmarks.peers.torch_two_stage import trained

SEEDS = 3
NUM_TIMES = 32
EXPERIMENTS = {
    "preset": experiment("two_stage"),
    "joint": experiment("two_stage-joint"),
    "forever": experiment("two_stage", control="forever"),
}


def compared() -> Iterator[str]:
    """Yield every claim for both, and the number of means over seeds that agree."""
    ours = {name: runs(each, SEEDS, NUM_TIMES) for name, each in EXPERIMENTS.items()}
    theirs = {name: by_torch(each) for name, each in ours.items()}
    predicted = {name: run(ode(each)) for name, each in ours.items()}
    verdicts = claims.tested(ours, predicted), claims.tested(theirs, predicted)
    same, number = 0, 0
    for name in verdicts[0]:
        yield f"{name}: {SEEDS} runs by sweeps, {SEEDS} by the PyTorch loop"
        for a, b in zip(*(found[name] for found in verdicts), strict=True):
            same, number = same + (a.holds == b.holds), number + 1
            said = " and ".join("holds" if claim.holds else "FAILS" for claim in (a, b))
            yield f"  {a.name:<10}{a.text:<64}{a.measured:>10.4g}{b.measured:>10.4g}  {said}"
    good = agreeing(ours, theirs)
    yield (
        f"PyTorch loop: {same} of {number} claims end as by sweeps; {sum(good)} of {len(good)} "
        "means at the ends of the stages lie within three standard errors"
    )


def by_torch(ours: Runs) -> Runs:
    """Run the same experiment with the PyTorch loop, measured on its own prompts."""
    training = ours.training
    task, optimizer = training.built
    steps = ours.steps.astype(int).tolist()
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
        for seed, key in enumerate(jax.random.split(jax.random.key(1), ours.count))
    ]
    values = {name: np.stack([each[name] for each in found]) for name in OBSERVABLES}
    values["eta_time"] = ours.values["eta_time"]
    return Runs(training, ours.steps, ours.eta_time, {name: values[name] for name in RECORD}, 0)


def agreeing(ours: Mapping[str, Runs], theirs: Mapping[str, Runs]) -> list[bool]:
    """Return whether the means over seeds lie within three standard errors of each other, for each
    observable of `Prompts.COMPARED` at the end of each stage."""
    good = []
    for name, a in ours.items():
        for observable in Prompts.COMPARED:
            both = a[observable], theirs[name][observable]
            distance = abs(both[0].mean(0) - both[1].mean(0))
            error = np.sqrt(sum(values.var(0, ddof=1) for values in both) / SEEDS)
            good += (distance <= 3 * error)[[a.switch, -1]].tolist()
    return good
