r"""Sharpness of a loss, and the threshold above which an update rule oscillates.

Near a minimum with the Hessian H, each step of a rule multiplies the weights by a fixed matrix. Its
steps along an eigenvector oscillate and grow once the *preconditioned sharpness* exceeds 2. It is
the largest eigenvalue of

.. math::

    E^{1/2} \left( c\, (H + \lambda_c) + P \lambda_d \right) E^{1/2}, \qquad E = \eta P^{-1}

with the rates :math:`\eta` of the groups of weights, the preconditioner :math:`P = \sqrt{\hat v} +
\epsilon` of Adam and RMSProp (1 for other rules), coupled and decoupled decay :math:`\lambda_c` and
:math:`\lambda_d`, and

    c = 1                       gradient descent, RMSProp
    c = 1 / (1 + mu)            heavy ball
    c = (1 + 2 mu) / (1 + mu)   Nesterov
    c = (1 - b1) / (1 + b1)     Adam

The edge is therefore at 2 for every rule. In terms of the sharpness S this is eta S = 2 for
gradient descent, 2 (1 + mu) for heavy ball and (2 + 2 mu) / (1 + 2 mu) for Nesterov (Cohen et al.
2021, arXiv:2103.00065), and eta S(P^-1 H) = 2 (1 + b1) / (1 - b1) for Adam (Cohen et al. 2022,
arXiv:2207.14484). We derived the terms with decay from an eigenvalue -1 of the step. Adam's bias
correction of m is neglected.

The sharpness is computed from Hessian-vector products. Up to `DENSE` weights the full Hessian is
formed. For more weights LOBPCG finds the largest eigenvalues. It starts from the eigenvectors of
the previous record, and one random direction, in case an eigenvalue has grown in a direction that
these do not contain. It stops when the residual of each vector is below `TOLERANCE`, relative to
the sum of its eigenvalue and the largest one. The error of an eigenvalue is at most of the order of
its residual, and usually of its square.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Int, PyTree, Real

from dynsim.precision import Number, on_cpu, one_by_one
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from dynsim.training.rule import Rule, by_group, square_root
from dynsim.training.rules import BUILT_IN_RULES, SGD, Adam, RMSProp, Sign

EDGE = 2.0
"""The preconditioned sharpness beyond which steps along an eigenvector oscillate and grow."""


def sharpness_threshold(
    rule: Rule, step: Real[Number, "*S"] = 0, preconditioner: Real[Number, "*#S"] | None = None
) -> Real[Array, "*S"]:
    """Return the sharpness above which a rule's steps oscillate and grow.

    Compare it with the observable "sharpness", the largest eigenvalue of the Hessian; for Adam and
    RMSProp it is the threshold of the largest eigenvalue of P^-1 H. For rules with rates by group,
    record "preconditioned_sharpness", whose threshold is 2 for every rule.

    Coupled decay of Adam and RMSProp is part of the gradient, so that P divides it too: the
    threshold is lower by decay / P. If P differs between weights, no single threshold is exact:
    steps are stable below the one for the smallest P, and grow above the one for the largest P. In
    general, use "preconditioned_sharpness".

    Args:
        rule: an update rule from `dynsim.sgd`, `adam`, `adamw` or `rmsprop`.
        step: (*S) number of optimiser steps before the update, for rates with a schedule.
        preconditioner: P, required for Adam and RMSProp with coupled decay, otherwise not used.

    Returns:
        (*S) thresholds in units of the sharpness; infinite where the rate is zero, and negative
        where decay alone makes the steps grow.

    Raises:
        ValueError: for a rule without a threshold (`sign`, optax rules, rates or decay by group),
            or if a required `preconditioner` is missing.

    Example:
        >>> float(dynsim.sharpness_threshold(dynsim.sgd(0.1)))
        20.0
        >>> float(dynsim.sharpness_threshold(dynsim.sgd(0.1, momentum=0.9)))
        38.0
    """
    check_threshold(rule)
    decay = by_group(rule.decay)
    if set(rule.schedules) != {""} or set(decay) - {""}:
        raise ValueError(
            "rule: has rates or decay by group, so no single sharpness decides; record "
            "'preconditioned_sharpness', whose threshold is 2"
        )
    rate, strength = jnp.asarray(rule.rate(step)), jnp.asarray(decay.get("", 0.0))
    outside, inside = (strength, 0.0) if rule.decoupled else (0.0, strength)
    if isinstance(rule, Adam | RMSProp) and decay and not rule.decoupled:
        if preconditioner is None:
            raise ValueError(
                f"preconditioner = None: {rule.name} divides coupled decay by it, so it must "
                "be given; or record 'preconditioned_sharpness', whose threshold is 2"
            )
        inside = inside / jnp.asarray(preconditioner)
    # eta (c (S + lambda_c) + lambda_d) = 2, solved for S.
    return (EDGE / rate - outside) / _factor(rule) - inside


def check_threshold(rule: Rule) -> None:
    """Raise `ValueError` for a rule whose stability does not depend on a sharpness."""
    if isinstance(rule, Sign):
        raise ValueError("rule = sign: its steps have the same length at any sharpness")
    if type(rule) not in BUILT_IN_RULES:
        raise ValueError(f"rule = {rule.name}: its stability is not known; use a built-in rule")


def preconditioned(
    hessian: Callable[[PyTree], PyTree],
    rule: Rule,
    rate: PyTree[Array],
    memory: PyTree,
    params: PyTree,
    groups: PyTree = None,
) -> Callable[[PyTree], PyTree]:
    """Return the matrix of the module docstring as a linear map of pytrees like `params`.

    Args:
        hessian: H as such a map.
        rate: learning rate of the next update, by group if the rule has groups.
        memory: state of the rule after that update.
        groups: names of groups of weights, if the rule has numbers by group.
    """
    ones = jax.tree.map(jnp.ones_like, params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    rates = jax.tree.map(jnp.negative, rule.descend(ones, rate, groups))
    E = rates
    if isinstance(rule, Adam | RMSProp):
        # P of the last update, from the averages in the state of optax.
        squares = optax.tree.get(memory, "nu")
        weight = 1.0
        if isinstance(rule, Adam):
            weight = 1 - jnp.asarray(rule.b2) ** optax.tree.get(memory, "count")
        P = jax.tree.map(lambda v: square_root(v / weight) + rule.eps, squares)
        E = jax.tree.map(jnp.divide, rates, P)
    root_E, factor = jax.tree.map(square_root, E), _factor(rule)
    decay = rule.decayed(zeros, ones, groups)
    inside, outside = (zeros, decay) if rule.decoupled else (decay, zeros)

    # E^(1/2) c (H + lambda_c) E^(1/2) x, plus the part of decoupled decay.
    def total(half: Array, scaled: Array, curved: Array, inside: Array, added: Array) -> Array:
        return half * factor * (curved + inside * scaled) + added

    def times(tangent: PyTree) -> PyTree:
        scaled = jax.tree.map(jnp.multiply, root_E, tangent)
        # E P = eta, so that decoupled decay adds eta lambda_d.
        added = jax.tree.map(lambda *factors: math.prod(factors), outside, rates, tangent)
        return jax.tree.map(total, root_E, scaled, hessian(scaled), inside, added)

    return times


def _factor(rule: Rule) -> Array:
    """Return the factor c of the module docstring."""
    if isinstance(rule, Adam):
        b1 = jnp.asarray(rule.b1)
        return (1 - b1) / (1 + b1)
    if isinstance(rule, SGD):
        mu = jnp.asarray(rule.mu)
        return (1 + 2 * mu) / (1 + mu) if rule.nesterov else 1 / (1 + mu)
    return jnp.ones(())


DENSE = 200
"""Number of weights up to which the full Hessian is formed, which gives exact eigenvalues."""
TOLERANCE = 1e-3
"""Residual at which an eigenvector has converged, relative to its eigenvalue plus the largest."""
MAX_ITERATIONS = 100
"""Maximum number of iterations; without convergence the sharpness is NaN."""

Map = Callable[[PyTree], PyTree]
"""A symmetric matrix as a linear map of pytrees of arrays."""


def eigenvalue_counts(names: Iterable[str]) -> dict[str, int]:
    """Return how many eigenvalues of each matrix are recorded, by the name of the first one."""
    counts: dict[str, int] = {}
    for name in names:
        if name == PRECONDITIONED:
            counts[name] = 1
        elif number := re.fullmatch(rf"{SHARPNESS}(?:_(\d+))?", name):
            counts[SHARPNESS] = max(counts.get(SHARPNESS, 1), int(number[1] or 1))
    return counts


def record_sharpness(
    names: Iterable[str],
    slope: Callable[[PyTree], tuple[Array, PyTree]],
    scaled: Callable[[Map], Map],
    params: PyTree,
    before: PyTree,
    step: Int[ArrayLike, ""] = 0,
) -> tuple[dict[str, Array], PyTree]:
    """Evaluate the sharpnesses among `names`, and return them with the eigenvectors.

    Args:
        slope: the loss and its gradient as a function of the weights.
        scaled: makes the matrix of the preconditioned sharpness of the Hessian.
        params: the weights.
        before: eigenvectors of the previous record, or `starting_vectors`.
        step: number of the step, which determines the random direction.
    """
    counts = eigenvalue_counts(names)
    if not counts:
        return {}, before
    hessian = jax.linearize(lambda params: slope(params)[1], params)[1]
    eigenvalues, vectors = {}, {}
    for name, count in counts.items():
        matrix = scaled(hessian) if name == PRECONDITIONED else hessian
        values, vectors[name] = largest(matrix, params, count, before[name], step)
        eigenvalues[name] = values[0]
        eigenvalues.update({f"{name}_{i}": value for i, value in enumerate(values, 1)})
    return {name: eigenvalues[name] for name in names if name in eigenvalues}, vectors


def starting_vectors(params: PyTree, counts: dict[str, int]) -> dict[str, Float[Array, "n b"]]:
    """Return the initial vectors for the first record.

    Raises:
        ValueError: for more eigenvalues than weights.
    """
    n, dtype = ravel_pytree(params)[0].size, ravel_pytree(params)[0].dtype
    for name, k in counts.items():
        # LOBPCG needs five times as many weights as the block has columns.
        if k > n or (n > DENSE and 5 * (k + 1) >= n):
            most = n if n <= DENSE else (n - 1) // 5 - 1
            raise ValueError(f"record = '{name}_{k}': at most {most} can be found with {n} weights")
    return {name: random(0, n, k if n > DENSE else 0, dtype) for name, k in counts.items()}


def largest(
    matrix: Map,
    params: PyTree,
    count: int,
    before: Float[Array, "n b"],
    step: Int[ArrayLike, ""] = 0,
) -> tuple[Float[Array, " k"], Float[Array, "n b"]]:
    """Return the `count` largest eigenvalues of a matrix, in descending order, and the vectors to
    pass to the next call as `before`.

    Args:
        params: a pytree with the structure, shapes and dtype of the vectors.
        before: vectors from an earlier call, or `starting_vectors`.
        step: number of the step, which determines the random direction.

    Returns:
        Eigenvalues, NaN if the matrix is not finite or LOBPCG did not converge. They can be
        differentiated in both modes.
    """
    _, unravel = ravel_pytree(params)
    times = lambda v: ravel_pytree(matrix(unravel(v)))[0]  # noqa: E731
    values, vectors = top(times, count, before, step)
    # The full matrix needs no vectors to start from, so that the state of a run need not hold them.
    return values, vectors if before.shape[1] else before


def top(
    times: Callable[[Array], Array],
    count: int,
    before: Float[Array, "n b"],
    step: Int[ArrayLike, ""] = 0,
    tolerance: float = TOLERANCE,
) -> tuple[Float[Array, " k"], Float[Array, "n k"]]:
    """Like `largest`, for a symmetric matrix given by its product `times` with a vector (n,);
    returns the eigenvectors too.

    Args:
        before: starting vectors of the search, one per eigenvalue; without columns, the full
            matrix is formed.
        tolerance: replaces `TOLERANCE`.
    """
    n, dtype = len(before), before.dtype
    # Derivatives of eigenvalues do not involve those of the vectors. A loop has no reverse mode.
    if not before.shape[1]:
        matrix = jax.vmap(times)(jnp.eye(n, dtype=dtype))
        symmetric = jax.lax.stop_gradient((matrix + matrix.T) / 2)
        vectors = one_by_one(jnp.linalg.eigh)(symmetric)[1][:, : -count - 1 : -1]
        return jnp.sum(vectors.T * (vectors.T @ matrix), axis=1), vectors
    # `starting_vectors` uses key 0.
    block = jnp.concatenate([before, random(step + 1, n, 1, dtype)], axis=1)
    _, vectors, size = search(times, block, count + 1, tolerance)
    # Rayleigh quotients, whose derivatives are those of the eigenvalues.
    image = _product(times)(vectors.T).T
    values = jnp.sum(vectors * image, axis=0)
    residual = jnp.linalg.norm(image - values[None] * vectors, axis=0)
    values = jnp.where(residual <= 4 * tolerance * (jnp.abs(values) + size), values, jnp.nan)
    order = jnp.argsort(-values)[:count]
    return values[order], vectors[:, order]


def _product(times: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the product of a symmetric matrix with each row of a block. On a CPU, a few large
    vectors one after the other take half as long as all at once."""
    return functools.partial(jax.lax.map, times) if on_cpu() else jax.vmap(times)


def search(
    times: Callable[[Array], Array], block: Float[Array, "n b"], sure: int, tolerance: float
) -> tuple[Float[Array, " b"], Float[Array, "n b"], Float[Array, ""]]:
    """Find the largest eigenvalues of a symmetric matrix by LOBPCG (Knyazev 2001) from a block.
    Returns them in descending order, their eigenvectors, and the norm of the matrix on the block.
    It has no derivatives.

    Each iteration multiplies one vector per column of the block. At least one iteration is made, so
    that directions outside the block can grow.

    Args:
        sure: number of eigenvectors that have to converge; the others support the search.
        tolerance: tolerance of their residuals, relative to the sum of eigenvalue and size.
    """
    # The loop has no derivative, and `one_by_one` takes no closure over traced arrays.
    closed = eqx.filter_closure_convert(times, block[:, 0])
    arrays, rest = eqx.partition(closed, eqx.is_array)

    def run(arrays: PyTree, block: Array) -> tuple[Array, Array, Array]:
        product = _product(eqx.combine(arrays, rest))
        # Rows are contiguous: products with them take half as long as with columns.
        values, vectors, size = _lobpcg(product, block.T, sure, tolerance)
        return values, vectors.T, size

    return jax.lax.stop_gradient(one_by_one(run)(*jax.lax.stop_gradient((arrays, block))))


def _lobpcg(
    product: Callable[[Array], Array], block: Float[Array, "b n"], sure: int, tolerance: float
) -> tuple[Float[Array, " b"], Float[Array, "b n"], Float[Array, ""]]:
    # `search` with vectors as rows, for a matrix whose product with a block of them is `product`.
    b = len(block)
    eps = float(jnp.finfo(block.dtype).eps)
    first = jnp.linalg.qr(block.T)[0].T
    image = product(first)
    size = jnp.max(jnp.linalg.norm(image, axis=1))
    is_usable = jnp.isfinite(size) & (size > 0)

    def rayleigh_ritz(
        basis: Float[Array, "m n"], image: Float[Array, "m n"]
    ) -> tuple[tuple[Array, ...], Float[Array, "b m"]]:
        small = basis @ image.T
        # Vectors that were dropped from the basis are zero. Their eigenvalue becomes very negative,
        # so that no eigenvector contains them.
        dropped = jnp.sum(jnp.square(basis), axis=1) < 0.5
        small = (small + small.T) / 2 - jnp.diag(jnp.where(dropped, 1e3 * size, 0))
        values, coefficients = jnp.linalg.eigh(small)
        # `eigh` sorts eigenvalues in increasing order.
        coefficients, values = coefficients[:, : -b - 1 : -1].T, values[: -b - 1 : -1]
        vectors, images = coefficients @ basis, coefficients @ image
        residual = images - values[:, None] * vectors
        error = jnp.linalg.norm(residual, axis=1) / (jnp.abs(values) + size)
        unfinished = jnp.any(error[:sure] > tolerance)
        return (vectors, images, residual, unfinished, values), coefficients

    def iterate(state: tuple[Array, ...]) -> tuple[Array, ...]:
        vectors, images, residual, _, _, direction, direction_image, number = state
        new = _orthonormalise(residual, jnp.concatenate([vectors, direction]), eps)
        basis = jnp.concatenate([vectors, direction, new])
        image = jnp.concatenate([images, direction_image, product(new)])
        best, coefficients = rayleigh_ritz(basis, image)
        # The part of the step outside the old vectors, which makes the next direction conjugate.
        step = _orthonormalise(coefficients.at[:, :b].set(0), coefficients, eps)
        return *best, step @ basis, step @ image, number + 1

    start, _ = rayleigh_ritz(first, image)
    none = jnp.zeros_like(block)
    vectors, _, _, _, values, *_ = jax.lax.while_loop(
        lambda state: is_usable & ((state[3] & (state[7] < MAX_ITERATIONS)) | (state[7] < 1)),
        iterate,
        (*start, none, none, jnp.int32(0)),
    )
    return values, jnp.where(is_usable, vectors, block), size


def _orthonormalise(
    vectors: Float[Array, "b n"], basis: Float[Array, "m n"], eps: float
) -> Float[Array, "b n"]:
    """Orthonormalise rows against a basis of rows; those that vanish become zero."""
    lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / jnp.where(lengths > 0, lengths, 1)

    def project(_: Array, vectors: Array) -> Array:
        vectors = vectors - (vectors @ basis.T) @ basis
        columns, triangle = jnp.linalg.qr(vectors.T)
        return columns.T * (jnp.abs(jnp.diagonal(triangle)) > 100 * eps)[:, None]

    # Twice is enough (Kahan and Parlett): the first projection leaves errors of rounding.
    return jax.lax.fori_loop(0, 2, project, vectors)


def random(step: Int[ArrayLike, ""], n: int, k: int, dtype: DTypeLike) -> Float[Array, "n k"]:
    """Draw normal numbers that are the same in both precisions."""
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.random.normal(key, (n, k), "float32").astype(dtype)
