"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

import math
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType
from dynsim.problem.train import train
from dynsim.training import keys
from dynsim.training.optax_rule import AnyRule
from dynsim.trajectory import Trajectory
from dynsim.yz import model as yz
from dynsim.yz.layer import layer


def simulate(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray | None = None,
    *,
    steps: int,
    length: int | float = 128,
    batch: int | float = 128,
    init: yz.YZ | yz.Init = "zero",
    dtype: DType = "float32",
    data: Any = None,
    **options: Any,
) -> Trajectory:
    """`dynsim.train` of `dynsim.layer(task, length, init)`; a key may be None where nothing is
    random."""
    checks.deprecated("simulate", "train")
    problem = layer(task, length, "zero" if isinstance(init, yz.YZ) else init)
    if key is None and init != "uniform" and (data is not None or math.isinf(batch)):
        key = jax.random.key(0) if optimizer.noise is None else None
    if init == "uniform" and dtype == "float64" and key is not None:
        # Drawn in 64 bits, as they were.
        init = _initial(problem, "uniform", key, dtype)
    start = init if isinstance(init, yz.YZ) else None
    return train(
        problem, optimizer, key, steps=steps, batch=batch, init=start, dtype=dtype, data=data,
        **options,
    )  # fmt: skip


def initial_weights(
    task: SequenceClasses, init: yz.Init, key: PRNGKeyArray, dtype: DType = "float32"
) -> yz.YZ:
    """The weights from which a run with this `key` starts; theories take the key itself."""
    checks.deprecated("initial_weights", "the argument key of a theory")
    return _initial(task, init, key, dtype)


def _initial(task: SequenceClasses, init: yz.Init, key: PRNGKeyArray, dtype: DType) -> yz.YZ:
    checks.choice("init", init, ("zero", "uniform"))
    if init == "uniform":
        return yz.init_uniform(task, keys.split(key)[0], dtype)
    return yz.init_zero(task, dtype)
