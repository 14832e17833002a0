"""Singular values of the weights in a checkpoint, to look for the spectral corollary.

According to Gong et al. (2025, arXiv:2502.20681), after two-stage training the large singular
directions of the attention weights carry the specialised component and the small ones the
elementary component, and the traces of W and V distinguish the stages. The numbers computed here
do not depend on the model; whether a real checkpoint confirms this is left to the reader.

The null is a matrix of independent Gaussian entries with the same shape and Frobenius norm, or a
product of two for a product A B. In the limit of large matrices its singular values follow the law
of Marchenko and Pastur (1967), or its free multiplicative square. It is a model to compare with and
no test: it has no significance level, entries of trained weights are not independent, and at finite
size the largest singular value of a random matrix scatters about the edge by a relative
size^(-2/3). In 13 % of Gaussian 200 x 200 matrices, and 17 % of large ones (Tracy-Widom law), it
lies just above the edge.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from dynsim import checks
from sweeps import output
from sweeps.runner import progress
from sweeps.studies.spectrum import weights
from sweeps.studies.spectrum.weights import Skipped, Tensor

LEVELS = (0.5, 0.9, 0.99)
"""Fractions of |A|_F^2 for which the smallest number of directions is reported."""
GRID = 2000
"""Points at which the density of the null is evaluated."""
COLUMNS = {
    "shape": 14,
    "|A|_F": 10,
    "sigma_1": 10,
    "stable rank": 18,
    "effective rank": 18,
    "50 / 90 / 99 % in": 19,
    "top %": 14,
    "spikes": 7,
    "trace": 11,
}
"""Widths of the columns of the table, after the name of the matrix."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Summary of singular values sigma_1 >= sigma_2 >= ... Ratios of a zero matrix are NaN.

    Attributes:
        frobenius: |A|_F, root of the sum of sigma^2.
        spectral: sigma_1.
        stable_rank: |A|_F^2 / sigma_1^2.
        effective_rank: exp of the entropy of sigma^2 / |A|_F^2.
        directions: smallest number of directions with 50, 90 and 99 % of |A|_F^2.
        top_share: sigma_1^2 / |A|_F^2.
    """

    frobenius: float
    spectral: float
    stable_rank: float
    effective_rank: float
    directions: tuple[int, ...]
    top_share: float


@dataclasses.dataclass(frozen=True)
class Record:
    """A matrix A of shape (m, n) and results from its singular values.

    Attributes:
        name: name of the tensor, its block or the product.
        shape: (m, n).
        inner: k for a product of (m, k) and (k, n) matrices.
        dtype: stored type of each factor.
        status: ok, zero, or not finite with the number of such entries; in that case there are no
            singular values and no numbers.
        sigma: all min(m, n) singular values in descending order, in units of the entries.
        trace: sum of the diagonal of a square matrix, whose null has mean 0 and standard
            deviation |A|_F / sqrt n.
    """

    name: str
    shape: tuple[int, int]
    inner: int | None
    dtype: str
    status: str
    sigma: Float[np.ndarray, " r"]
    trace: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decomposed(Record):
    """A matrix that has singular values.

    Attributes:
        numbers: their summary.
        null_sigma: typical singular values of a random matrix of that shape and norm.
        null: summary of the null's singular values.
        edge: upper end of the null's singular values.
        spikes: number of singular values above the edge; no test, see the module docstring.
    """

    numbers: Numbers
    null_sigma: Float[np.ndarray, " r"]
    null: Numbers
    edge: float
    spikes: int


class Report(NamedTuple):
    """Matrices in natural order (layer 2 before layer 10), then products; and skipped tensors."""

    records: list[Record]
    skipped: list[Skipped]


def report(
    checkpoint: Path,
    patterns: Sequence[str],
    products: Sequence[str] = (),
    split: int = 1,
    fused: weights.Fused | None = None,
    heads: int | None = None,
) -> Report:
    """Read and decompose the chosen matrices, one at a time.

    Raises `ValueError`, before reading any tensor, for an unreadable checkpoint, a pattern or
    product without a match, shapes that do not fit or do not tell where the blocks are, and if
    there is nothing to decompose.
    """
    checks.integer("split", split, 1)
    for name, value in {"fused": fused, "heads": heads}.items():
        if split == 1 and value is not None:
            raise ValueError(f"{name} = {value}: describes fused matrices; needs split > 1")
    if heads is not None:
        checks.integer("heads", heads, 1)
    layout = weights.Layout(split, fused, heads)
    if not patterns and not products:
        raise ValueError("pattern = (): needs at least one pattern, or one of products")
    found = weights.tensors(checkpoint)
    chosen, skipped = weights.by_patterns(found, patterns, layout)
    for product in products:
        more, left_out = weights.by_product(found, product, layout)
        chosen += more
        skipped += left_out
    named = {" @ ".join(factor.name for factor in factors): factors for factors in chosen}
    if not named:
        reasons = "; ".join(f"{s.name} {s.reason}" for s in skipped[: weights.SHOWN])
        raise ValueError(
            f"pattern = {patterns}, products = {products}: none of the {len(skipped)} tensors "
            f"that match can be decomposed: {reasons}"
        )
    each = progress.each(list(named.items()), "matrix", lambda matrix: matrix[0])
    return Report([decomposed(*matrix) for matrix in each], list(dict.fromkeys(skipped)))


def decomposed(name: str, tensors: Sequence[Tensor]) -> Record:
    """Read a matrix, or the two factors of a product, and compute singular values in float64."""
    factors = [tensor.read() for tensor in tensors]
    shape = (factors[0].shape[0], factors[-1].shape[1])
    inner = factors[0].shape[1] if len(factors) == 2 else None
    dtype = " @ ".join(dict.fromkeys(tensor.dtype for tensor in tensors))
    if bad := sum(int((~np.isfinite(factor)).sum()) for factor in factors):
        entries = sum(factor.size for factor in factors)
        status = f"not finite ({bad} of {entries} entries)"
        return Record(name, shape, inner, dtype, status, np.empty(0))
    trace = None
    if inner is None:
        sigma = np.linalg.svdvals(factors[0])
        if shape[0] == shape[1]:
            trace = float(np.trace(factors[0]))
    else:
        sigma = of_product(*factors)
        if shape[0] == shape[1]:
            trace = float(np.einsum("ij,ji->i", *factors).sum())
    own = numbers(sigma)
    null_sigma = null(own.frobenius, *shape, inner)
    end = edge(own.frobenius, *shape, inner)
    return Decomposed(
        name,
        shape,
        inner,
        dtype,
        "ok" if own.spectral else "zero",
        sigma,
        trace,
        numbers=own,
        null_sigma=null_sigma,
        null=numbers(null_sigma),
        edge=end,
        spikes=int((sigma > end).sum()),
    )


def table(found: Report) -> str:
    """Format a line for each matrix, with the null's values after a slash."""
    rows = [("matrix", *COLUMNS)]
    for r in found.records:
        shape = f"{r.shape[0]} x {r.shape[1]}"
        if not isinstance(r, Decomposed):
            rows.append((r.name, shape, f" {r.status}"))
            continue
        own, random = r.numbers, r.null
        cells = (
            f"{own.frobenius:.4g}",
            f"{own.spectral:.4g}",
            f"{own.stable_rank:.1f} / {random.stable_rank:.1f}",
            f"{own.effective_rank:.1f} / {random.effective_rank:.1f}",
            " / ".join(map(str, own.directions)),
            f"{100 * own.top_share:.1f} / {100 * random.top_share:.1f}",
            str(r.spikes),
            "-" if r.trace is None else f"{r.trace:.4g}",
        )
        rows.append((r.name, shape, *cells))
    lines = [
        *output.aligned(rows, max(len(r.name) for r in found.records), *COLUMNS.values()),
        "",
        "After a slash: a random Gaussian matrix of that shape and norm (a product of two, for "
        "products).",
        "Spikes: singular values above its bulk. It is a model to compare with and no test.",
    ]
    if found.skipped:
        lines += ["", f"skipped {len(found.skipped)}:"]
        lines += [f"  {s.name} {s.shape} {s.dtype}: {s.reason}" for s in found.skipped]
    return "\n".join(lines)


def summary(found: Report) -> dict[str, Any]:
    """Convert the report, without its singular values, to JSON values."""
    # Matrices without singular values have the same keys, with null.
    absent = dict.fromkeys(("numbers", "null", "edge", "spikes"))
    matrices = [absent | dataclasses.asdict(r) for r in found.records]
    for each in matrices:
        each.pop("sigma")
        each.pop("null_sigma", None)
    return output.as_json({"matrices": matrices, "skipped": [s._asdict() for s in found.skipped]})


def arrays(found: Report) -> dict[str, np.ndarray]:
    """Return the arrays to store: `names`, `edge`, `stable_rank`, `trace` (N,), NaN if undefined,
    and by name of the matrix `sigma`, `null_sigma` and cumulative `energy` (r,)."""
    rows = [
        (r.edge, r.numbers.stable_rank, r.null.stable_rank, r.trace)
        if isinstance(r, Decomposed)
        else (None,) * 4
        for r in found.records
    ]
    names = ("edge", "stable_rank", "null_stable_rank", "trace")
    kept: dict[str, np.ndarray] = dict(zip(names, np.array(rows, np.float64).T, strict=True))
    kept["names"] = np.array([r.name for r in found.records])
    for r in found.records:
        if isinstance(r, Decomposed):
            kept[f"{r.name}/sigma"], kept[f"{r.name}/null_sigma"] = r.sigma, r.null_sigma
            kept[f"{r.name}/energy"] = energy(r.sigma)
    return kept


def numbers(sigma: Float[np.ndarray, " r"]) -> Numbers:
    """Summarise r singular values in descending order."""
    top = float(sigma[0])
    if top == 0:
        return Numbers(0.0, 0.0, math.nan, math.nan, (0, 0, 0), math.nan)
    # Relative to the largest, whose square may overflow or underflow.
    squares = (sigma / top) ** 2
    stable = float(squares.sum())
    # Allow for rounding: half of 2n equal values is n of them and not n + 1.
    directions = np.searchsorted(energy(sigma), np.array(LEVELS) * (1 - 1e-12)) + 1
    effective = math.exp(stats.entropy(squares))
    norm, directions = top * math.sqrt(stable), tuple(directions.tolist())
    return Numbers(norm, top, stable, effective, directions, 1 / stable)


def energy(sigma: Float[np.ndarray, " r"]) -> Float[np.ndarray, " r"]:
    """Share of |A|_F^2 in the first 1, ..., r directions; NaN for a zero matrix."""
    if sigma[0] == 0:
        return np.full(sigma.size, np.nan)
    total = np.cumsum((sigma / sigma[0]) ** 2)
    return total / total[-1]


def of_product(A: Float[np.ndarray, "m k"], B: Float[np.ndarray, "k n"]) -> Float[np.ndarray, " r"]:
    """The r = min(m, n) singular values of A B; for thin factors, from a k x k matrix."""
    size = min(A.shape[0], B.shape[1])
    if A.shape[1] < size:
        # Mode "r" returns an array; NumPy's type stubs are wrong here.
        A, B = (np.asarray(np.linalg.qr(each, mode="r")) for each in (A, B.T))
        B = B.T
    sigma = np.linalg.svdvals(A @ B)
    return np.pad(sigma, (0, size - sigma.size))


def edge(frobenius: float, m: int, n: int, inner: int | None = None) -> float:
    """Upper end of the null's singular values, s (sqrt m + sqrt n) with s = |A|_F / sqrt(m n).

    With `inner` = k for a product of Gaussian (m, k) and (k, n) matrices: |A|_F sqrt(L / k), L the
    minimum over z > 0 of (1 + z) (1 + k z / m) (1 + k z / n) / z.
    """
    if inner is None:
        return frobenius * (1 / math.sqrt(m) + 1 / math.sqrt(n))
    return frobenius * math.sqrt(_upper(inner / m, inner / n) / inner)


def null(frobenius: float, m: int, n: int, inner: int | None = None) -> Float[np.ndarray, " r"]:
    """Typical singular values (min(m, n),) of the null with that norm, as quantiles of its law."""
    return frobenius * _unit_null(m, n, inner)


@functools.lru_cache(maxsize=64)
def _unit_null(m: int, n: int, inner: int | None) -> Float[np.ndarray, " r"]:
    """`null` for a Frobenius norm of 1.

    The eigenvalues x of A B B^T A^T, in units of their mean over k, have the Stieltjes transform
    G with x G(x) = 1 + z and (1 + z) (1 + a z) (1 + b z) = x z, where a = k / m and b = k / n,
    because the S-transforms 1 / (1 + a z) and 1 / (1 + b z) of the factors multiply. A single
    matrix is the case k = min(m, n), a = min / max, b = 0.
    """
    k = min(m, n) if inner is None else inner
    a, b = (k / max(m, n), 0.0) if inner is None else (k / m, k / n)
    # The density may diverge like x^(-2/3) at 0; in t it is smooth.
    t = (np.arange(GRID) + 0.5) / GRID
    x = _upper(a, b) * t**6
    cubic = np.array([a * b, a + b + a * b, 1 + a + b, 1.0])
    roots = [np.roots(cubic - [0, 0, value, 0]) for value in x]
    density = np.array([np.abs(z.imag).max() for z in roots]) / np.pi / x
    above = np.cumsum((density * 6 * x / t / GRID)[::-1])
    rank = min(m, n, k)
    # Quantiles are relative to above[-1], which includes the quadrature's error.
    wanted = (np.arange(rank) + 0.5) / rank * above[-1]
    sigma = np.sqrt(np.interp(wanted, above, x[::-1]))
    sigma = np.pad(sigma, (0, min(m, n) - rank))
    return sigma / np.linalg.norm(sigma)


def _upper(a: float, b: float) -> float:
    """Largest x of the law: the minimum over z > 0 of (1 + z) (1 + a z) (1 + b z) / z."""
    stationary = np.roots([2 * a * b, a + b + a * b, 0.0, -1.0])
    z = stationary[np.abs(stationary.imag) < 1e-9 * np.abs(stationary)].real.max()
    return float((1 + z) * (1 + a * z) * (1 + b * z) / z)
