"""The largest eigenvalues of a symmetric matrix from its products with vectors: by the full matrix,
or by LOBPCG."""

from __future__ import annotations

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from dynsim.precision import on_cpu, one_by_one

TOLERANCE = 1e-3
"""Residual at which an eigenvector has converged, relative to its eigenvalue plus the largest."""
MAX_ITERATIONS = 100
"""Maximum number of iterations; without convergence the sharpness is NaN."""


def top(
    times: Callable[[Array], Array],
    count: int,
    before: Float[Array, "n b"],
    step: Int[ArrayLike, ""] = 0,
    tolerance: float = TOLERANCE,
) -> tuple[Float[Array, " k"], Float[Array, "n k"]]:
    """Return the `count` largest eigenvalues of a symmetric matrix, in descending order, and their
    eigenvectors, from its product `times` with a vector (n,).

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
