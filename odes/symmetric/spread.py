"""Mean and spread over seeds of symmetric tasks, at a cost without K and M [ours].

The derivative of an observable that is the same for all classes, along descent that is, is the same
for all classes too. Of the noise of a batch it sees the part that keeps the symmetry, in which all
classes have one s_n(c): what draws the classes drops out of the covariance of `odes.yz.spread`, and

    lambda^T C lambda' = (1/L) sum_i p_i ds/dc_i ds'/dc_i

remains, over the kinds of tokens of one class. An observable of a single class does not close like
this, as that class is not like the others; here it is predicted for the mean over the classes.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import AnyArray, DType, Number, cast
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.run_checks import whole_steps
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.checks import theory_rule
from dynsim.yz.finite_length import contextual
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver import linear_noise
from odes.solver.integrate import in_program, judge
from odes.symmetric import finite_length, reduction, saddle
from odes.symmetric.reduction import TABLE, observe
from odes.symmetric.state import Attention, State, SymmetricTask, zero_state


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
        length: sequence length T, finite; it may be traced. With T infinite the only noise is the
            draw of the classes, which the symmetric part of the weights does not see.
        tails: average over the sequences of `odes.symmetric.saddle.sequences`, for the mean as for
            the noise, in place of the first order in 1/T, which late in training misses the rare
            sequences that dominate the loss. Neither task nor length may then be traced.
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
            saddle.sequences(task, length) if tails else None,
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
    sample: saddle.Sequences | None,
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
        return saddle.gradient_of(task, state, sample), saddle.losses(task, state, sample)

    def noise(along: Attention) -> Float[Array, "P P"]:
        def of(part: Array, copies: AnyArray | None) -> Array:
            return part @ (part.T if copies is None else jnp.asarray(copies)[:, None] * part.T)

        return of(along.distinct, task.p_copies) + of(along.common, task.rho_copies)

    def seen(state: State) -> dict[str, Array]:
        return observe(record, task, state)

    start = zero_state(task, times.dtype)
    descent = linear_noise.Descent(
        optimizer,
        *((derive, noise) if sample is None else (derive_of_sample, saddle.covariance)),
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
