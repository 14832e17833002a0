"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, precision, settle
from dynsim.problem.train import started, train
from dynsim.qkv.layer import QKV, Embedding
from dynsim.qkv.model import Embedded, Normalisation, Placement
from dynsim.training.optax_rule import AnyRule
from dynsim.trajectory import Trajectory


class EmbeddedSpec(NamedTuple):
    """What decides the starting weights; the fields of `dynsim.QKV`."""

    width: int
    heads: int = 1
    head_width: int | None = None
    scale: Any = 1.0
    value_scale: Any = 1.0
    embedding: Embedding = "orthogonal"
    tied: bool = True
    normalisation: Normalisation = "l2"
    placement: Placement = "theory"
    residual: bool = False


def simulate_embedded(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray | None = None,
    *,
    init: EmbeddedSpec | Embedded,
    frozen: Collection[str] = ("U",),
    slope: Any = None,
    length: int | float = 128,
    batch: int | float = 128,
    **options: Any,
) -> Trajectory:
    """`dynsim.train`; the task, what `init` describes, `frozen`, `slope` and `length` are settings
    of `dynsim.QKV`."""
    checks.deprecated("simulate_embedded", "train")
    weights = init if isinstance(init, Embedded) else None
    problem = dataclasses.replace(
        problem_of(task, init),
        length=length,
        slope=slope,
        frozen=tuple(name for name in frozen if name != "U"),
        train_embedding="U" not in frozen,
    )
    return train(problem, optimizer, key, init=weights, batch=batch, **options)


def initial_embedded(
    task: SequenceClasses, init: EmbeddedSpec, key: PRNGKeyArray, dtype: DType = "float32"
) -> Embedded:
    """The weights from which a run with this `key` starts; theories take the key itself."""
    checks.deprecated("initial_embedded", "the argument key of a theory")
    problem = problem_of(task, init)
    with precision(dtype, problem, key):
        start = jax.jit(lambda key: started(problem, key, None, dtype))(key)
    return settle(start.whole(start.params))


def problem_of(task: SequenceClasses, init: EmbeddedSpec | Embedded) -> QKV:
    """The problem whose weights have the shapes of `init`, or are drawn as it says."""
    if isinstance(init, EmbeddedSpec):
        return QKV(task, **init._asdict())
    checks.kind("init", init, Embedded)
    heads, width, head_width = np.shape(init.W_Q)
    return QKV(
        task,
        width=width,
        heads=heads,
        head_width=head_width,
        embedding="gaussian",
        tied=init.D is None,
        normalisation=init.normalisation,
        placement=init.placement,
        residual=init.residual,
    )
