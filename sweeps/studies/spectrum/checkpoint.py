"""Singular values of weights in a checkpoint, where the spectral corollary can be looked for.

Gong et al. (2025, arXiv:2502.20681): after training in two stages the large singular directions
of the attention weights carry the specialised component and the small ones the elementary
component; the traces of W and V tell the stages apart. What is computed here does not depend on
the model, so whether a real checkpoint shows any of that is for the reader to say.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from dynsim import checks
from sweeps import output
from sweeps.runner import progress
from sweeps.studies.spectrum import matrices, singular
from sweeps.studies.spectrum.matrices import Matrix, Skipped
from sweeps.studies.spectrum.singular import Numbers
from sweeps.studies.spectrum.weights import tensors


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Singular values of matrices in a .safetensors checkpoint, beside those of random ones.

    Attributes:
        checkpoint: a .safetensors file, a .safetensors.index.json, or a directory with either.
        pattern: shell patterns of the names of tensors, for instance '*attn*'; case counts.
        products: pairs to multiply, for instance 'h.*.q.weight.T @ h.*.k.weight' for what the
            scores of PyTorch's (out, in) weights depend on; * must stand for the same on both
            sides, [i] means block i of a split matrix, and .T transposes.
        split: number of equal column blocks that each chosen matrix is cut into, 3 for the fused
            queries, keys and values of GPT-2.
        out: directory for the picture, spectrum.json and spectrum.npz.
    """

    checkpoint: Path | None
    pattern: tuple[str, ...] = ("*",)
    products: tuple[str, ...] = ()
    split: int = 1
    out: Path = Path("out/spectrum")


@dataclasses.dataclass(frozen=True)
class Record:
    """A matrix A of shape (m, n) and what its singular values say.

    Attributes:
        name: of the tensor, its block or the product.
        shape: (m, n).
        inner: k for a product of (m, k) and (k, n) matrices.
        dtype: as stored, of every factor.
        status: ok, zero, or not finite with the number of entries that are not; then there are
            no singular values and no numbers.
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
        numbers: summary of these.
        null_sigma: typical singular values of a random matrix of that shape and norm.
        null: their summary.
        edge: upper end of the null's singular values.
        spikes: number of singular values above the edge; see `sweeps.studies.spectrum.singular` on
            what that is not.
    """

    numbers: Numbers
    null_sigma: Float[np.ndarray, " r"]
    null: Numbers
    edge: float
    spikes: int


class Report(NamedTuple):
    """Matrices in the order in which people count, then products; and what was left out."""

    records: list[Record]
    skipped: list[Skipped]


def report(config: Checkpoint) -> Report:
    """Read and decompose the chosen matrices, one at a time.

    Raises `ValueError` for a checkpoint that cannot be read, for a pattern or product that
    nothing matches, for shapes that do not fit, and where nothing is left to decompose. All of
    that is known before the first tensor is read.
    """
    checks.integer("split", config.split, 1)
    output.check_directory(config.out)
    if not config.pattern and not config.products:
        raise ValueError("pattern = (): needs at least one pattern, or one of products")
    assert config.checkpoint is not None
    found = tensors(config.checkpoint)
    chosen, skipped = matrices.by_patterns(found, config.pattern, config.split)
    for product in config.products:
        more, left_out = matrices.by_product(found, product, config.split)
        chosen += more
        skipped += left_out
    unique = {matrix.name: matrix for matrix in chosen}
    if not unique:
        reasons = "; ".join(f"{s.name} {s.reason}" for s in skipped[: matrices.SHOWN])
        raise ValueError(
            f"pattern = {config.pattern}, products = {config.products}: none of the "
            f"{len(skipped)} tensors that match can be decomposed: {reasons}"
        )
    each = progress.each(list(unique.values()), "matrix", lambda matrix: matrix.name)
    return Report([record(matrix) for matrix in each], list(dict.fromkeys(skipped)))


def record(matrix: Matrix) -> Record:
    """Read a matrix and find its singular values, in float64."""
    factors = [block.read() for block in matrix.factors]
    shape = (factors[0].shape[0], factors[-1].shape[1])
    inner = factors[0].shape[1] if len(factors) == 2 else None
    dtype = " @ ".join(dict.fromkeys(block.tensor.dtype for block in matrix.factors))
    if bad := sum(int((~np.isfinite(factor)).sum()) for factor in factors):
        entries = sum(factor.size for factor in factors)
        status = f"not finite ({bad} of {entries} entries)"
        return Record(matrix.name, shape, inner, dtype, status, np.empty(0))
    if inner is None:
        sigma = np.linalg.svd(factors[0], compute_uv=False)
        diagonal = np.diagonal(factors[0])
    else:
        sigma = singular.of_product(*factors)
        rows = min(shape)
        diagonal = np.einsum("ij,ji->i", factors[0][:rows], factors[1][:, :rows])
    numbers = singular.numbers(sigma)
    null_sigma = singular.null(numbers.frobenius, *shape, inner)
    edge = singular.edge(numbers.frobenius, *shape, inner)
    return Decomposed(
        matrix.name,
        shape,
        inner,
        dtype,
        "ok" if numbers.spectral else "zero",
        sigma=sigma,
        numbers=numbers,
        null_sigma=null_sigma,
        null=singular.numbers(null_sigma),
        edge=edge,
        spikes=int((sigma > edge).sum()),
        trace=float(diagonal.sum()) if shape[0] == shape[1] else None,
    )


def table(found: Report) -> str:
    """One line for each matrix; after a slash the same of the null."""
    width = max(len(r.name) for r in found.records)
    head = (
        f"{'matrix':<{width}} {'shape':>13} {'|A|_F':>9} {'sigma_1':>9} {'stable rank':>17} "
        f"{'effective rank':>17} {'50 / 90 / 99 % in':>18} {'top %':>13} {'spikes':>6} "
        f"{'trace':>10}"
    )
    lines = [head, *(_line(r, width) for r in found.records), ""]
    lines += [
        "After a slash: a random Gaussian matrix of that shape and norm (a product of two, for "
        "products).",
        "Spikes: singular values above its bulk. It is a model to compare with and no test.",
    ]
    if found.skipped:
        lines += ["", f"skipped {len(found.skipped)}:"]
        lines += [f"  {s.name} {s.shape} {s.dtype}: {s.reason}" for s in found.skipped]
    return "\n".join(lines)


def summary(config: Checkpoint, found: Report) -> dict[str, Any]:
    """The report without its singular values, as JSON values."""
    # Of a matrix without singular values the numbers are there as well, as null.
    left_out, none = {"sigma", "null_sigma"}, dict.fromkeys(("numbers", "null", "edge", "spikes"))
    kept = [
        {name: v for name, v in {**none, **dataclasses.asdict(r)}.items() if name not in left_out}
        for r in found.records
    ]
    asked = {name: getattr(config, name) for name in ("pattern", "products", "split")}
    return output.as_json(
        {
            "checkpoint": str(config.checkpoint),
            **asked,
            "matrices": kept,
            "skipped": [s._asdict() for s in found.skipped],
        }
    )


def arrays(found: Report) -> dict[str, np.ndarray]:
    """Arrays to keep: `names` (N,), `edge`, `stable_rank`, `trace` (N,) with NaN where there is
    none, and by name of the matrix `sigma`, `null_sigma` and cumulative `energy` (r,)."""
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
            kept[f"{r.name}/energy"] = singular.energy(r.sigma)
    return kept


def _line(r: Record, width: int) -> str:
    shape = f"{r.shape[0]} x {r.shape[1]}"
    start = f"{r.name:<{width}} {shape:>13} "
    if not isinstance(r, Decomposed):
        return start + r.status
    own, null = r.numbers, r.null
    stable = f"{own.stable_rank:.1f} / {null.stable_rank:.1f}"
    effective = f"{own.effective_rank:.1f} / {null.effective_rank:.1f}"
    top = f"{100 * own.top_share:.1f} / {100 * null.top_share:.1f}"
    trace = "-" if r.trace is None else f"{r.trace:.4g}"
    holding = " / ".join(map(str, own.directions))
    return start + (
        f"{own.frobenius:>9.4g} {own.spectral:>9.4g} {stable:>17} {effective:>17} {holding:>18} "
        f"{top:>13} {r.spikes:>6} {trace:>10}"
    )
