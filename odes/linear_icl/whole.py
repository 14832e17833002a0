"""Rungs without a solver: single heads (eqs. 20, 21), the stairs of plateaus (eq. 19), and the
sigmoid of merged attention on white inputs (eq. 10), all of arXiv:2501.16265.

Time is t/tau = 2 eta t for t optimiser steps, with eta / (1 - mu) in place of eta under momentum.
Assumes batch -> infinity, eta -> 0 and a small start. What the starting weights enter with is
[ours]: see `odes.linear_icl.single_head`; for merged attention the part of them that grows, of
norm |w_2 + W_1 u|/2 with u the direction of E[y z], which is the w_init of eq. 10.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynsim import checks
from dynsim.linear_icl import observables
from dynsim.linear_icl.model import Heads, Merged, Model, Network, Separate
from dynsim.linear_icl.simulate import check_arguments, check_init, heads_of
from dynsim.linear_icl.task import Regression
from dynsim.precision import DType, cast
from dynsim.training.constant.descent import Descent
from dynsim.training.recording import Record, Recording, Table
from dynsim.trajectory import Times, Trajectory
from odes.linear_icl import plateaus, single_head
from odes.solver.integrate import judge, run

DEFAULT_RECORD = ("loss", "learned", "stage")
TABLE = Table(
    {
        "loss": lambda task, learned: plateaus.loss_of(learned, task),
        "learned": lambda task, learned: learned,
        "stage": lambda task, learned: observables.stage(learned),
    }
)
"""What can be said of a diagonal M, from the shares of its entries that are learned."""
Course = Callable[[Regression, Model, Float[Array, "S 1"]], Float[Array, "S D"]]
"""(task, starting weights, times in units of tau) -> shares that are learned."""


def heads(task: Regression, init: Model, t: Float[Array, "S 1"]) -> Float[Array, "S D"]:
    """Eq. 21 for each component on its own: M_dd = v_d^3."""
    v_0 = single_head.starts(_separate(init), task.D)
    started = v_0 > 0
    u = single_head.share(t, jnp.where(started, v_0, plateaus.amplitudes(task) / 2), task)
    return jnp.where(started[None], u**3, 0)


def stairs(task: Regression, init: Model, t: Float[Array, "S 1"]) -> Float[Array, "S D"]:
    """The limit of a small start: a component is learned at its escape time."""
    v_0 = single_head.starts(_separate(init), task.D)
    return (t >= single_head.escape_times(task, v_0)[None]).astype(t.dtype)


def sigmoid(task: Regression, init: Model, t: Float[Array, "S 1"]) -> Float[Array, "S D"]:
    r"""Eq. 10, for any white :math:`\Lambda = \lambda I`: all components are learned as one."""
    assert isinstance(init, Merged)
    size = task.spectrum[0]
    root = jnp.sqrt(jnp.asarray(task.D, t.dtype))
    along = jnp.trace(jnp.asarray(init.U), axis1=1, axis2=2) / root
    first = jnp.sum((init.v + along) ** 2) / 4
    end = root / (size * task.gain[0])
    # E of eq. 10 over itself, which does not overflow.
    still = jnp.exp(-2 * size**2 * root * t)
    share = 1 / (1 + (end / first - 1) * still)
    return jnp.broadcast_to(share, (t.shape[0], task.D))


def _separate(init: Model) -> Separate:
    assert isinstance(init, Separate)
    return init


def inapplicable(
    task: Regression, optimizer: Descent, *, name: str, shape: Heads | None = None
) -> str | None:
    """Why the rung `name` does not describe task, optimiser and the model's shape, or None."""
    if optimizer.kind == "adam":
        return "optimizer = adam: a closed form reads sgd or momentum only"
    if shape is not None and name == "sigmoid" and shape.attention != "merged":
        return f"attention = {shape.attention!r}: eq. 10 describes merged attention"
    if shape is not None and name != "sigmoid" and (shape.attention, shape.rank) != ("separate", 1):
        return f"attention = {shape.attention!r}, rank = {shape.rank}: eq. 21 has heads of rank 1"
    if name == "sigmoid" and not checks.is_traced(task):
        values = np.asarray(task.spectrum)
        if not np.allclose(values, values[0]):
            return f"spectrum = {values}: eq. 10 describes white inputs"
    return None


COURSES: dict[str, Course] = {"scalar": heads, "plateaus": stairs, "sigmoid": sigmoid}
"""Rungs by name."""


def solve(
    name: str,
    task: Regression,
    optimizer: Descent,
    times: Times,
    *,
    init: Model,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """A rung at `times`.

    Args:
        name: of `COURSES`.
        task: from `regression`; may be traced.
        optimizer: SGD or momentum, whose numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0.
        init: starting weights: `Separate` of rank 1, `Merged` for "sigmoid".
        record: names from `TABLE`, or functions of (task, (D,) learned) by name.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`, without parameters.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    check_arguments(task, optimizer)
    checks.kind("init", init, Merged, Separate, Network)
    check_init(init, None, task.D)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=functools.partial(inapplicable, name=name, shape=heads_of(init)),
        init=init,
        start=lambda task, optimizer: (jax.tree.map(lambda leaf: cast(leaf, dtype), init),),
        name=name,
        record=TABLE.resolve(record),
    )


@functools.partial(jax.jit, static_argnames=("name", "record"))
def _solve(
    task: Regression,
    optimizer: Descent,
    times: Float[Array, " S"],
    init: Model,
    *,
    name: str,
    record: Recording,
) -> Trajectory:
    inertia = optimizer.momentum if optimizer.kind == "momentum" else 0.0
    rate = 2 * jnp.asarray(optimizer.eta) / (1 - jnp.asarray(inertia))
    learned = COURSES[name](task, init, (times * rate)[:, None])
    rows = jax.vmap(lambda row: record(task, row))(learned)
    valid = jnp.isfinite(learned).all(axis=1)
    return Trajectory(times, rows, None, *judge(times, valid), name)
