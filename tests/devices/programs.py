"""One program for training and every theory of every system, of the size used in sweeps."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from dynsim.training.checkpoint import Checkpoint
from dynsim.training.recording import SHARPNESS
from odes.theory import AnyTheory
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.runner.store import CHECKPOINT
from sweeps.systems import registry
from sweeps.systems.experiment import experiment
from sweeps.systems.kinds import BUILT_IN
from tests.benchmarks import mlp

TRAINING = "simulation"
POINTS, SEEDS = 64, 2
"""Numbers of points and of seeds in a program."""
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9},
    {"rule": "adam"},
    {"task": {"kind": "syn", "num_common": 1}},
    {"task": {"kind": "syn", "num_common": 1}, "momentum": 0.9},
    {"rule": {"kind": "rmsprop"}},
    {"attention": "merged", "spectrum": "white"},
    {"attention": "exp", "activation": "linear", "head": "signal"},
    {"width": 4},
)
"""Changes to the defaults of a run, tried in turn until the theory describes the run."""
SCHEDULED: dict[str, Any] = {
    "rule": {"kind": "adamw", "decay": 0.1, "clip": 1.0},
    "eta": {"kind": "cosine", "peak": 0.1, "steps": 100, "warmup": 10},
}
"""An update rule with all features, for which training is compiled as well."""
OWN = "own network"
"""Name of a problem of a user, `tests.benchmarks.mlp.Net`, among the systems."""
MOST_KERNELS = {f"yz {TRAINING}": 25, f"{OWN} {TRAINING}": 40}
"""Maximum number of kernels per step of some cases, on a GPU."""
SIZES: dict[str, dict[str, Any]] = {"two_stage": {"problem": "two_stage-fast"}}
"""Settings of the runs by system; other systems only have `STEPS`."""
STEPS = {"steps": 100}


class Case(NamedTuple):
    """A theory of a system, or training, its sweep, and a note about the settings."""

    system: str
    theory: str
    sweep: Sweep
    note: str = ""

    @property
    def label(self) -> str:
        return f"{self.system} {self.theory}{self.note}"

    @property
    def most_kernels(self) -> float:
        return MOST_KERNELS.get(self.label, math.inf)


def cases(only: tuple[str, ...] = ()) -> Iterator[Case]:
    """Yield training and all theories of the built-in systems and training of a user's problem, or
    those of the systems in `only`."""
    for name in only or (*BUILT_IN, OWN):
        if name == OWN:
            yield Case(name, TRAINING, mlp.sweep(SEEDS))
            continue
        system = registry.system(name)
        sized = SIZES.get(name, {"problem": name, **STEPS})
        for theory, method in registry.theories(system).items():
            yield Case(name, theory, _sweep(sized, theory, method))
        trained = _sweep(sized, TRAINING, system.theories[TRAINING])
        sharp = dataclasses.replace(trained, record=(*trained.recorded, SHARPNESS))
        yield Case(name, TRAINING, sharp, ", sharpness")
        if name not in SIZES:
            run = experiment(**sized, **SCHEDULED)
            sweep = Sweep(run, {"seed": {"range": SEEDS}}, TRAINING, ("loss",))
            yield Case(name, TRAINING, sweep, ", AdamW with a schedule")


def _sweep(sized: dict[str, Any], theory: str, method: AnyTheory) -> Sweep:
    reasons = []
    names = method.observables(experiment(**sized).bare).names()
    record = ("loss",) if "loss" in names else tuple(names)[:1]
    for change in VARIANTS:
        try:
            found = Sweep(experiment(**sized, **change), {"seed": {"range": SEEDS}}, theory, record)
            found.check()
        except ValueError as error:
            reasons.append(str(error))
        else:
            return found
    raise ValueError(f"{sized} {theory}: describes none of the runs tried: {'; '.join(reasons)}")


def job(case: Case, mesh: jax.sharding.Mesh) -> jobs.Job:
    runs = case.sweep.runs({})
    arrays = jax.tree.map(jax.numpy.asarray, runs.arrays)
    return jobs.Job(arrays, runs.numbers, (SEEDS, POINTS), runs.call, mesh)


def going_on(job: jobs.Job, begin: int) -> jobs.Job:
    _, (traced, _) = jobs.trace(job._replace(call=job.call._replace(checkpoint=True)))
    call = job.call._replace(checkpoint=Checkpoint(begin))
    return job._replace(call=call, state=traced.out_info[CHECKPOINT].shape[-1])
