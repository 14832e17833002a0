"""Singular values of a checkpoint: against numpy and closed forms, for every way of storing it."""

import csv
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import integrate, optimize

from sweeps import cli
from sweeps.studies.spectrum import singular
from sweeps.studies.spectrum.figure import Spectrum

RNG = np.random.default_rng(5)
DIRECTIONS = ("directions_50", "directions_90", "directions_99")


def store(path, **named):
    save_file({name: np.ascontiguousarray(array) for name, array in named.items()}, path)
    return path


def records(checkpoint, *pattern, **options):
    matrices, _ = Spectrum(checkpoint, pattern or ("*",), **options).matrices()
    return {each.name: singular.decompose(each) for each in matrices}


def sigma(matrix):
    return np.linalg.svd(matrix.astype(np.float64), compute_uv=False)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_precision_is_decomposed_in_float64(tmp_path, dtype):
    A = RNG.normal(size=(9, 6)).astype(dtype)
    (one,) = records(store(tmp_path / "a.safetensors", A=A)).values()
    np.testing.assert_allclose(one.sigma, sigma(A), rtol=1e-13)
    norm = np.linalg.norm(A.astype(np.float64))
    assert one.numbers["frobenius"] == pytest.approx(norm, rel=1e-13)
    assert one.shape == (9, 6)
    assert "trace" not in one.numbers


def test_numbers_of_matrices_in_closed_form(tmp_path):
    orthogonal = np.linalg.qr(RNG.normal(size=(10, 10)))[0]
    rank_one = np.outer(RNG.normal(size=20), RNG.normal(size=30))
    diagonal = np.diag([2.0, -1.0, 1.0, 0.0])
    path = store(tmp_path / "a.safetensors", o=orthogonal, r=rank_one, d=diagonal)
    found = records(path)
    names = ("stable_rank", "effective_rank", "top_share", *DIRECTIONS, "spikes")
    known = lambda name: [found[name].numbers[each] for each in names]
    assert known("o") == pytest.approx([10, 10, 0.1, 5, 9, 10, 0], rel=1e-12)
    assert known("r") == pytest.approx([1, 1, 1, 1, 1, 1, 1], rel=1e-12)
    np.testing.assert_allclose(found["d"].sigma, [2, 1, 1, 0], atol=1e-15)
    # Shares 2/3, 1/6, 1/6 have an entropy of ln 6 - (2/3) ln 4.
    assert known("d") == pytest.approx([1.5, 6 / 4 ** (2 / 3), 2 / 3, 1, 3, 3, 0])
    norms = [found["d"].numbers[name] for name in ("frobenius", "spectral", "trace")]
    assert norms == pytest.approx([6**0.5, 2, 2])
    np.testing.assert_allclose(singular.energy(np.array([1, 0.5])), [0.8, 1])
    assert np.isnan(singular.energy(np.zeros(2))).all()


def test_zero_thin_and_broken_matrices_have_a_status(tmp_path):
    broken = np.ones((3, 4))
    broken[0, 1], broken[2, 2] = np.nan, np.inf
    row, huge = np.array([[3.0, 4.0]]), np.diag([1e200, 1e-200])
    path = store(tmp_path / "a.safetensors", z=np.zeros((3, 3)), b=broken, row=row, huge=huge)
    found = records(path)
    status = {n: r.status.split(" (")[0] for n, r in found.items()}
    assert status == {"z": "zero", "b": "not finite", "row": "ok", "huge": "ok"}
    np.testing.assert_array_equal(found["z"].sigma, np.zeros(3))
    assert found["z"].numbers == {"frobenius": 0, "spectral": 0, "edge": 0, "spikes": 0, "trace": 0}
    assert (found["b"].sigma.size, found["b"].numbers) == (0, {})
    assert found["row"].sigma == pytest.approx([5])
    assert found["row"].numbers["null_stable_rank"] == pytest.approx(1)
    assert found["row"].numbers["spikes"] == 0
    assert found["huge"].numbers["frobenius"] == pytest.approx(1e200)


def test_shards_are_found_by_the_index_or_the_directory(tmp_path):
    A, B = RNG.normal(size=(3, 5)), RNG.normal(size=(5, 5))
    store(tmp_path / "model-1-of-2.safetensors", a=A)
    store(tmp_path / "model-2-of-2.safetensors", b=B)
    index = tmp_path / "model.safetensors.index.json"
    where = {"b": "model-2-of-2.safetensors", "a": "model-1-of-2.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for given in (index, tmp_path):
        found = records(given)
        assert list(found) == ["a", "b"]
        np.testing.assert_allclose(found["a"].sigma, sigma(A))
        np.testing.assert_allclose(found["b"].sigma, sigma(B))
    store(tmp_path / "model.safetensors", whole=A)
    assert list(records(tmp_path)) == ["whole"]


@pytest.mark.parametrize(
    ("options", "heads", "rows"),
    [
        ({"heads": 1}, 1, True),
        ({"heads": 4}, 4, True),
        ({"heads": 2, "fused": "columns"}, 2, False),
        ({}, 1, False),
    ],
)
def test_blocks_are_those_of_the_layout(tmp_path, options, heads, rows):
    """Rows in one piece (nanoGPT), rows by head (GPT-NeoX), columns by head, and columns in one
    piece (GPT-2): joined here as such models read them, with reshape."""
    d = 8
    blocks = [RNG.normal(size=(d, d)) * 10.0**i for i in range(3)]
    # (heads, 3, width of a head, in)
    by_head = np.stack([np.split(block, heads) for block in blocks], axis=1)
    fused = by_head.reshape(3 * d, d)
    path = store(tmp_path / "a.safetensors", qkv=fused if rows else np.ascontiguousarray(fused.T))
    found = records(path, split=3, **options)
    for i, block in enumerate(blocks):
        np.testing.assert_allclose(found[f"qkv[{i}]"].sigma, sigma(block))
        assert found[f"qkv[{i}]"].numbers["trace"] == pytest.approx(np.trace(block))


def test_the_picture_comes_with_its_numbers(tmp_path):
    named = {f"h.{i}.attn": RNG.normal(size=(8, 8)) for i in range(2)}
    nothing = {"nan": np.full((2, 2), np.nan), "zero": np.zeros((3, 2))}
    path, out = store(tmp_path / "a.safetensors", **named, **nothing), tmp_path / "out"
    assert cli.main(["spectrum", "--checkpoint", str(path), "--out", str(out)]) == 0
    with np.load(out / "spectrum.npz", allow_pickle=False) as archive:
        kept = dict(archive)
    assert list(kept["names"]) == [*named, *nothing]
    stable = [np.linalg.norm(A) ** 2 / np.linalg.norm(A, 2) ** 2 for A in named.values()]
    np.testing.assert_allclose(kept["stable_rank"], stable + [np.nan] * 2)
    for name, A in named.items():
        np.testing.assert_allclose(kept[f"{name}/sigma"], sigma(A))
        share = np.cumsum(sigma(A) ** 2) / (A**2).sum()
        np.testing.assert_allclose(kept[f"{name}/energy"], share)
    with (out / "spectrum.csv").open() as file:
        rows = [*csv.DictReader(file)]
    for row, A in zip(rows, named.values(), strict=False):
        assert float(row["spectral"]) == pytest.approx(sigma(A)[0])
    assert len(rows) == 4
    assert (out / "spectrum.png").stat().st_size > 10_000


def test_the_null_of_small_matrices_has_the_quantiles_of_marchenko_and_pastur():
    """Of 20 x 5 and, with the quarter circle, 6 x 6; eigenvalues in units of their mean."""
    for m, n, share in ((20, 5, 0.25), (5, 20, 0.25), (6, 6, 1.0)):
        low, high = (1 - share**0.5) ** 2, (1 + share**0.5) ** 2
        density = lambda x: np.sqrt((high - x) * (x - low)) / (2 * np.pi * share * x)  # noqa: B023
        below = lambda x: integrate.quad(density, low, x)[0]  # noqa: B023
        assert below(high) == pytest.approx(1, abs=1e-6)
        r = min(m, n)
        parts = 1 - (np.arange(r) + 0.5) / r
        roots = [optimize.brentq(lambda x: below(x) - part, low, high) for part in parts]  # noqa: B023
        want = np.sqrt(roots)
        found = singular.null(3.0, m, n)
        np.testing.assert_allclose(found, 3 * want / np.linalg.norm(want), rtol=1e-6)
        edge = 3 / np.sqrt(m * n) * (np.sqrt(m) + np.sqrt(n))
        assert singular.bulk_edge(3.0, m, n) == pytest.approx(edge, rel=1e-12)
