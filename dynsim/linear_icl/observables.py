"""What is measured on linear attention: pure functions of task and weights."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynsim.linear_icl import model
from dynsim.linear_icl.model import Model
from dynsim.linear_icl.task import Regression
from dynsim.precision import AnyArray
from dynsim.training.recording import RELATIVE_LOSS, Table


class Snapshot(NamedTuple):
    """Weights at one moment, and the matrix M of their output beta^T M x_q."""

    task: Regression
    params: Model
    M: Float[Array, "D D"]


Observable = Callable[[Snapshot], Array]


def measure(task: Regression, params: Model) -> Snapshot:
    """Snapshot of weights."""
    return Snapshot(task, params, params.matrix())


def learned(M: Float[AnyArray, "D D"], task: Regression) -> Float[Array, " D"]:
    """(D,) M_dd over its value lambda_d^-1 g_d^-1 at the fixed points of eq. 18: 0 before a
    principal component is learned, 1 after."""
    return jnp.diagonal(M) * (jnp.asarray(task.spectrum) * task.gain)


def stage(shares: Float[Array, " D"]) -> Float[Array, ""]:
    """Number of components that are learned by more than half."""
    reached: Bool[Array, " D"] = shares > 1 / 2
    return jnp.sum(reached, dtype=shares.dtype)


def off_diagonal(M: Float[AnyArray, "D D"]) -> Float[Array, ""]:
    """Share of |M|_F^2 off the diagonal, in the eigenbasis of Lambda; 0 for M = 0."""
    total = jnp.sum(M**2)
    rest = total - jnp.sum(jnp.diagonal(M) ** 2)
    return jnp.where(total > 0, rest / jnp.where(total > 0, total, 1), 0)


OBSERVABLES: dict[str, Observable] = {
    "loss": lambda s: model.loss(s.M, s.task),
    "learned": lambda s: learned(s.M, s.task),
    "stage": lambda s: stage(learned(s.M, s.task)),
    "off_diagonal": lambda s: off_diagonal(s.M),
    "values": lambda s: jnp.asarray(s.params.v),
    "imbalance": lambda s: s.params.imbalance(),
    "matrix": lambda s: s.M,
}
"""All observables by name: `loss` is the population's, of shape (); `learned` (D,), `stage` () and
`off_diagonal` () as the functions here; `values` (H,) the v_i, `imbalance` (H,) what the flow
conserves, `matrix` (D, D) M."""
TABLE = Table(OBSERVABLES, ("linear_icl",))
"""What can be measured on weights at one moment."""
TRAINED = dataclasses.replace(TABLE, provided=("batch_loss", RELATIVE_LOSS))
"""What training records: the same, and the loss of the next batch."""
DEFAULT_RECORD = ("loss", "learned", "stage")
"""What is recorded unless asked otherwise."""
