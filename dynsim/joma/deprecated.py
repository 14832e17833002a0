"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

import math
from typing import Any, NamedTuple

import jax
from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.joma.model import Activation, Attention, Head, Joint, JoMA
from dynsim.precision import DType, precision, settle
from dynsim.problem.train import started, train
from dynsim.training.optax_rule import AnyRule
from dynsim.trajectory import Trajectory


class Shape(NamedTuple):
    """Kinds of attention, activation and head."""

    attention: Attention = "softmax"
    activation: Activation = "linear"
    head: Head = "cross-entropy"


def simulate_joma(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    *,
    shape: Shape = Shape(),  # noqa: B008  (immutable)
    scale: Any = 0.01,
    temperature: Any = 1.0,
    length: int | float = math.inf,
    batch: int | float = math.inf,
    **options: Any,
) -> Trajectory:
    """`dynsim.train`; the task, shape, scale, temperature and length are settings of
    `dynsim.JoMA`."""
    checks.deprecated("simulate_joma", "train")
    fields = {**shape._asdict(), "scale": scale, "temperature": temperature, "length": length}
    return train(JoMA(task, **fields), optimizer, key, batch=batch, **options)


def initial_joma(
    task: SequenceClasses,
    key: PRNGKeyArray,
    shape: Shape = Shape(),  # noqa: B008  (immutable)
    scale: Any = 0.01,
    dtype: DType = "float32",
) -> Joint:
    """The weights from which a run with this `key` starts; theories take the key itself."""
    checks.deprecated("initial_joma", "the argument key of a theory")
    checks.key("key", key)
    problem = JoMA(task, **shape._asdict(), scale=scale)
    with precision(dtype, problem, key):
        start = jax.jit(lambda key: started(problem, key, None, dtype).params)(key)
    return settle(start)
