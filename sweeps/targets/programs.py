"""One program for every engine of every system, of the size that sweeps have."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from dynsim.training.checkpoint import Checkpoint
from dynsim.training.recording import SHARPNESS
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import CHECKPOINT
from sweeps.systems import registry
from sweeps.systems.base import Run, Settings, field_names

TRAINING = "simulation"
POINTS, SEEDS = 64, 2
"""Runs of a program: so many points for each of so many seeds."""
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9},
    {"optimizer": "adam"},
    {"task": "syn", "num_common": 1},
    {"task": "syn", "num_common": 1, "momentum": 0.9},
    {"optimizer": "momentum"},
    {"optimizer": "rmsprop"},
    {"attention": "merged", "spectrum": "white"},
    {"attention": "exp", "activation": "linear", "head": "signal"},
)
"""Changes to the defaults of a run, tried one after the other until an engine describes it."""
SCHEDULED = {"optimizer": "adamw", "decay": 0.1, "schedule": "cosine", "eta_warmup": 10, "clip": 1}
"""Settings of an update rule with everything, which training is compiled for as well."""
SIZES: dict[str, dict[str, Any]] = {
    "yz": {"steps": 100},
    "qkv": {"steps": 100},
    "two_stage": {"preset": "fast"},
    "linear_icl": {"steps": 100},
    "sparse_attention": {"steps": 100},
    "joma": {"steps": 100},
    "transformer": {"corpus": "synthetic", "steps": 100},
}
"""Sizes of the runs by system, where the defaults would be long."""


class Case(NamedTuple):
    """An engine of a system in a sweep, and what is to be said of its settings."""

    system: str
    engine: str
    sweep: Sweep
    note: str = ""


def cases(only: tuple[str, ...] = ()) -> Iterator[Case]:
    """All engines of all systems, or of those named."""
    for name in only or registry.names():
        system = registry.system(name)
        for engine in registry.engines(system):
            yield Case(name, engine, _sweep(system.run, name, engine))
        trained = _sweep(system.run, name, TRAINING)
        sharp = dataclasses.replace(trained, record=(*trained.record, SHARPNESS))
        yield Case(name, TRAINING, sharp, ", sharpness")
        if set(SCHEDULED) <= set(field_names(system.run)):
            run = system.run(**{**SIZES.get(name, {}), **SCHEDULED})
            sweep = Sweep({"seed": {"range": SEEDS}}, run, TRAINING, ("loss",))
            yield Case(name, TRAINING, sweep, ", AdamW with a schedule")


def _sweep(run: type[Run[Any]], system: str, engine: str) -> Sweep:
    fields = set(field_names(run))
    reasons = []
    for change in VARIANTS:
        if not set(change) <= fields:
            continue
        sized = run(**{**SIZES.get(system, {}), **change})
        names = registry.engines(registry.system(system))[engine].observables.names()
        record = ("loss",) if "loss" in names else tuple(names)[:1]
        found = Sweep({"seed": {"range": SEEDS}}, sized, engine, record)
        try:
            found.check()
        except ValueError as error:
            reasons.append(str(error))
        else:
            return found
    raise ValueError(f"{system} {engine}: describes none of the runs tried: {'; '.join(reasons)}")


def job(case: Case, mesh: jax.sharding.Mesh) -> tiles.Job:
    """What is compiled for a case."""
    sweep = case.sweep
    runs = sweep.plane({})
    settings = Settings(
        runs.fixed(), runs.steps_recorded(sweep.times), sweep.record, sweep.dtype, sweep.rtol
    )
    prepared = jax.tree.map(jax.numpy.asarray, sweep.rules.prepare(runs.make_task(), sweep.record))
    shape = (SEEDS, POINTS)
    return tiles.Job(prepared, tuple(runs.numbers()), shape, sweep.rules, settings, mesh)


def going_on(job: tiles.Job, begin: int) -> tiles.Job:
    """The program of the same runs from step `begin` on."""
    kept = job._replace(settings=job.settings._replace(checkpoint=True))
    _, traced = tiles.trace(kept)
    settings = job.settings._replace(checkpoint=Checkpoint(begin))
    return job._replace(settings=settings, state=traced.out_info[CHECKPOINT].shape[-1])
