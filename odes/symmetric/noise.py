r"""The noise of batches on the reduced numbers: drawn, with its nonlinear consequences, and linear
[ours].

A batch of B sequences, of which B / K belong to a class, differs from the population in two ways.
The frequency of token i in the class is :math:`p_i (1 + \epsilon_i)`, with
:math:`\operatorname{Var} \epsilon_i = K / (B L p_i)`, one over the expected number of such tokens.
To first order these act as a displacement of the logits z: what they add to the gradient is the
Hessian times :math:`(0, \epsilon)`. And the class itself occurs :math:`1 + \zeta_n` times as often
as expected, with :math:`\operatorname{Var} \zeta_n = (K - 1)/B`. Each class has its own noise, and
reduced numbers of its own. What is left out: that the rows of Y of common tokens are the same for
all classes, as are those of Z for the classes of a query. So the mean over the classes scatters as
it should, the difference between two of them too little.

`spread` is linear in the noise, for mean and spread over seeds. The derivative along descent of an
observable that is the same for all classes is the same for all classes too. It sees the part of the
noise that keeps the symmetry, in which all classes have one s_n(c): what draws the classes drops
out of the covariance of `odes.yz.spread`, and

    lambda^T C lambda' = (1/L) sum_i p_i ds/dc_i ds'/dc_i

remains, over the kinds of tokens of one class. An observable of a single class does not close like
this; here it is predicted for the mean over the classes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import AnyArray, DType, Number, cast
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.run_checks import whole_steps
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.checks import theory_rule
from dynsim.yz.finite_length import Context, contextual
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver import linear_noise
from odes.solver.integrate import in_program, judge
from odes.symmetric import finite_length, reduction
from odes.symmetric.reduction import TABLE, observe
from odes.symmetric.state import Attention, State, SymmetricTask, zero_state


class Batches(NamedTuple):
    """The batches of a run.

    Attributes:
        key: step k draws with fold_in(key, k).
        size: B, sequences per batch.
    """

    key: PRNGKeyArray
    size: Float[Array, ""]


class Draw(NamedTuple):
    """What one batch adds, for N classes: zeta, and epsilon of distinct and of common tokens."""

    count: Float[Array, "*N"]
    distinct: Float[Array, "D *N"]
    common: Float[Array, "C *N"]


def draw(
    task: SymmetricTask, batches: Batches, context: Context, classes: int, k: Int[Array, ""]
) -> Draw:
    """The noise of step k in so many of the K classes."""
    of_class, of_distinct, of_common = jax.random.split(jax.random.fold_in(batches.key, k), 3)
    dtype = batches.size.dtype
    one = jax.random.normal(of_class, (classes + 1,), dtype)
    # The zetas of all K classes sum to zero; the last number stands for those not followed.
    total = jnp.sum(one[:-1]) + jnp.sqrt(task.K - classes) * one[-1]
    count = jnp.sqrt(task.K / batches.size) * (one[:-1] - total / task.K)

    def shift(key: PRNGKeyArray, p: Array, copies: AnyArray | None) -> Float[Array, "D N"]:
        noise = jnp.zeros((*jnp.shape(p), classes), dtype)
        if context is None:
            return noise
        expected = p * batches.size * context / task.K * (1 if copies is None else copies)
        return jax.random.normal(key, noise.shape, dtype) / jnp.sqrt(expected)[:, None]

    return Draw(
        count,
        shift(of_distinct, jnp.asarray(task.p), task.p_copies),
        shift(of_common, jnp.asarray(task.rho), task.rho_copies),
    )


def loss_and_gradient(
    task: SymmetricTask, states: State, context: Context, drawn: Draw
) -> tuple[Float[Array, ""], State]:
    """Population loss, averaged over N classes, and the gradient (..., N) that a batch gives them.

    Args:
        states: of the N classes, with that axis last.
    """

    def of_class(state: State, noise: Draw) -> tuple[Array, State]:
        gradient = finite_length.gradient(task, state, context)
        if context is not None:
            shift = Attention(noise.distinct, noise.common)
            still = jax.tree.map(jnp.zeros_like, state.Y)
            added = jax.jvp(
                lambda at: reduction.gradient(task, at), (state,), (State(still, shift),)
            )[1]
            gradient = jax.tree.map(jnp.add, gradient, added)
        scaled = jax.tree.map(lambda leaf: (1 + noise.count) * leaf, gradient)
        return finite_length.loss(task, state, context), scaled

    losses, gradients = jax.vmap(of_class, in_axes=-1, out_axes=-1)(states, drawn)
    return jnp.mean(losses), gradients


def spread(
    task: SymmetricTask,
    optimizer: Rule,
    times: Times,
    *,
    batch: Real[Number, ""],
    length: Real[Number, ""],
    tails: bool = False,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict mean and covariance over seeds, from zero weights.

    Args:
        task: from `symmetric_task`, `symmetric_profiles` or `merged`.
        optimizer, times, batch: as in `odes.yz.spread.solve`.
        length: sequence length T, finite; it may be traced. With T infinite nothing but the draw of
            the classes makes noise, which the symmetric part of the weights does not see.
        tails: average over the sequences of `odes.symmetric.finite_length.sequences`, for the mean
        as for
            the noise, in place of the first order in 1/T, which late in training misses the rare
            sequences that make the loss. Neither task nor length may then be traced.
        record: as in `odes.symmetric.solve`. Numbers of a class are means over all classes.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory` as from `odes.yz.spread.solve`.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    optimizer = theory_rule(optimizer)
    linear_noise.check_described(optimizer)
    checks.real("batch", batch, 1)
    checks.real("length", length, 2)
    finite_length.check_length(task, length)
    steps = whole_steps(times)
    return in_program(
        _spread,
        lambda: (
            task.astype(dtype),
            optimizer.astype(dtype),
            cast(times, dtype),
            cast(batch, dtype),
            contextual(length, dtype),
            finite_length.sequences(task, length) if tails else None,
        ),
        (task, optimizer, times, batch, length),
        dtype,
        steps=steps,
        record=TABLE.resolve(record),
    )


def _spread(
    task: SymmetricTask,
    optimizer: Rule,
    times: Float[Array, " S"],
    batch: Float[Array, ""],
    context: Float[Array, ""],
    sample: finite_length.Sequences | None,
    *,
    steps: tuple[int, ...],
    record: Recording,
) -> Trajectory:
    def derive(state: State, k: Array) -> tuple[State, Attention]:
        root = jax.tree.map(jnp.sqrt, Attention(jnp.asarray(task.p), jnp.asarray(task.rho)))
        slope = finite_length.slope(reduction.measure(task, state), root)
        return finite_length.gradient(task, state, context), slope

    def derive_of_sample(state: State, k: Array) -> tuple[State, Array]:
        assert sample is not None
        return finite_length.gradient_of(task, state, sample), finite_length.losses(
            task, state, sample
        )

    def noise(along: Attention) -> Float[Array, "P P"]:
        def of(part: Array, copies: AnyArray | None) -> Array:
            return part @ (part.T if copies is None else jnp.asarray(copies)[:, None] * part.T)

        return of(along.distinct, task.p_copies) + of(along.common, task.rho_copies)

    def seen(state: State) -> dict[str, Array]:
        return observe(record, task, state)

    start = zero_state(task, times.dtype)
    descent = linear_noise.Descent(
        optimizer,
        *((derive, noise) if sample is None else (derive_of_sample, finite_length.covariance)),
        lambda state, k: (ravel_pytree(seen(state))[0], reduction.measure(task, state).loss),
        finite_length.multiplicity(task),
        of_layer(start),
    )
    found = linear_noise.spread(descent, start, steps)
    values = linear_noise.by_name(seen, start, found.values)
    status = judge(times, found.beside <= DIVERGED_LOSS * jnp.log(task.M))
    covariance = found.covariance / (batch * context if sample is None else batch)
    name = "symmetric-spread" if sample is None else "symmetric-spread-tails"
    return Trajectory(times, values, None, *status, name, covariance)
