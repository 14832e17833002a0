r"""Mean and covariance across seeds of training at finite batch B and length T [ours].

The mean follows descent on the finite-T loss, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance. At second order, noise also shifts the mean. With
`draws` of the noise, mean and covariance both include the second order.

The gradient noise of a batch has covariance C/B, where C is the covariance of the gradient of one
sequence. Let :math:`s_n(c) = \lambda \cdot \nabla \ell_n(c)` for a sequence of class n, whose
frequencies c are multinomial (`dynsim.yz.finite_length`). To first order in 1/L

.. math::

    \lambda^\top C \lambda' = \operatorname{Cov}_n (\mathbb E s_n, \mathbb E s_n')
    + \mathbb E_n\, \frac1L \sum_i p_i\, \frac{\partial s_n}{\partial c_i}\,
    \frac{\partial s_n'}{\partial c_i}

because :math:`\sum_i p_i\, \partial s_n / \partial c_i = 0`, as :math:`\ell_n` does not change when
c is scaled. Only the derivative of :math:`(\ell_n, \partial \ell_n / \partial c)` along
:math:`\lambda` is needed. Late in training, rare sequences dominate the noise, and the expansion in
1/L misses them. `tails` instead averages over a sample that covers the distribution of sequences
evenly.

Adam and RMSProp need the variance of each entry of that gradient, `variance` [ours]. The gradient
with respect to Y is :math:`-f r^\top`, and with respect to the query's row of Z it is :math:`-h`,
with :math:`r = x - \alpha`, :math:`g = Y r` and :math:`h = f \odot (g - f (f \cdot g))`. Scaling c
changes none of f, r and h, so for each entry :math:`\varphi` of a gradient

.. math::

    \mathbb E\, \varphi = \mathbb E_n \left[ \varphi_n + \frac{1}{2L} \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right], \qquad
    \mathbb E\, \varphi^2 = \mathbb E_n \left[ \varphi_n^2 + \frac1L \sum_i p_i \left(
    \frac{\partial \varphi_n}{\partial c_i} \right)^{\!2} + \frac1L \varphi_n \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right]

at c = p. The variance is the second minus the square of the first. No matrix of the size of Y is
formed per class, because the square of an outer product is the outer product of the squares.

`odes.linear_noise` of the layer samples sequences instead. In the tutorial (`SynSmall`, 300 steps,
B = T = 128) it takes about 20 times as long, 1.9 s against 0.09 s, and as much longer for 60
steps. This is the fastest of several further calls of each on a CPU of two cores, with `starts=1`,
recording the loss and the entropy.

Example:
    >>> task, rule = dynsim.Syn(1, 2, num_common=1, num_distinct=2).build(), dynsim.sgd(1.0, 0.1)
    >>> theory = odes.spread.solve(task, rule, [0, 5, 10], batch=128, length=128)
    >>> theory.std["loss"].shape
    (3,)
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task
from dynsim.precision import DType, Number, cast
from dynsim.problem.checks import checked_init
from dynsim.problem.train import started
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, gradients, observables
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer, as_layer
from dynsim.yz.observables import DEFAULT_RECORD
from odes.run import in_program
from odes.solver import linear_noise
from odes.solver.integrate import judge
from odes.symmetric import finite_length as symmetric
from odes.symmetric.solve import theory_rule


class NoiseLaw(NamedTuple):
    r"""Gradient and noise of a batch. `derive` returns the gradient of the population loss, and
    features of the weights; `covariance` returns :math:`\lambda^\top C \lambda'` (P, P) for all
    pairs of P vectors from the derivatives (P, ...) of the features along each of them."""

    derive: Callable[[yz.YZ], tuple[yz.YZ, PyTree]]
    covariance: Callable[[PyTree], Float[Array, "P P"]]


def expanded_law(task: SequenceClasses, context: finite_length.Context) -> NoiseLaw:
    """Return the law to first order in 1/L, for `context` contextual tokens."""

    def derive(params: yz.YZ) -> tuple[yz.YZ, finite_length.Expansion]:
        expansion = finite_length.expand(params, task, context)
        return expansion.gradient, expansion

    return NoiseLaw(derive, functools.partial(covariance, task, context))


SEQUENCES_AT_ONCE = 128
"""Number of sequences whose gradients are computed at once, so that they stay in a CPU's cache."""


def sampled_law(
    task: SequenceClasses, examples: yz.Examples, columns: gradients.OutputColumns | None = None
) -> NoiseLaw:
    """Return the law for the sample of sequences from `evenly_spread`, for weights with these
    columns of Y; by default each output has its own."""
    columns = columns or gradients.each_output(task)
    chunks = jax.tree.map(lambda x: jnp.reshape(x, (-1, SEQUENCES_AT_ONCE, *x.shape[1:])), examples)

    # Gradients and losses of one chunk after another, of which the gradient is the weighted sum.
    def derive(params: yz.YZ) -> tuple[yz.YZ, Float[Array, " E"]]:
        def of_chunk(chunk: yz.Examples) -> tuple[yz.YZ, Float[Array, " E"]]:
            def losses(params: yz.YZ) -> Float[Array, " E"]:
                logits = yz.forward(params, task, chunk)
                return yz.cross_entropy(logits, columns.label[chunk.classes], -1, columns.count)[0]

            values, pull = jax.vjp(losses, params)
            return pull(yz.weights(chunk, values.dtype))[0], values

        parts, losses = jax.lax.map(of_chunk, chunks)
        gradient = jax.tree.map(lambda part: jnp.sum(part, axis=0), parts)
        if columns.count is not None:
            # With respect to one of the weights that an entry of Y represents.
            gradient = dataclasses.replace(gradient, Y=gradient.Y / columns.count[None])
        return gradient, losses.reshape(-1)

    return NoiseLaw(
        derive, functools.partial(_between, yz.weights(examples, examples.counts.dtype))
    )


def evenly_spread(task: SequenceClasses, length: Real[Number, ""]) -> yz.Examples:
    """Return `symmetric.SEQUENCES` sequences per class that cover its distribution evenly.

    Raises:
        ValueError: for a task or a length that is traced, or a length that is not whole.
    """
    if checks.is_traced((task, length)):
        raise ValueError("tails = True: draws sequences, so task and length must not be traced")
    rest = checks.integer("length", length, 2) - 1
    classes = np.repeat(np.arange(task.K), symmetric.SEQUENCES)
    counts = np.zeros((task.K, symmetric.SEQUENCES, task.M))
    # Only tokens of the class: each further one would be a dimension of the Sobol sequence.
    for of_class, probs in zip(counts, np.asarray(task.probs, np.float64), strict=True):
        tokens = np.flatnonzero(probs)
        of_class[:, tokens] = symmetric.even_counts(probs[tokens], rest)
    weight = np.repeat(
        np.asarray(task.prior, np.float64) / symmetric.SEQUENCES, symmetric.SEQUENCES
    )
    return yz.Examples(classes, counts.reshape(-1, task.M), weight)


def covariance(
    task: SequenceClasses, context: finite_length.Context, along: finite_length.Expansion
) -> Float[Array, "P P"]:
    r"""Return :math:`\lambda^\top C \lambda'` for all pairs of P vectors to first order in 1/L,
    from the derivatives `along` each of them."""
    prior = jnp.asarray(task.prior)
    # Cov_n(E s_n, E s_n').
    between = _between(prior, along.losses)
    if context is None:
        return between
    # E_n (1/L) sum_i p_i ds_n/dc_i ds_n'/dc_i, as a product of vectors over n and i.
    within = jnp.sqrt(prior[:, None] * jnp.asarray(task.probs) / context)[None] * along.slope
    flat = within.reshape(len(within), -1)
    return between + flat @ flat.T


def _between(weight: Float[Array, " E"], along: Float[Array, "P E"]) -> Float[Array, "P P"]:
    """Return the covariance of values that occur with probability `weight`."""
    centred = along - (along @ weight)[:, None]
    return centred @ (weight[:, None] * centred.T)


def draw(
    task: SequenceClasses, context: finite_length.Context, batch: Float[Array, ""]
) -> Callable[[yz.YZ, PRNGKeyArray], yz.YZ]:
    """Return a function of weights and key that draws Gaussian noise of covariance C/B, with C to
    first order in 1/L."""
    prior = jnp.asarray(task.prior)

    def sample(params: yz.YZ, key: PRNGKeyArray) -> yz.YZ:
        def features(params: yz.YZ) -> tuple[Array, Array]:
            expansion = finite_length.expand(params, task, context)
            return expansion.losses, expansion.slope

        # The transposed derivative of the features, applied to normal noise: its covariance is that
        # of `covariance`, term by term.
        (losses, slope), pull = jax.vjp(features, params)
        of_class, of_token = jax.random.split(key)
        root = jnp.sqrt(prior)
        one = jax.random.normal(of_class, losses.shape, losses.dtype)
        # Covariance diag(pi) - pi pi^T of the frequencies of classes.
        between = root * (one - root * jnp.sum(root * one))
        within = jnp.zeros_like(slope)
        if context is not None:
            scale = jnp.sqrt(prior[:, None] * jnp.asarray(task.probs) / context)
            within = scale * jax.random.normal(of_token, slope.shape, slope.dtype)
        return jax.tree.map(lambda x: x / jnp.sqrt(batch), pull((between, within))[0])

    return sample


def descent_of(
    task: SequenceClasses,
    optimizer: Rule,
    init: yz.YZ,
    law: NoiseLaw,
    record: Recording,
    variance: Callable[[yz.YZ], yz.YZ] | None,
    columns: gradients.OutputColumns,
) -> linear_noise.Descent:
    """Return descent, of weights with these columns of Y, and its noise; `variance` adds the noise
    to the denominators of Adam and RMSProp."""
    count = None
    if columns.count is not None:
        # A merged column of Y represents several outputs.
        of_y = jnp.broadcast_to(columns.count, (len(init.Y), columns.count.size))
        count = dataclasses.replace(init, Y=of_y, Z=jnp.ones_like(init.Z))

    def observe(params: yz.YZ, k: Array) -> tuple[Array, Array]:
        del k
        snapshot = observables.measure(task, columns.expand(params))
        return ravel_pytree(record(task, snapshot))[0], observables.loss(task, snapshot)

    return linear_noise.Descent(
        optimizer,
        lambda params, k: law.derive(params),
        law.covariance,
        observe,
        count=count,
        groups=of_layer(init),
        variance=None if variance is None else lambda params, k: variance(params),
    )


def variance(params: yz.YZ, task: SequenceClasses, context: finite_length.Context) -> yz.YZ:
    """Return the variance over sequences of each entry of the gradient, in the shapes of the
    weights, for `context` contextual tokens."""
    p, prior = jnp.asarray(task.probs), jnp.asarray(task.prior)
    classes = jnp.arange(task.K)

    # f, r = x - alpha and h = f (g - f f.g) with g = Y r, as functions of the frequencies.
    def factors(counts: Float[Array, "K M"]) -> tuple[Array, Array, Array]:
        f = yz.normalise(yz.attend(jnp.asarray(params.Z)[task.query_index], counts))
        read, to_f = jax.vjp(lambda f: yz.output(params, task, f, classes), f)
        _, r = yz.cross_entropy(read @ params.Y, task.next_token)
        (g,) = to_f(r @ jnp.asarray(params.Y).T)
        return read, r, f * (g - f * jnp.sum(f * g, axis=1, keepdims=True))

    f, r, h = factors(p)
    # E phi and E phi^2 for phi = -f r^T and phi = -h, at infinite T first. The square of an outer
    # product is the outer product of the squares, so that no matrix is formed per class.
    by_class = prior[:, None]
    mean_y, square_y = f.T @ (by_class * r), (f**2).T @ (by_class * r**2)
    mean_h, square_h = h, h**2
    if context is not None:
        # sqrt(p_i / L) d/dc_i and (p_i / L) d^2/dc_i^2 for one token i of each class at a time.
        def along(slot: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
            token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
            root = jnp.sqrt(jnp.sum(p * token, axis=1, keepdims=True) / context)
            step = jnp.where(p > 0, root * token, 0)
            slope = lambda counts: jax.jvp(factors, (counts,), (step,))[1]  # noqa: E731
            return jax.jvp(slope, (p,), (step,))

        first, second = jax.vmap(along)(jnp.arange(task.support.shape[1]))
        (df, dr, _), (ddf, ddr, ddh) = first, (jnp.sum(x, axis=0) for x in second)
        scatter_f, scatter_r, scatter_h = (jnp.sum(x**2, axis=0) for x in first)
        # E phi += phi'' / 2 with phi'' = f'' r + 2 f' r' + f r''. E phi^2 += phi'^2 + phi phi'',
        # which is (f'^2 + f f'') r^2 + f^2 (r'^2 + r r'') + 4 f f' r r'.
        mean_y += jnp.einsum("skm,skn->mn", df, by_class[None] * dr)
        mean_y += (ddf.T @ (by_class * r) + f.T @ (by_class * ddr)) / 2
        square_y += (scatter_f + f * ddf).T @ (by_class * r**2)
        square_y += (f**2).T @ (by_class * (scatter_r + r * ddr))
        square_y += 4 * jnp.einsum("skm,skn->mn", f[None] * df, (by_class * r)[None] * dr)
        mean_h, square_h = h + ddh / 2, square_h + scatter_h + h * ddh
    mean = yz.YZ(mean_y, _by_query(task, by_class * mean_h), params.residual)
    square = yz.YZ(square_y, _by_query(task, by_class * square_h), params.residual)
    return jax.tree.map(lambda both, one: jnp.maximum(both - one**2, 0), square, mean)


def _by_query(task: SequenceClasses, rows: Float[Array, "K M"]) -> Float[Array, "Q M"]:
    return jax.ops.segment_sum(rows, task.query_index, num_segments=task.num_queries)


def solve(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    *,
    batch: Real[Number, ""],
    length: Real[Number, ""] = math.inf,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    squares: bool = False,
    tails: bool = False,
    draws: int = 0,
    key: PRNGKeyArray | None = None,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict mean and covariance across seeds of everything that training records.

    Args:
        task: the layer, or its sequence classes, or a description of them.
        optimizer: any rule except sign descent, without clipping and gradient noise; its numbers
            may be traced.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced. Each
            costs one backward pass to the start, for all observables together.
        batch: number B of sequences per step, >= 1; it may be traced.
        length: sequence length T, the query included; it may be traced. With `math.inf` the only
            noise is the random choice of classes.
        init: starting weights, the same for all seeds; zero if None. For random starts, average the
            variance over the starts and add the variance of the mean.
        record: as in `dynsim.train`. The covariance is between all recorded numbers.
        squares: whether the averages in the denominators of Adam and RMSProp include batch noise,
            see `odes.solver.linear_noise`. This is more accurate for these rules, and about ten
            times as slow.
        tails: average over 4096 sequences per class that cover the distribution evenly, instead of
            expanding to first order in 1/T. The expansion misses the rare sequences that dominate
            the loss late in training. Task and length must then not be traced.
        draws: number of draws of a whole run's noise. With 2 or more, mean and covariance include
            the next order in 1/B, for the mean the result of `drift`; a few hundred are usually
            enough. It matters for losses, especially with small batches.
        key: random key of the draws.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the observables along descent with B infinite, with their `covariance`
        across seeds and `std`. If descent diverges, its status is not OK; nothing raises.

    Example:
        With small batches, the loss varies more between seeds than linear noise predicts:

        >>> import dynsim, jax
        >>> from odes import spread
        >>> task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 1])
        >>> options = {"batch": 32, "length": 129, "record": ["loss"]}
        >>> rule = dynsim.sgd(1.0, 0.3)
        >>> linear = spread.solve(task, rule, [20], **options)
        >>> second = spread.solve(task, rule, [20], draws=64, key=jax.random.key(0), **options)
        >>> bool(second.std["loss"][0] > 1.2 * linear.std["loss"][0])
        True

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    if draws:
        checks.integer("draws", draws, 2)
        if key is None:
            raise ValueError(f"key = None: {draws} draws of the noise need a key")

    options = {"init": init, "record": record, "dtype": dtype, "squares": squares, "draws": draws}
    return _in_program(task, optimizer, times, batch, length, key, tails=tails, **options)


def drift(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    key: PRNGKeyArray,
    *,
    batch: Real[Number, ""],
    draws: int = 32,
    length: Real[Number, ""] = math.inf,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    squares: bool = False,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict how noise shifts the mean across seeds, to first order in 1/B.

    Args:
        key: random key of the draws.
        draws: number of draws to average over, >= 1. The relative error of the drift falls like one
            over the square root of this number.
        task, optimizer, times, batch, length, init, record, squares, dtype: as in `solve`.

    Returns:
        A `Trajectory` whose observables are the *changes* of their means due to noise. Its status
        is not OK if one of them is not finite.

    Raises:
        ValueError: as `solve`, and for `draws`.
    """
    draws = checks.integer("draws", draws, 1)
    options = {"init": init, "record": record, "dtype": dtype, "squares": squares, "draws": draws}
    return _in_program(task, optimizer, times, batch, length, key, drift_only=True, **options)


def _in_program(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    batch: Real[Number, ""],
    length: Real[Number, ""],
    key: PRNGKeyArray | None,
    *,
    init: yz.YZ | None,
    record: Record,
    dtype: DType,
    tails: bool = False,
    drift_only: bool = False,
    **options: Any,
) -> Trajectory:
    problem, optimizer = as_layer(task), theory_rule(optimizer)
    task = problem.classes
    linear_noise.check_described(optimizer)
    checks.real("batch", batch, 1)
    finite_length.check_length(task, length)
    steps = whole_steps(times)
    init = checked_init(problem, init, dtype)
    if init is None and problem.start != "zero":
        raise ValueError(f"init = None: {problem.start} starting weights have to be given")
    return in_program(
        _solve,
        lambda: (
            task.astype(dtype),
            optimizer.astype(dtype),
            cast(times, dtype),
            started(problem, jax.random.key(0), init, dtype).params,
            cast(batch, dtype),
            finite_length.contextual(length, dtype),
            evenly_spread(task, length).astype(dtype) if tails else None,
            key,
        ),
        (task, optimizer, times, init, batch, length, key),
        dtype,
        steps=steps,
        record=observables.MEASURED.resolve(record),
        drift_only=drift_only,
        # From zero weights, and without a variance for each output, columns of Y stay equal.
        equal_columns=init is None and not options["squares"],
        **options,
    )


def _solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: yz.YZ,
    batch: Float[Array, ""],
    context: finite_length.Context,
    sample: yz.Examples | None,
    key: PRNGKeyArray | None,
    *,
    steps: tuple[int, ...],
    squares: bool,
    draws: int,
    drift_only: bool,
    equal_columns: bool,
    record: Recording,
) -> Trajectory:
    def variance_of_batch(params: yz.YZ) -> yz.YZ:
        return jax.tree.map(lambda one: one / batch, variance(params, task, context))

    descent = functools.partial(
        *(descent_of, task, optimizer, init),
        record=record,
        variance=variance_of_batch if squares else None,
    )
    law, columns, start = expanded_law(task, context), gradients.each_output(task), init
    second_order = None
    if draws:
        assert key is not None
        # First order in 1/T is enough, as this is itself a correction in 1/B.
        second_order = linear_noise.drift(
            *(descent(law, columns=columns), draw(task, context, batch)),
            *(init, steps, key, draws),
            covariance=not drift_only,
        )
    if drift_only and second_order is not None:
        name, values, covariance = "drift", second_order.drift, None
        valid = jnp.all(jnp.isfinite(values), axis=1)
    else:
        if sample is not None:
            if equal_columns:
                columns = gradients.merged_outputs(task, init.Y.dtype.name)
            law = sampled_law(task, sample, columns)
            start = dataclasses.replace(init, Y=columns.merge(init.Y))
        backward = linear_noise.spread(descent(law, columns=columns), start, steps)
        name, values, covariance = "spread", backward.values, backward.covariance / batch
        if second_order is not None:
            values = values + second_order.drift
            covariance = covariance + second_order.covariance
        # A loss far above that of guessing, ln M.
        valid = backward.aux <= DIVERGED_LOSS * math.log(task.M)
    seen = lambda params: record(task, observables.measure(task, params))  # noqa: E731
    by_name = linear_noise.by_name(seen, init, values)
    return Trajectory(times, by_name, None, *judge(times, valid), name, covariance)
