"""Closed forms: single heads (eqs. 20, 21), the stairs of plateaus (eq. 19), and the
sigmoid of merged attention on white inputs (eq. 10), all of arXiv:2501.16265.

Time is t/tau = 2 eta t for t optimiser steps, with eta / (1 - mu) in place of eta under momentum.
Assumes batch -> infinity, eta -> 0 and a small start. What the starting weights enter with is
[ours]: see `odes.linear_icl.single_head`; for merged attention the part of them that grows, of
norm |w_2 + W_1 u|/2 with u the direction of E[y z], which is the w_init of eq. 10.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.linear_icl.model import Merged, MergedHeads, Model, Separate, SeparateHeads
from dynsim.linear_icl.regression import Regression, stage
from odes.general import closed_form
from odes.linear_icl import plateaus, single_head
from odes.theory import Inapplicable, Theory, Training

Course = Callable[[Regression, Model, Float[Array, ""]], Float[Array, " D"]]
"""(task, starting weights, time in units of tau) -> shares that are learned."""


def heads(task: Regression, init: Model, t: Float[Array, ""]) -> Float[Array, " D"]:
    """Eq. 21 for each component on its own: M_dd = v_d^3."""
    v_0 = single_head.starts(_separate(init), task.D)
    started = v_0 > 0
    first = jnp.where(started, v_0, plateaus.amplitudes(task) / 2)
    u = single_head.share(t[None, None], first, task)[0]
    return jnp.where(started, u**3, 0)


def stairs(task: Regression, init: Model, t: Float[Array, ""]) -> Float[Array, " D"]:
    """The limit of a small start: a component is learned at its escape time."""
    v_0 = single_head.starts(_separate(init), task.D)
    return (t >= single_head.escape_times(task, v_0)).astype(t.dtype)


def sigmoid(task: Regression, init: Model, t: Float[Array, ""]) -> Float[Array, " D"]:
    r"""Eq. 10, for any white :math:`\Lambda = \lambda I`: all components are learned as one."""
    assert isinstance(init, Merged)
    size = task.eigenvalues[0]
    root = jnp.sqrt(jnp.asarray(task.D, t.dtype))
    along = jnp.trace(jnp.asarray(init.U), axis1=1, axis2=2) / root
    first = jnp.sum((init.v + along) ** 2) / 4
    end = root / (size * task.gain[0])
    # E of eq. 10 over itself, which does not overflow.
    still = jnp.exp(-2 * size**2 * root * t)
    share = 1 / (1 + (end / first - 1) * still)
    return jnp.broadcast_to(share, (task.D,))


def _separate(init: Model) -> Separate:
    assert isinstance(init, Separate)
    return init


def _theory(
    name: str,
    title: str,
    assumes: str,
    course: Course,
    inapplicable: Inapplicable,
) -> Theory:
    def formula(task: Regression, init: Model, time: Float[Array, ""]) -> dict[str, Array]:
        shares = course(task, init, 2 * time)
        loss = plateaus.loss_of(shares, task)
        return {"loss": loss, "learned": shares, "stage": stage(shares)}

    assumes = f"batch -> infinity, eta -> 0, small start, {assumes}"
    return closed_form(
        name,
        title,
        assumes,
        formula,
        inapplicable=inapplicable,
        needs=("key",),
        names=Regression.RECORD,
    )


def _no_rank_one(training: Training) -> str | None:
    task: Regression = training.problem
    if not isinstance(task.attention, SeparateHeads) or task.attention.rank != 1:
        return f"attention = {task.attention}: eq. 21 has separate heads of rank 1"
    return None


def _no_white(training: Training) -> str | None:
    task: Regression = training.problem
    if not isinstance(task.attention, MergedHeads):
        return f"attention = {task.attention}: eq. 10 describes merged attention"
    return (
        None if task.spectrum.is_white else f"spectrum = {task.spectrum}: eq. 10 has white inputs"
    )


FORMULAS = (
    _theory(
        "scalar",
        "one head at a time",
        "separate rank-one heads, aligned one by one",
        heads,
        _no_rank_one,
    ),
    _theory(
        "plateaus",
        "plateaus and escape times",
        "separate rank-one heads, scale -> 0",
        stairs,
        _no_rank_one,
    ),
    _theory("sigmoid", "sigmoid in closed form", "merged heads, white inputs", sigmoid, _no_white),
)
