"""What the symmetric reduction can record.

Observables bear the names of `dynsim.yz.observables`; those that have an entry for each class there
have shape (1,) here, all classes being alike.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.precision import AnyArray
from dynsim.training.recording import RELATIVE_LOSS, Recording, Table
from dynsim.yz.observables import MEASURED
from odes.symmetric.reduction import measure
from odes.symmetric.state import Reduced, State, SymmetricTask

Observable = Callable[[SymmetricTask, State, Reduced], Array]


def entropy(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, ""]:
    """Entropy (nat) of the attention restricted to distinct tokens; NaN without any."""
    if now.c.distinct.size == 0:
        return jnp.full((), jnp.nan, now.loss.dtype)
    p = now.c.distinct / task.sum_distinct(now.c.distinct)
    # The inner where keeps the gradient finite where p = 0.
    found = -task.sum_distinct(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0))
    return jnp.where(task.sum_distinct(jnp.ones_like(p)) > 1, found, 0)


def xi(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, "1"]:
    """xi_n as `dynsim.yz.observables.xi` measures it; NaN without distinct tokens."""
    f, g = now.f.distinct, now.g.distinct
    if f.size == 0:
        return jnp.full((1,), jnp.nan, now.loss.dtype)
    weight = task.sum_distinct(f**2)
    gain = task.sum_distinct(f * (g - f * now.speed))
    return (gain / jnp.where(weight > 0, weight, 1))[None]


def _most_probable(z: Float[Array, " D"], probability: Float[AnyArray, " D"]) -> Float[Array, "1"]:
    if z.size == 0:
        return jnp.full((1,), jnp.nan, z.dtype)
    return z[jnp.argmax(probability)][None]


OBSERVABLES: dict[str, Observable] = {
    "loss": lambda task, state, now: now.loss,
    "accuracy": lambda task, state, now: (now.margin > 0).astype(now.loss.dtype),
    "entropy": entropy,
    "z_top_distinct": lambda task, state, now: _most_probable(state.Z.distinct, task.p),
    "z_top_common": lambda task, state, now: _most_probable(state.Z.common, task.rho),
    "speed": lambda task, state, now: now.speed[None],
    "xi": xi,
    "z_distinct": lambda task, state, now: state.Z.distinct,
    "z_common": lambda task, state, now: state.Z.common,
    "attention_distinct": lambda task, state, now: now.c.distinct,
    "attention_common": lambda task, state, now: now.c.common,
}
"""Observables by the name under which they are recorded: () loss, accuracy and entropy; (1,)
where all classes agree; (D,) or (C,) for each distinct token of a class or each common token."""


TABLE = Table(OBSERVABLES)
"""What the flows record."""
PLACED = dataclasses.replace(MEASURED, functions={**OBSERVABLES, **MEASURED.functions})
"""What the flows record where the full task is known: all that is measured on weights, and what the
reduction has alone."""
DESCENDED = dataclasses.replace(TABLE, provided=("batch_loss", RELATIVE_LOSS))
"""What descent records."""


def observe(record: Recording, task: SymmetricTask, state: State) -> dict[str, Array]:
    """All recorded observables of one state."""
    return record(task, state, measure(task, state))
