"""Singular values of matrices, next to those of random ones.

The null is a matrix of independent Gaussian entries with the same shape and Frobenius norm. In the
limit of large matrices its singular values follow the law of Marchenko and Pastur (1967). It is a
model to compare with and no test: it has no significance level, entries of trained weights are not
independent, and at finite size the largest singular value of a random matrix scatters about the
edge by a relative size^(-2/3). In 13 % of Gaussian 200 x 200 matrices, and 17 % of large ones
(Tracy-Widom law), it lies just above the edge.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from sweeps.studies.spectrum.weights import Tensor

PERCENTAGES = (50, 90, 99)
"""Shares of |A|_F^2, in percent, for which the smallest number of directions is reported."""
COMPARED = ("stable_rank", "effective_rank", "top_share")
GRID = 20_000
"""Points at which the density of the null is evaluated."""


class MatrixSpectrum(NamedTuple):
    """A matrix A of shape (m, n) and results from its singular values.

    Attributes:
        name: name of the tensor, or of its block.
        shape: (m, n).
        status: ok, zero, or not finite with the number of such entries; in that case there are no
            singular values.
        sigma: all min(m, n) singular values in descending order, in units of the entries.
        null_sigma: typical singular values of a random matrix of that shape and norm.
        numbers: `summarise(sigma)`, some of it also of the null, as null_NAME; `edge`, the upper
            end of the null's singular values; `spikes`, the number of singular values above it,
            which is no test (see above); and for a square matrix `trace`, the sum of its diagonal,
            whose null has mean 0 and standard deviation |A|_F / sqrt n.
    """

    name: str
    shape: tuple[int, ...]
    status: str
    sigma: Float[np.ndarray, " r"]
    null_sigma: Float[np.ndarray, " r"]
    numbers: dict[str, float]


def decompose(tensor: Tensor) -> MatrixSpectrum:
    """Read a matrix and compute its singular values in float64."""
    matrix = tensor.read()
    if bad := int((~np.isfinite(matrix)).sum()):
        status, none = f"not finite ({bad} of {matrix.size} entries)", np.empty(0)
        return MatrixSpectrum(tensor.name, tensor.shape, status, none, none, {})
    # Without the singular vectors, which take several times as long.
    sigma, (m, n) = np.linalg.svdvals(matrix), matrix.shape
    own = summarise(sigma)
    random, end = null(own["frobenius"], m, n), bulk_edge(own["frobenius"], m, n)
    of_null = {f"null_{n}": v for n, v in summarise(random).items() if n in COMPARED}
    numbers = own | of_null | {"edge": end, "spikes": int((sigma > end).sum())}
    if m == n:
        numbers["trace"] = float(np.trace(matrix))
    status = "ok" if own["spectral"] else "zero"
    return MatrixSpectrum(tensor.name, tensor.shape, status, sigma, random, numbers)


def summarise(sigma: Float[np.ndarray, " r"]) -> dict[str, float]:
    """Summarise r singular values sigma_1 >= sigma_2 >= ... of a matrix A.

    Returns:
        `frobenius`, |A|_F, the root of the sum of sigma^2; `spectral`, sigma_1; `stable_rank`,
        |A|_F^2 / sigma_1^2; `effective_rank`, exp of the entropy of sigma^2 / |A|_F^2;
        `top_share`, sigma_1^2 / |A|_F^2; and `directions_50`, `_90` and `_99`, the smallest numbers
        of directions with so many percent of |A|_F^2. Of a zero matrix, the two norms.
    """
    top = float(sigma[0])
    if top == 0:
        return {"frobenius": 0.0, "spectral": 0.0}
    # Relative to the largest, whose square may overflow or underflow.
    squares = (sigma / top) ** 2
    stable = float(squares.sum())
    # Allow for rounding: half of 2n equal values is n of them and not n + 1.
    directions = np.searchsorted(energy(sigma), np.array(PERCENTAGES) / 100 * (1 - 1e-12)) + 1
    return {
        "frobenius": top * math.sqrt(stable),
        "spectral": top,
        "stable_rank": stable,
        "effective_rank": math.exp(stats.entropy(squares)),
        "top_share": 1 / stable,
        **{f"directions_{n}": int(k) for n, k in zip(PERCENTAGES, directions, strict=True)},
    }


def energy(sigma: Float[np.ndarray, " r"]) -> Float[np.ndarray, " r"]:
    """Share of |A|_F^2 in the first 1, ..., r directions; NaN for a zero matrix."""
    if sigma[0] == 0:
        return np.full(sigma.size, np.nan)
    total = np.cumsum((sigma / sigma[0]) ** 2)
    return total / total[-1]


def bulk_edge(frobenius: float, m: int, n: int) -> float:
    """Upper end of the null's singular values, s (sqrt m + sqrt n) with s = |A|_F / sqrt(m n)."""
    return frobenius * (1 / math.sqrt(m) + 1 / math.sqrt(n))


def null(frobenius: float, m: int, n: int) -> Float[np.ndarray, " r"]:
    """Typical singular values (min(m, n),) of the null with that norm, as quantiles of its law."""
    r, ratio = min(m, n), min(m, n) / max(m, n)
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    # Squares x in units of their mean have the density sqrt((high - x) (x - low)) / x, which is
    # smooth in the angle.
    angle = (np.arange(GRID) + 0.5) / GRID * np.pi / 2
    x = low + (high - low) * np.sin(angle) ** 2
    density = np.sin(2 * angle) ** 2 / x
    # The distribution function at the middle of each cell.
    below = (np.cumsum(density) - density / 2) / density.sum()
    # Descending quantiles of x, rescaled to the exact norm.
    sigma = np.sqrt(np.interp(1 - (np.arange(r) + 0.5) / r, below, x))
    return frobenius * sigma / np.linalg.norm(sigma)
