"""What the singular values of a matrix say, and what they would be without any structure.

The null is a matrix of independent Gaussian entries with the same shape and Frobenius norm, or
for a product A B a product of two of those. Its singular values follow the law of Marchenko and
Pastur (1967), or its free multiplicative square, in the limit of a large matrix. It is a null
model to compare with and no test: no level of significance belongs to it, entries of trained
weights are not independent, and at finite size the largest singular value of a random matrix
scatters about the edge by a relative size^(-2/3): 13 % of Gaussian 200 x 200 matrices, and 17 %
of large ones (Tracy and Widom's law), have a value just above it.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Float

LEVELS = (0.5, 0.9, 0.99)
"""Fractions of |A|_F^2 whose smallest number of directions is reported."""
GRID = 2000
"""Points at which the density of the null is evaluated."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Summary of singular values sigma_1 >= sigma_2 >= ... Ratios of a zero matrix are NaN.

    Attributes:
        frobenius: |A|_F, root of the sum of sigma^2.
        spectral: sigma_1.
        stable_rank: |A|_F^2 / sigma_1^2.
        effective_rank: exp of the entropy of sigma^2 / |A|_F^2.
        directions: smallest number of directions that hold 50, 90 and 99 % of |A|_F^2.
        top_share: sigma_1^2 / |A|_F^2.
    """

    frobenius: float
    spectral: float
    stable_rank: float
    effective_rank: float
    directions: tuple[int, int, int]
    top_share: float


def numbers(sigma: Float[np.ndarray, " r"]) -> Numbers:
    """Summary of r singular values, in descending order."""
    top = float(sigma[0])
    if top == 0:
        return Numbers(0.0, 0.0, math.nan, math.nan, (0, 0, 0), math.nan)
    # Relative to the largest, whose square may be out of the range of a float.
    squares = (sigma / top) ** 2
    stable = float(squares.sum())
    p = squares[squares > 0] / stable
    # A share is a sum of roundings: half of 2n equal values is n of them and not n + 1.
    holding = np.searchsorted(energy(sigma), np.array(LEVELS) * (1 - 1e-12)) + 1
    k50, k90, k99 = (int(k) for k in holding)
    effective = math.exp(-float((p * np.log(p)).sum()))
    return Numbers(top * math.sqrt(stable), top, stable, effective, (k50, k90, k99), 1 / stable)


def energy(sigma: Float[np.ndarray, " r"]) -> Float[np.ndarray, " r"]:
    """Share of |A|_F^2 in the first 1, ..., r directions; NaN of a zero matrix."""
    if sigma[0] == 0:
        return np.full(sigma.size, np.nan)
    total = np.cumsum((sigma / sigma[0]) ** 2)
    return total / total[-1]


def of_product(A: Float[np.ndarray, "m k"], B: Float[np.ndarray, "k n"]) -> Float[np.ndarray, " r"]:
    """The r = min(m, n) singular values of A B; of thin factors by way of a k x k matrix."""
    size = min(A.shape[0], B.shape[1])
    if A.shape[1] < size:
        A, B = _triangle(A), _triangle(B.T).T
    sigma = np.linalg.svd(A @ B, compute_uv=False)
    return np.pad(sigma, (0, size - sigma.size))


def _triangle(A: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "r k"]:
    # Named results come with the modes that compute Q alone; NumPy's types say otherwise.
    return np.asarray(np.linalg.qr(A, mode="r"))


def edge(frobenius: float, m: int, n: int, inner: int | None = None) -> float:
    """Upper end of the null's singular values, s (sqrt m + sqrt n) with s = |A|_F / sqrt(m n).

    With `inner` = k for a product of Gaussian (m, k) and (k, n) matrices: |A|_F sqrt(L / k), L the
    minimum over z > 0 of (1 + z) (1 + k z / m) (1 + k z / n) / z.
    """
    if inner is None:
        return frobenius * (1 / math.sqrt(m) + 1 / math.sqrt(n))
    return frobenius * math.sqrt(_upper(inner / m, inner / n) / inner)


def null(frobenius: float, m: int, n: int, inner: int | None = None) -> Float[np.ndarray, " r"]:
    """Typical singular values (min(m, n),) of the null, as quantiles of its law, of that norm."""
    return frobenius * _unit_null(m, n, inner)


@functools.lru_cache(maxsize=64)
def _unit_null(m: int, n: int, inner: int | None) -> Float[np.ndarray, " r"]:
    """As `null`, with a Frobenius norm of 1.

    The eigenvalues x of A B B^T A^T, in units of their mean over k, have the Stieltjes transform
    G with x G(x) = 1 + z and (1 + z) (1 + a z) (1 + b z) = x z, where a = k / m and b = k / n: the
    S-transforms 1 / (1 + a z) and 1 / (1 + b z) of the factors multiply. A single matrix is the
    case k = min(m, n), a = min / max, b = 0.
    """
    k, a, b = inner, 0.0, 0.0
    if k is None:
        k = min(m, n)
        a = k / max(m, n)
    else:
        a, b = k / m, k / n
    top = _upper(a, b)
    # The density may be as steep as x^(-2/3) at 0, which is smooth in t.
    t = (np.arange(GRID) + 0.5) / GRID
    x = top * t**6
    cubic = np.array([a * b, a + b + a * b, 1 + a + b, 1.0])
    roots = [np.roots(cubic - [0, 0, value, 0]) for value in x]
    density = np.array([np.abs(z.imag).max() for z in roots]) / np.pi / x
    above = np.cumsum((density * 6 * x / t / GRID)[::-1])
    rank = min(m, n, k)
    # What is left of the whole after the quadrature's error is put right by the scale.
    wanted = (np.arange(rank) + 0.5) / rank * above[-1]
    sigma = np.sqrt(np.interp(wanted, above, x[::-1]))
    sigma = np.pad(sigma, (0, min(m, n) - rank))
    return sigma / np.linalg.norm(sigma)


def _upper(a: float, b: float) -> float:
    """Largest x of the law: the minimum over z > 0 of (1 + z) (1 + a z) (1 + b z) / z."""
    stationary = np.roots([2 * a * b, a + b + a * b, 0.0, -1.0])
    z = stationary[np.abs(stationary.imag) < 1e-9 * np.abs(stationary)].real.max()
    return float((1 + z) * (1 + a * z) * (1 + b * z) / z)
