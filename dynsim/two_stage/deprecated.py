"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.problem.train import train
from dynsim.training.recording import ETA_TIME, Record
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ, Split
from dynsim.two_stage.observables import DEFAULT_RECORD
from dynsim.two_stage.task import Prompts


def simulate_prompts(
    task: Prompts,
    optimizer: Rule,
    key: PRNGKeyArray,
    *,
    batch: int = 128,
    pool: int = 4096,
    num_test: int = 2048,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    init: PQ | None = None,
    bias: bool = False,
    **options: Any,
) -> Trajectory:
    """`dynsim.train`; sizes, bias and starting noise are settings of `dynsim.prompts`. As before,
    weights start with the noise that is stationary for the first learning rate."""
    checks.deprecated("simulate_prompts", "train")
    stages = Annealing.of(optimizer)
    start = stages.stationary(stages.eta_1)
    task = dataclasses.replace(task, pool=pool, num_test=num_test, bias=bias, tau_0=start)
    if init is not None:
        none = jnp.zeros_like(init.W)
        options["init"] = Split(PQ(none, none, jnp.zeros(()) if bias else None), init)
    asked: list[Any] = [record] if isinstance(record, str | Mapping) else [*record]
    return train(
        task,
        optimizer,
        key,
        steps=None,
        times=stages.times() if times is None else times,
        batch=batch,
        record=[*asked, ETA_TIME],
        **options,
    )
