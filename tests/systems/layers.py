"""Training of the layer in Y and Z with all of its arguments in one call."""

import math
from typing import Any

import jax

import dynsim
from dynsim.problem.train import started


def simulate(
    task: dynsim.SequenceClasses,
    rule: Any,
    key: jax.Array | None = None,
    *,
    length: float = 128,
    batch: float = 128,
    init: Any = "zero",
    data: Any = None,
    **options: Any,
) -> dynsim.Trajectory:
    """`dynsim.train` of `dynsim.Layer(task, length, init)`; without a key where nothing is
    random."""
    given = isinstance(init, dynsim.YZ)
    problem = dynsim.Layer(task, length, "zero" if given else init)
    random = init == "uniform" or getattr(rule, "noise", None) is not None
    if key is None and not random and (data is not None or math.isinf(batch)):
        key = jax.random.key(0)
    start = init if given else None
    return dynsim.train(problem, rule, key, batch=batch, init=start, data=data, **options)


def initial_weights(
    task: dynsim.SequenceClasses, init: Any, key: jax.Array, dtype: Any = "float32"
) -> dynsim.YZ:
    """The weights with which a run of this key starts."""
    with jax.enable_x64(dtype == "float64" or jax.enable_x64.value):
        return started(dynsim.Layer(task, start=init), key, None, dtype).params
