"""What computes the runs of the two-stage system: simulation and the reduced ODE."""

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, Real

from dynsim import Trajectory
from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.observables import TRAINED
from dynsim.two_stage.simulate import Data, draw_data, simulate_prompts
from dynsim.two_stage.task import Prompts
from odes.solver.tolerances import Tolerances
from odes.theory import Theory
from odes.two_stage import ladder
from odes.two_stage.field import TABLE
from sweeps.systems.base import Engine, Settings
from sweeps.systems.two_stage.settings import OPTIMIZER_NUMBERS, TASK_NUMBERS, Fixed


def _assemble(
    settings: Settings[Fixed], prepared: Prompts, point: Mapping[str, Array]
) -> tuple[Prompts, NoisySGD]:
    numbers: dict[str, Array | float] = {name: point[name] for name in TASK_NUMBERS}
    if not settings.fixed.coupled:
        # As a number that the theory sees, because it then leaves out what only J needs.
        numbers["coupling"] = 0.0
    task = dataclasses.replace(prepared, **numbers)
    return task, NoisySGD(**{name: point[name] for name in OPTIMIZER_NUMBERS})


def _draw(settings: Settings[Fixed], task: Prompts, key: PRNGKeyArray) -> Data:
    pool, num_test = settings.fixed.pool, settings.fixed.num_test
    return draw_data(task, key, pool=pool, num_test=num_test, dtype=settings.dtype)


def _simulate(
    settings: Settings[Fixed], task: Prompts, optimizer: NoisySGD, key: PRNGKeyArray, data: Data
) -> Trajectory:
    fixed = settings.fixed
    times = _times(settings, optimizer)
    return simulate_prompts(
        task,
        optimizer,
        key,
        batch=fixed.batch,
        pool=fixed.pool,
        num_test=fixed.num_test,
        times=jnp.rint(times).astype(jnp.int32),
        record=settings.record,
        bias=fixed.bias,
        dtype=settings.dtype,
        data=data,
    )


def _solve(
    settings: Settings[Fixed],
    task: Prompts,
    optimizer: NoisySGD,
    key: PRNGKeyArray,
    *,
    theory: Theory[Prompts, NoisySGD],
) -> Trajectory:
    del key
    rtol = settings.rtol
    return theory.solve(
        task,
        optimizer,
        _times(settings, optimizer),
        record=settings.record,
        dtype=settings.dtype,
        tolerances=None if rtol is None else Tolerances(rtol, rtol * 0.01),
    )


def _times(settings: Settings[Fixed], optimizer: NoisySGD) -> Real[Array, " S"]:
    if isinstance(settings.times, int):
        return jnp.asarray(optimizer.spread(settings.times))
    return jnp.asarray(settings.times)


def _described(fixed: Fixed, task: Prompts, optimizer: NoisySGD) -> None:
    del task, optimizer
    if fixed.core != "fresh":
        raise ValueError(f"core = {fixed.core!r}: the reduced ODE describes fresh prompts alone")
    if fixed.bias:
        raise ValueError("bias = True: the reduced ODE has no bias")


NUMBERS = 2**15
"""Bytes of an adaptive solver of a few numbers, and of what it observes by quadrature."""


def _bytes(task: Prompts, settings: Settings[Fixed]) -> int:
    fixed = settings.fixed
    tokens = 2 * task.d * task.length
    # Prompts are held as they were drawn and with the numbers of the run; the pool on a CPU
    # in two orders for a moment; prompts of a batch and of the test also multiplied.
    return settings.width * tokens * (3 * fixed.pool + 2 * fixed.batch + 3 * fixed.num_test)


def rung(theory: Theory[Prompts, NoisySGD]) -> Engine[Fixed]:
    """The engine of a theory of the ladder."""
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        TABLE,
        lambda task, settings: NUMBERS,
        _described,
        adaptive=True,
        tile=32,
        variant=theory.variant,
        title=theory.title,
        assumes=theory.assumes,
    )


def registered() -> dict[str, Engine[Fixed]]:
    """Engines of the theories of other packages that need task and optimiser alone."""
    return {name: rung(each) for name, each in ladder.registered().items() if not each.needs}


ENGINES: dict[str, Engine[Fixed]] = {
    "simulation": Engine(_simulate, _assemble, TRAINED, _bytes, tile=1, trains=True, draw=_draw),
    **{name: rung(theory) for name, theory in ladder.THEORIES.items() if not theory.needs},
}
"""Engines of the two-stage system: training, the reduced ODE, and that for L -> infinity."""
