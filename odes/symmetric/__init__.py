r"""The exact reduction of symmetric tasks to a few numbers, and how batch noise breaks it [ours].

The reduction itself is in `odes.symmetric.reduction`. Batch noise breaks the tie between tokens of
equal probability. Along a path of the reduction, let the tokens of one kind differ slightly: their
logits by u and their rows of Y by w, both with sum zero within a class. Each kind has a small block
of the Hessian,

.. math::

    H = \begin{pmatrix} h & c^\top \\ c & 0 \end{pmatrix}, \qquad
    h = \tfrac1n f (2 f \gamma - g), \qquad c = -(n n')^{-1/2} f e,

with :math:`\gamma = f \cdot g`. A distinct token has one row of Z and one of Y in one class, so
:math:`n = n' = K` and e is that class's :math:`x - \alpha`. A common token has a row of Z for each
of n = Q queries and one row of Y for all classes, so n' = 1 and e is the mean over the classes.
With momentum :math:`\mu` the difference follows :math:`v \leftarrow \mu v + H u`,
:math:`u \leftarrow u - \eta v`. It is driven by the relative error of the token counts, with
standard deviation :math:`\sigma_0 = (n / (B L p))^{1/2}`, which acts as a displacement of u
(`odes.symmetric.finite_length`). The variance of u is propagated exactly; linear theory ends where
it reaches one. See `docs/theory/finite-size.md`.
`spread` predicts the mean and covariance across seeds to first order in the noise. If an observable
is symmetric in the classes, so is its derivative along descent, which therefore depends only on the
symmetric part of the noise. All classes then share one s_n(c), the randomly drawn classes drop out
of the covariance of `odes.yz.spread`, and

    lambda^T C lambda' = (1/L) sum_i p_i ds/dc_i ds'/dc_i

remains, summed over the kinds of tokens of one class. There is no such closed form for an
observable of a single class; its mean over the classes is predicted instead. `odes.yz.spread` takes
about 4 times as long even for `SynSmall`, 0.07 s against 0.02 s: the fastest of several further
calls of each on a CPU of two cores, for the loss after 300 steps with B = T = 128.

Example:
    >>> task = odes.symmetric.symmetric_profiles(p=[0.08] * 10, rho=[0.02] * 10, K=1000, M=100_000)
    >>> run = odes.symmetric.solve(task, dynsim.sgd(1.0, 0.1), [0, 100])
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import AnyArray, DType, Number, cast, precision, to_host
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.rules import SGD
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.finite_length import contextual
from dynsim.yz.observables import DEFAULT_RECORD
from odes.run import in_program
from odes.solver import linear_noise
from odes.solver.integrate import judge
from odes.symmetric import finite_length, reduction
from odes.symmetric.reduction import (
    OBSERVABLES,
    TABLE,
    TaskPair,
    direction,
    expand,
    merged,
    observe,
    symmetric_profiles,
    symmetric_task,
    with_full_task,
)
from odes.symmetric.solve import descend, solve, theory_rule
from odes.symmetric.state import Attention, Reduced, State, SymmetricTask, zero_state

__all__ = [
    "OBSERVABLES",
    "State",
    "SymmetricTask",
    "TaskPair",
    "descend",
    "direction",
    "expand",
    "instability",
    "merged",
    "overshoot",
    "solve",
    "spread",
    "symmetric_profiles",
    "symmetric_task",
    "with_full_task",
]

PATHS = ("flow", "descent")


def tie(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, "4 N"]:
    """Return h and c of the module for each kind of token, distinct kinds first, for infinite T; an
    observable of the reduction. The components of c are those along unit vectors for each kind of
    output: own, other and rest for a distinct token, next and rest for a common one."""
    del state
    # h = f (2 f gamma - g) / n and c = -(n n')^{-1/2} f e.
    f, g = now.f, now.g
    others, rests = task.K - 1, task.M - task.K
    nothing = jnp.zeros_like(now.residual)
    # e = x - alpha of the class for a distinct token, its mean over the classes for a common one.
    own = now.residual, -jnp.sqrt(others) * now.other, -jnp.sqrt(rests) * now.rest
    mean = now.rest * rests / jnp.sqrt(task.K), -jnp.sqrt(rests) * now.rest, nothing

    def block(f: Array, g: Array, rows: Array, columns: Array, e: tuple[Array, ...]) -> Array:
        coupling = (-f * component / jnp.sqrt(rows * columns) for component in e)
        return jnp.stack([f * (2 * f * now.speed - g) / rows, *coupling])

    K, Q = jnp.asarray(task.K), jnp.asarray(task.num_queries)
    distinct = block(f.distinct, g.distinct, K, K, own)
    common = block(f.common, g.common, Q, jnp.ones_like(Q), mean)
    return jnp.concatenate([distinct, common], axis=1)


def instability(
    task: SymmetricTask,
    optimizer: Rule,
    *,
    steps: int,
    batch: Real[Number, ""],
    length: Real[Number, ""],
    path: str = "flow",
) -> Float[AnyArray, "S N"]:
    """Predict by linear theory how far batch noise drives tokens of equal probability apart.

    Args:
        task: as in `odes.symmetric.solve`. Each kind of token is treated as if it had a twin.
        optimizer: gradient descent, with or without heavy-ball momentum, and without decay; its
            numbers may be traced.
        steps: number of optimiser steps, >= 1.
        batch: number B of sequences per step.
        length: finite sequence length T, because only the noise of token counts breaks ties.
        path: path along which the map is linearised, "flow" or "descent".

    Returns:
        Natural logarithm of the standard deviation of the difference between a token's logit and
        the mean of its kind, after 0, 1, ... `steps` steps, in float64. A value above zero means
        that attention has left the path.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.

    Example:
        >>> import dynsim
        >>> from odes import symmetric
        >>> task = symmetric.symmetric_task(dynsim.SynSmall().build())
        >>> for eta_z in (10.0, 100.0):
        ...     rule = dynsim.sgd(0.1, eta_z, momentum=0.9)
        ...     log_std = symmetric.instability(task, rule, steps=100, batch=128, length=128)
        ...     print(bool(log_std.max() > 0))
        False
        True
    """
    optimizer = theory_rule(optimizer)
    check_applicable(optimizer, batch, length)
    assert isinstance(optimizer, SGD)
    blocks = _blocks(task, optimizer, steps, length, path)
    with precision("float64", task, optimizer, batch, length):
        # A distinct token occurs in one class, a common one in all classes of a query.
        tokens = batch * (length - 1)
        per_class, per_query = tokens / task.K, tokens / task.num_queries
        expected = [per_class * jnp.asarray(task.p), per_query * jnp.asarray(task.rho)]
        log_std = _propagate(jnp.asarray(blocks), optimizer, jnp.log(jnp.concatenate(expected)))
    return to_host(log_std)


def overshoot(
    task: SymmetricTask,
    optimizer: Rule,
    *,
    steps: int,
    length: Real[Number, ""] = math.inf,
    path: str = "flow",
) -> Float[AnyArray, "S N"]:
    r"""Return the overshoot :math:`\eta_Z h / (2 + 2 \mu)` along the path. Above 1, any difference
    between two tokens of a kind oscillates and grows.

    Unlike `instability`, this does not depend on noise. At infinite T no noise breaks a tie, but
    tokens of unequal probability differ from the start.

    Args:
        length: sequence length T of the path.
        task, optimizer, steps, path: as in `instability`.

    Returns:
        An entry for each kind of token after 0, 1, ... `steps` steps, in float64.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.

    Example:
        >>> import dynsim
        >>> from odes import symmetric
        >>> task = symmetric.symmetric_task(dynsim.SynSmall().build())
        >>> for eta_z in (1.0, 100.0):
        ...     rule = dynsim.sgd(0.1, eta_z, momentum=0.9)
        ...     overshoot = symmetric.overshoot(task, rule, steps=100)
        ...     print(bool(overshoot.max() > 1))
        False
        True
    """
    optimizer = theory_rule(optimizer)
    check_rule(optimizer)
    assert isinstance(optimizer, SGD)
    blocks = _blocks(task, optimizer, steps, length, path)
    with precision("float64", task, optimizer, length):
        rates = jax.vmap(lambda k: jnp.asarray(optimizer.rate(k)["Z"]))(jnp.arange(steps + 1))
        # Descent on a quadratic of curvature h is unstable above eta h = 2 (1 + mu).
        ratio = rates[:, None] * jnp.asarray(blocks)[:, 0] / (2 * (1 + optimizer.mu))
    return to_host(ratio)


def _blocks(
    task: SymmetricTask, optimizer: Rule, steps: int, length: Real[Number, ""], path: str
) -> Float[AnyArray, "S 4 N"]:
    """Return `tie` along the path."""
    checks.choice("path", path, PATHS)
    steps = checks.steps("steps", steps)
    options = {"times": np.arange(steps + 1), "length": length, "record": {"tie": tie}}
    if path == "flow":
        return solve(task, optimizer, **options)["tie"]
    return descend(task, optimizer, steps=steps, **options)["tie"]


def check_applicable(optimizer: Rule, batch: Real[Number, ""], length: Real[Number, ""]) -> None:
    """Raise `ValueError` for arguments that `instability` does not describe."""
    check_rule(optimizer)
    checks.real("batch", batch, 1)
    checks.real("length", length, 2)
    if not checks.is_traced(length) and np.isinf(length):
        raise ValueError("length = inf: no sampling noise breaks a tie; must be finite")


def check_rule(optimizer: Rule) -> None:
    """Raise `ValueError` for rules other than gradient descent with or without momentum."""
    plain = isinstance(optimizer, SGD) and not optimizer.nesterov
    if not plain or optimizer.decay is not None:
        raise ValueError(
            f"optimizer = {optimizer!r}: must be gradient descent, with or without momentum, and "
            "without decay"
        )


@jax.jit
def _propagate(
    blocks: Float[Array, "S 4 N"], rule: SGD, expected: Float[Array, " N"]
) -> Float[Array, "S N"]:
    """Return the log of the standard deviation of u along the path, from the logs of the expected
    token counts."""
    mu, size = jnp.asarray(rule.mu, blocks.dtype), blocks.shape[1]

    # v <- mu v + H (u + sigma_0 xi), u <- u - eta v: a linear map with independent noise xi in each
    # step, whose covariance is e^scale times `covariance`, for sigma_0 = 1.
    def step(
        carry: tuple[Array, Array], at_step: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        covariance, scale = carry
        block, k = at_step
        rate = rule.rate(k)
        eta = jnp.full(size, rate["Y"], block.dtype).at[0].set(rate["Z"])
        hessian = jnp.zeros((size, size), block.dtype).at[0].set(block).at[:, 0].set(block)
        # The state is (u, w) and their velocities; noise enters as a displacement of u.
        velocity = jnp.concatenate([hessian, mu * jnp.eye(size, dtype=block.dtype)], axis=1)
        weights = jnp.eye(size, 2 * size, dtype=block.dtype) - eta[:, None] * velocity
        move = jnp.concatenate([weights, velocity])
        kick = jnp.concatenate([-eta * block, block])
        covariance = move @ covariance @ move.T + jnp.exp(-scale) * jnp.outer(kick, kick)
        # Rescale, because growth may overflow.
        largest = jnp.maximum(jnp.max(jnp.diagonal(covariance)), jnp.exp(-scale))
        covariance, scale = covariance / largest, scale + jnp.log(largest)
        return (covariance, scale), (jnp.log(covariance[0, 0]) + scale) / 2

    def of_kind(blocks: Array, expected: Array) -> Array:
        start = (jnp.zeros((2 * size, 2 * size), blocks.dtype), jnp.zeros((), blocks.dtype))
        _, log_std = jax.lax.scan(step, start, (blocks[:-1], jnp.arange(len(blocks) - 1)))
        # sigma_0 = expected^{-1/2} for a number of tokens. At the start nothing differs.
        return jnp.concatenate([jnp.full(1, -jnp.inf), log_std]) - expected / 2

    return jax.vmap(of_kind, (2, 0), 1)(blocks, expected)


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
    """Predict mean and covariance across seeds, from zero weights.

    Args:
        task: from `symmetric_task`, `symmetric_profiles` or `merged`.
        optimizer, times, batch: as in `odes.yz.spread.solve`.
        length: finite sequence length T; may be traced. At infinite T the only noise is the random
            choice of classes, which does not affect the symmetric part of the weights.
        tails: average mean and noise over the sequences of
            `odes.symmetric.finite_length.sequences` instead of expanding to first order in 1/T. The
            expansion misses the rare sequences that dominate the loss late in training. Task and
            length must then not be traced.
        record: as in `odes.symmetric.solve`. Quantities of a class are means over all classes.
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
    # The gradient, and as features sqrt(p_i) ds/dc_i, of which
    #     lambda^T C lambda' = (1/L) sum_i p_i ds/dc_i ds'/dc_i
    # is the product: `slope` divides by sqrt(p) in place of p.
    def derive(state: State, k: Array) -> tuple[State, Attention | Array]:
        if sample is not None:
            gradient = finite_length.gradient_of_sample(task, state, sample)
            return gradient, finite_length.losses(task, state, sample)
        root = jax.tree.map(jnp.sqrt, Attention(jnp.asarray(task.p), jnp.asarray(task.rho)))
        slope = finite_length.slope(reduction.measure(task, state), root)
        return finite_length.gradient(task, state, context), slope

    def noise(along: Attention) -> Float[Array, "P P"]:
        def product(part: Array, copies: AnyArray | None) -> Array:
            return part @ (part.T if copies is None else jnp.asarray(copies)[:, None] * part.T)

        return product(along.distinct, task.p_copies) + product(along.common, task.rho_copies)

    def seen(state: State) -> dict[str, Array]:
        return observe(record, task, state)

    start = zero_state(task, times.dtype)
    descent = linear_noise.Descent(
        optimizer,
        derive,
        noise if sample is None else finite_length.covariance,
        lambda state, k: (ravel_pytree(seen(state))[0], reduction.measure(task, state).loss),
        finite_length.multiplicity(task),
        of_layer(start),
    )
    backward = linear_noise.spread(descent, start, steps)
    values = linear_noise.by_name(seen, start, backward.values)
    # A loss far above that of guessing, ln M.
    status = judge(times, backward.aux <= DIVERGED_LOSS * jnp.log(task.M))
    # C / B, with C = (...) / L for the expansion and a covariance over sequences for the sample.
    covariance = backward.covariance / (batch * context if sample is None else batch)
    name = "symmetric-spread" if sample is None else "symmetric-spread-tails"
    return Trajectory(times, values, None, *status, name, covariance)
