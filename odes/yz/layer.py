r"""What the theories predict for the layer once attention logits and the decoder's h are known.

Shared by the theories that eliminate the decoder: :math:`w_n = (M-1)\, h_n \zeta_n` as logits
(Lemmas 5 and 6), Theorem 1 for the gradient that reaches the attention.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray, DType, cast
from dynsim.problem.checks import check_init
from dynsim.problem.train import started
from dynsim.training.recording import Record, Table
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.checks import theory_rule
from dynsim.yz.layer import layer as on_task
from dynsim.yz.observables import DEFAULT_RECORD, Snapshot
from odes.formulas import coefficients, decoder, growth
from odes.solver.integrate import check_times, in_program
from odes.solver.rescaled import undescribed

# Condition number of the Gram matrix above which its inverse carries no digit of float64.
_SINGULAR = 1e14


def inapplicable(task: SequenceClasses, optimizer: Rule, theory: str, **options: Any) -> str | None:
    """Why Theorem 1 does not apply, naming `theory`, or None. The task is looked at only where
    it is concrete; options are those of `odes.solver.rescaled.undescribed`."""
    problem = undescribed(optimizer, theory, **options)
    if problem:
        return problem
    if not checks.is_traced(task):
        f = np.asarray(task.probs) / np.linalg.norm(task.probs, axis=1, keepdims=True)
        if np.linalg.cond(f @ f.T) > _SINGULAR:
            return f"{theory} needs linearly independent classes (Theorem 1); their P(l|n) are not"
    return None


def class_weight(prior: Float[AnyArray, " K"], convention: growth.Convention) -> Float[Array, " K"]:
    r"""(K,) weight of each class's drift of Z per unit of time. "sgd": class n is drawn with
    probability :math:`\pi(n)`, so a step moves Z by the average of the classes' drifts. "paper":
    Eq. 10 as printed adds them up (Figs. 3 and 9)."""
    prior = jnp.asarray(prior)
    return prior if convention == "sgd" else jnp.ones_like(prior)


def solve(
    compiled: Callable[..., Trajectory],
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    table: Table,
    why_not: Callable[[SequenceClasses, Rule], str | None],
    also: Callable[[SequenceClasses], tuple[Array, ...]] = lambda task: (),
    init: yz.YZ | None = None,
    key: PRNGKeyArray | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """What the solvers of theories without Y have in common.

    Args:
        compiled: from (task, rule, times, attention logits to start from, what `also` makes of the
            task) in `dtype`, with `record` and `options`.
        task: the sequence classes.
        optimizer: a rule with rates for Y and Z, or one for both; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0.
        table: what can be recorded.
        why_not: why the theory does not apply, or None.
        init: starting weights, of which only Z is used.
        key: of the starting weights of a layer that starts from random ones; zero otherwise.
        record: a name of `table`, functions of (task, snapshot) by name, or a list of both.
        dtype: "float64" or "float32".

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("task", task, SequenceClasses)
    if init is not None and init.residual:
        raise ValueError("init.residual = True: theories without Y describe the plain layer only")
    optimizer = theory_rule(optimizer)
    if reason := why_not(task, optimizer):
        raise ValueError(reason)
    check_times(times)

    def given() -> tuple[Any, ...]:
        of_type = task.astype(dtype)
        Z = weights(init, of_type, dtype, key).Z
        return of_type, optimizer.astype(dtype), cast(times, dtype), Z, *also(of_type)

    return in_program(
        compiled,
        given,
        (task, optimizer, times, init, key),
        dtype,
        record=table.resolve(record),
        **options,
    )


def weights(
    init: yz.YZ | None, task: SequenceClasses, dtype: DType, key: PRNGKeyArray | None = None
) -> yz.YZ:
    """Starting weights in `dtype`: `init`, those of a layer with this key, or zero.

    Raises:
        ValueError: for wrong shapes, or random weights without a key.
    """
    problem = on_task(task)
    check_init(problem, init)
    if init is None and key is None:
        if problem.start != "zero":
            raise ValueError("key = None: starting weights need one, or `init`")
        return yz.init_zero(task, dtype)
    return started(problem, key, init, dtype).params


def speed(
    task: SequenceClasses, h: Float[Array, " K"], finite_m: bool = False
) -> Float[Array, "K *K"]:
    """Speed of each class from its h, in the form that `odes.formulas.coefficients` takes."""
    return coefficients.finite_m_speed(h, task.M) if finite_m else decoder.speed(h, task.M)


def logits(task: SequenceClasses, h: Float[Array, " K"]) -> Float[Array, "K M"]:
    r""":math:`w_n = (M-1)\, h_n \zeta_n = h_n (M e_{\nu(n)} - 1)`."""
    label = jax.nn.one_hot(task.next_token, task.M, dtype=h.dtype)
    return h[:, None] * (task.M * label - 1)


def predict(
    task: SequenceClasses,
    Z: Float[Array, "Q M"],
    h: Float[Array, " K"],
    *,
    finite_m: bool = False,
    B: Float[Array, " K"] | None = None,
) -> Snapshot:
    """Snapshot of the layer with attention logits `Z` and decoder `h`.

    Args:
        finite_m: keep the terms of order 1/M of Theorem 1 (Eqs. 86, 88).
        B: growth factor bound of each class, where it is known.
    """
    z = Z[task.query_index]
    c = yz.attend(z, task.probs)
    f = yz.normalise(c)
    g = coefficients.backpropagated_gradient(f, speed(task, h, finite_m))
    return Snapshot(z, c, f, logits(task, h), g, B)
