"""What computes the runs of the two-stage system: simulation and the reduced ODE."""

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from dynsim import Trajectory
from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.observables import TRAINED
from dynsim.two_stage.simulate import simulate_prompts
from dynsim.two_stage.task import Prompts
from odes import two_stage
from odes.solver.tolerances import Tolerances
from odes.two_stage.field import TABLE
from sweeps.systems.base import Engine, Settings
from sweeps.systems.two_stage.settings import OPTIMIZER_NUMBERS, TASK_NUMBERS, TwoStage


def _assemble(
    settings: Settings, prepared: Prompts, point: Mapping[str, Array]
) -> tuple[Prompts, NoisySGD]:
    numbers = {name: point[name] for name in TASK_NUMBERS}
    if settings.run.coupling == 0:
        # As a number that the theory sees, because it then leaves out what only J needs.
        numbers["coupling"] = 0.0
    task = dataclasses.replace(prepared, **numbers)
    return task, NoisySGD(**{name: point[name] for name in OPTIMIZER_NUMBERS})


def _simulate(
    settings: Settings, task: Prompts, optimizer: NoisySGD, key: PRNGKeyArray
) -> Trajectory:
    run: TwoStage = settings.run
    times = _times(settings, optimizer)
    return simulate_prompts(
        task,
        optimizer,
        key,
        batch=run.batch,
        pool=run.pool,
        num_test=run.num_test,
        times=jnp.rint(times).astype(jnp.int32),
        record=settings.record,
        bias=run.bias,
        dtype=settings.dtype,
    )


def _solve(
    settings: Settings,
    task: Prompts,
    optimizer: NoisySGD,
    key: PRNGKeyArray,
    *,
    finite_length: bool,
) -> Trajectory:
    del key
    rtol = settings.rtol
    return two_stage.solve(
        task,
        optimizer,
        _times(settings, optimizer),
        record=settings.record,
        finite_length=finite_length,
        dtype=settings.dtype,
        tolerances=None if rtol is None else Tolerances(rtol, rtol * 0.01),
    )


def _times(settings: Settings, optimizer: NoisySGD) -> Int[Array, " S"]:
    if isinstance(settings.times, int):
        return optimizer.spread(settings.times)
    return jnp.asarray(settings.times)


def _check_theory(run: TwoStage, task: Prompts, optimizer: NoisySGD) -> None:
    del task, optimizer
    if run.core != "fresh":
        raise ValueError(f"core = {run.core!r}: the reduced ODE describes fresh prompts alone")
    if run.bias:
        raise ValueError("bias = True: the reduced ODE has no bias")


def _bytes(task: Prompts, settings: Settings) -> int:
    run: TwoStage = settings.run
    width = 8 if settings.dtype == "float64" else 4
    tokens = 2 * task.d * task.length
    # A batch and the test prompts are held twice: gathered, and multiplied.
    return width * tokens * (run.pool + 2 * run.batch + 2 * run.num_test)


def _theory(finite_length: bool) -> Engine:
    return Engine(
        system=TwoStage,
        run=functools.partial(_solve, finite_length=finite_length),
        assemble=_assemble,
        check=_check_theory,
        observables=TABLE,
        bytes_per_run=lambda task, settings: 2**16,
        adaptive=True,
        tile=32,
    )


ENGINES: dict[str, Engine] = {
    "prompts": Engine(
        system=TwoStage,
        run=_simulate,
        assemble=_assemble,
        check=lambda *_: None,
        observables=TRAINED,
        bytes_per_run=_bytes,
        adaptive=False,
        tile=1,
        trains=True,
    ),
    "two-stage": _theory(True),
    "two-stage-infinite": _theory(False),
}
"""Engines of the two-stage system: training, the reduced ODE, and that for L -> infinity."""
