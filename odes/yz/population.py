r"""Population flow of the full parameters (Y, Z): the general flow of the layer, by its names.

Scan and Snap, section 3: :math:`T \to \infty` (Lemma 2), infinite batch, :math:`\eta \to 0`. With
:math:`g_n = Y (e_{\nu(n)} - \alpha_n)`,

.. math::

    \begin{align*}
    Y' &= \eta_Y \sum_n \pi(n)\, f_n\, (e_{\nu(n)} - \alpha_n)^\top \\
    z_m' &= \eta_Z \sum_{n \in \psi^{-1}(m)} \pi(n)\, f_n \odot \bigl( g_n - f_n (f_n \cdot g_n)
        \bigr)
    \end{align*}

which is minus the gradient of the population loss with the learning rates in front. There is no
other approximation: overlap and start are arbitrary. `odes.solver.flows` has the flows of momentum
and Adam. For sequences of finite length T the loss is that of `dynsim.yz.finite_length`, to first
order in 1/T.

The other functions are shared by the theories that eliminate the decoder: its :math:`h_n` gives
the logits :math:`w_n = (M-1)\, h_n \zeta_n` (Lemmas 5 and 6), and Theorem 1 the gradient that
reaches the attention.

Example:
    >>> rule, times = dynsim.sgd(1.0, 0.1), [0, 10, 100]
    >>> theory = odes.population.solve(dynsim.SynSmall(), rule, times, length=128)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.classes.overlap import directions
from dynsim.classes.task import SequenceClasses, Task
from dynsim.precision import AnyArray, DType
from dynsim.problem.build import built
from dynsim.training.recording import Record, Recording, Table
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer, as_layer
from dynsim.yz.observables import DEFAULT_RECORD, MEASURED, PREDICTED, Snapshot
from odes import coefficients, decoder, growth
from odes.general import of_training
from odes.problem import flow as flow_of
from odes.run import run
from odes.solver.integrate import VectorField, integrate
from odes.solver.posed import Rescaled, why_not_described
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import Inapplicable, Training, error_message, named, reason_unless_traced

# Condition number of the Gram matrix above which its inverse carries no digit of float64.
_SINGULAR = 1e14
START = "T -> infinity, Y = 0 at the start"
DECODER = "Lemma 3's decoder"
WEAK = f"{START}, 1/M -> 0, {DECODER}"
"""Assumptions of the theories without decoder, in words."""


def without_decoder(
    solver: Callable[..., Trajectory],
    task: Layer | Task,
    rule: Rule,
    times: Times,
    inapplicable: Inapplicable,
    *,
    table: Table = MEASURED,
    adaptive: bool = True,
    key: PRNGKeyArray | None = None,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    **options: Any,
) -> Trajectory:
    """Run a theory that eliminates the decoder, of the layer on a task at infinite T.

    Args:
        solver, options: `solver(training, start, times, record=..., tolerances=..., **options)`, as
            in `odes.computed`.
        inapplicable, adaptive: as in `odes.Theory`.
        table: what it can record.
        task, rule, times, key, init, record, dtype, tolerances: as in `odes.eq10.solve`.
    """
    problem, rule = built(as_layer(task, math.inf), rule, dtype)
    if why := reason_unless_traced(inapplicable, Training(problem, rule)):
        raise ValueError(why)
    if adaptive:
        options["tolerances"] = checked_tolerances(tolerances, dtype)
    elif tolerances is not None:
        raise ValueError("tolerances: this theory has no adaptive solver; leave them out")
    options |= {"solver": solver, "record": table.resolve(record)}
    return run(of_training, problem, rule, times, key_of(problem, key), init, dtype, **options)


def key_of(problem: Layer, key: PRNGKeyArray | None) -> PRNGKeyArray | None:
    """Return a key of the starting weights; zero weights are the same for any."""
    return jax.random.key(0) if key is None and problem.start == "zero" else key


def integrated(
    training: Training,
    start: yz.YZ,
    times: Float[Array, " S"],
    *,
    pose: Callable[..., tuple[VectorField, PyTree, tuple[PyTree, ...], Callable[..., Snapshot]]],
    name: str,
    record: Recording,
    tolerances: Tolerances,
    **settings: Any,
) -> Trajectory:
    """Integrate the initial value problem from `pose(task, Z, rescaled, **settings)`: its field,
    the state at the start, arguments with the task first, and a function (t, state, arguments) ->
    snapshot."""
    # The decoder is in closed form, so that Z is all that is integrated, in the time of its rate.
    rescaled, Z = Rescaled.of(training.rule), starting_logits(start)
    field, initial, args, layer_at = pose(training.problem.classes, Z, rescaled, **settings)

    def save(t: Float[Array, ""], state: PyTree, args: PyTree) -> dict[str, Array]:
        return record(args[0], layer_at(t, state, args))

    solved = integrate(
        *(field, initial, times, args), save=save, timescale=rescaled, tolerances=tolerances
    )
    return solved.trajectory(name)


def by_class(arrays: int) -> Callable[[Training, int, tuple[Any, ...]], int]:
    """Return the `memory` of a theory that holds so many (K, M) arrays, none of all weights."""

    # In float64, with a number of each class for each recorded name.
    def memory(training: Training, times: int, record: tuple[Any, ...]) -> int:
        task = training.problem.classes
        return 8 * (arrays * task.K * task.M + times * len(record) * task.K)

    return memory


def bounds(problem: Layer) -> tuple[str, ...]:
    """Return the observables of a theory that integrates the growth factor bound too."""
    del problem
    return tuple(PREDICTED.functions)


def starting_logits(start: yz.YZ) -> Float[Array, "Q M"]:
    """Return Z of the starting weights; raise `ValueError` for a residual layer."""
    if start.residual:
        raise ValueError("init.residual = True: theories without Y describe the plain layer only")
    return jnp.asarray(start.Z)


def undescribed_rule(rule: Rule, theory: str, **options: Any) -> str | None:
    """Return why a theory without inertia does not describe a rule, naming `theory`, or None.
    `options` are passed to `odes.solver.posed.why_not_described`."""
    return why_not_described(rule, theory, **options) or error_message(rule.of_groups, "Y", "Z")


def inapplicable(training: Training, theory: str, **options: Any) -> str | None:
    """Return why Theorem 1 does not apply, naming `theory`, or None. A traced task is not checked;
    `options` are passed to `odes.solver.posed.why_not_described`."""
    task = training.problem.classes
    reason = undescribed_rule(training.rule, theory, **options)
    if reason is None and not checks.is_traced(task):
        f = directions(task)
        if np.linalg.cond(f @ f.T) > _SINGULAR:
            return f"{theory} needs linearly independent P(l|n) of the classes (Theorem 1)"
    return reason


def class_weight(prior: Float[AnyArray, " K"], convention: growth.Convention) -> Float[Array, " K"]:
    r"""Return the (K,) weights of each class's drift of Z per unit of time. "sgd": class n is drawn
    with probability :math:`\pi(n)`, so a step moves Z by the average of the classes' drifts.
    "paper": Eq. 10 as printed sums them (Figs. 3 and 9)."""
    prior = jnp.asarray(prior)
    return prior if convention == "sgd" else jnp.ones_like(prior)


def speed(
    task: SequenceClasses, h: Float[Array, " K"], finite_m: bool = False
) -> Float[Array, "K *K"]:
    """Return the speed of each class from its h, in the form used by `odes.coefficients`."""
    return coefficients.finite_m_speed(h, task.M) if finite_m else decoder.speed(h, task.M)


def logits(task: SequenceClasses, h: Float[Array, " K"]) -> Float[Array, "K M"]:
    r"""Return :math:`w_n = (M-1)\, h_n \zeta_n = h_n (M e_{\nu(n)} - 1)`."""
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
    """Return the snapshot of the layer with attention logits `Z` and decoder `h`.

    Args:
        finite_m: keep the terms of order 1/M of Theorem 1 (Eqs. 86, 88).
        B: growth factor bound of each class, where it is known.
    """
    # c_n ~ p_n e^{z_m}, f = c / |c|, and g of Theorem 1 from h.
    z = Z[task.query_index]
    c = yz.attend(z, task.probs)
    f = yz.normalise(c)
    g = coefficients.backpropagated_gradient(f, speed(task, h, finite_m))
    return Snapshot(z, c, f, logits(task, h), g, B)


def solve(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    *,
    flow: str | None = None,
    length: int | float | None = math.inf,
    key: PRNGKeyArray | None = None,
    **options: Any,
) -> Trajectory:
    """Integrate the population flow of `optimizer`, which is `odes.flow` of the layer.

    Args:
        task: the layer, or its sequence classes, or a description of them.
        optimizer, times: as in `odes.flow`.
        flow: the `kind` of `odes.flow`.
        length: sequence length T, the query included, to first order in 1/T; None for that of the
            layer, which is 128 for other sequence classes.
        key: random key of the starting weights, which are zero unless `init` or the layer set them.
        **options: `init`, `record`, `dtype` and `tolerances` of `odes.flow`.

    Returns:
        A `Trajectory`. If the solve fails, its status is not OK; nothing raises.

    Raises:
        ValueError: as `odes.flow`, and for a length at which an expansion in 1/T is not valid.
    """
    problem = as_layer(task, length)
    options["key"] = key_of(problem, key)
    trajectory = flow_of(problem, optimizer, times, kind=flow, **options)
    source = named(trajectory.source, not math.isinf(problem.length))
    return dataclasses.replace(trajectory, source=source)
