"""Singular values of a checkpoint: against numpy and closed forms, for every way of storing it."""

import csv
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import integrate, optimize

from sweeps import cli
from sweeps.studies.spectrum import singular
from sweeps.studies.spectrum.figure import Spectrum
from sweeps.studies.spectrum.singular import Record
from sweeps.studies.spectrum.weights import tensors

RNG = np.random.default_rng(5)
DIRECTIONS = ("directions_50", "directions_90", "directions_99")


def store(path: Path, **named: np.ndarray) -> Path:
    save_file({name: np.ascontiguousarray(array) for name, array in named.items()}, path)
    return path


def records(checkpoint: Path, *pattern: str, **options: Any) -> dict[str, Record]:
    matrices, _ = Spectrum(checkpoint, pattern or ("*",), **options).matrices()
    return {each.name: singular.decomposed(each) for each in matrices}


def sigma(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix.astype(np.float64), compute_uv=False)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_precision_is_decomposed_in_float64(tmp_path: Path, dtype: type) -> None:
    A = RNG.normal(size=(9, 6)).astype(dtype)
    (one,) = records(store(tmp_path / "a.safetensors", A=A)).values()
    np.testing.assert_allclose(one.sigma, sigma(A), rtol=1e-13)
    assert one.numbers["frobenius"] == pytest.approx(
        np.linalg.norm(A.astype(np.float64)), rel=1e-13
    )
    assert one.shape == (9, 6)
    assert "trace" not in one.numbers


def test_numbers_of_matrices_in_closed_form(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("m", "n"), [(240, 90), pytest.param(300, 300, marks=pytest.mark.full)])
def test_the_null_is_a_random_matrix(m: int, n: int) -> None:
    draw = RNG.normal(size=(m, n))
    values, norm = sigma(draw), float(np.linalg.norm(draw))
    expected, edge = singular.null(norm, m, n), singular.edge(norm, m, n)
    assert np.abs(expected - values).max() < 0.05 * values[0]
    assert values[0] == pytest.approx(edge, rel=0.06)
    s = norm / np.sqrt(m * n)
    assert edge == pytest.approx(s * (np.sqrt(m) + np.sqrt(n)), rel=1e-12)
    # Page's entropy of a random state, ln r - r / (2 max), for large matrices.
    r, most = min(m, n), max(m, n)
    page = r * np.exp(-r / (2 * most))
    assert singular.summary(expected)["effective_rank"] == pytest.approx(page, rel=2e-3)
    planted = np.linalg.qr(RNG.normal(size=(m, 3)))[0] @ np.linalg.qr(RNG.normal(size=(n, 3)))[0].T
    spiked = sigma(draw + 3 * edge * planted)
    assert (spiked > singular.edge(float(np.linalg.norm(spiked)), m, n)).sum() == 3


def test_zero_thin_and_broken_matrices_have_a_status(tmp_path: Path) -> None:
    broken = np.ones((3, 4))
    broken[0, 1], broken[2, 2] = np.nan, np.inf
    row, huge = np.array([[3.0, 4.0]]), np.diag([1e200, 1e-200])
    path = store(tmp_path / "a.safetensors", z=np.zeros((3, 3)), b=broken, row=row, huge=huge)
    found = records(path)
    assert {n: r.status for n, r in found.items()} == {
        "z": "zero",
        "b": "not finite (2 of 12 entries)",
        "row": "ok",
        "huge": "ok",
    }
    np.testing.assert_array_equal(found["z"].sigma, np.zeros(3))
    assert found["z"].numbers == {"frobenius": 0, "spectral": 0, "edge": 0, "spikes": 0, "trace": 0}
    assert (found["b"].sigma.size, found["b"].numbers) == (0, {})
    assert found["row"].sigma == pytest.approx([5])
    assert found["row"].numbers["null_stable_rank"] == pytest.approx(1)
    assert found["row"].numbers["spikes"] == 0
    assert found["huge"].numbers["frobenius"] == pytest.approx(1e200)


def test_patterns_choose_and_the_rest_is_skipped_with_a_reason(tmp_path: Path) -> None:
    eye = np.eye(2)
    layers = {f"h.{i}.Attn.weight": eye for i in (0, 2, 10)}
    others = {
        "h.0.Attn.bias": np.ones(2),
        "h.0.Attn.mask": np.ones((1, 1, 2, 2)),
        "h.0.Attn.ids": np.ones((2, 2), np.int64),
        "h.0.Attn.f8": np.ones((2, 2), ml_dtypes.float8_e4m3fn),
        "h.0.Attn.empty": np.ones((0, 2)),
    }
    path = store(tmp_path / "a.safetensors", **layers, **others, mlp=eye)
    matrices, skipped = Spectrum(path, ("*.10.*", "*Attn*")).matrices()
    assert [each.name for each in matrices] == [f"h.{i}.Attn.weight" for i in (0, 2, 10)]
    reasons = {t.name.rsplit(".")[-1]: (t.shape, t.obstacle) for t in skipped}
    assert reasons["bias"] == ((2,), "is 1-D, not 2-D")
    assert reasons["mask"] == ((1, 1, 2, 2), "is 4-D, not 2-D")
    assert "dtype I64" in reasons["ids"][1]
    assert "dtype F8_E4M3" in reasons["f8"][1]
    assert reasons["empty"][1] == "has no entries"
    assert len(reasons) == 5


def test_shards_are_found_by_the_index_or_the_directory(tmp_path: Path) -> None:
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
def test_blocks_are_those_of_the_layout(
    tmp_path: Path, options: dict, heads: int, rows: bool
) -> None:
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


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((24, 8), {}, r"split = 3: the shape of A, \(24, 8\), does not tell how its rows"),
        ((24, 24), {}, "does not tell whether rows or columns are fused"),
        # Fewer heads of keys and values than of queries: 4 + 1 + 1.
        ((12, 8), {"heads": 1}, "does not tell whether rows or columns are fused"),
        ((8, 24), {"heads": 5}, r"split \* heads = 3 \* 5: must divide the number of columns"),
        ((8, 8), {"fused": "rows", "heads": 1}, "split = 3: must divide the number of rows"),
        ((8, 24), {"split": 1, "heads": 2}, "heads = 2: describes fused matrices"),
    ],
)
def test_a_layout_that_nothing_tells_is_refused(
    tmp_path: Path, shape: tuple[int, int], options: dict, message: str
) -> None:
    path = store(tmp_path / "a.safetensors", A=np.ones(shape))
    with pytest.raises(ValueError, match=message):
        Spectrum(path, **({"split": 3} | options)).matrices()


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"pattern": ("*.nope",)}, ("pattern = '*.nope'", "13 tensors (12 of them 2-D)", "w.0, ")),
        ({"pattern": ("bias",)}, ("none of the 1 tensors", "bias is 1-D")),
        ({"pattern": ("*",), "split": 4}, ("split = 4", "w.0, (2, 3)")),
    ],
)
def test_bad_choices(tmp_path: Path, options: dict, messages: tuple[str, ...]) -> None:
    named = {f"w.{i}": np.ones((2, 3)) for i in range(12)}
    path = store(tmp_path / "a.safetensors", **named, bias=np.ones(3))
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"^(pattern|split)\b") as caught:
        Spectrum(path, **options, out=out).save()
    for message in messages:
        assert message in str(caught.value)
    assert "w.11" not in str(caught.value)
    assert not out.exists()


def test_files_that_are_none(tmp_path: Path) -> None:
    whole = store(tmp_path / "whole.safetensors", a=np.eye(4)).read_bytes()
    cases = {
        "empty.safetensors": (b"", "0 bytes"),
        "text.safetensors": (b"this is not a tensor of any kind", "cannot be read"),
        "cut.safetensors": (whole[:-5], "cannot be read"),
        "list.json": (b"[]", "weight_map"),
        "broken.json": (b"{", "weight_map"),
        "away.json": (b'{"weight_map": {"a": "../x.safetensors"}}', "next to the index"),
        "lost.json": (b'{"weight_map": {"a": "x.safetensors"}}', "'x.safetensors': does not"),
        "stale.json": (b'{"weight_map": {"b": "whole.safetensors"}}', "tensor 'b' is not in whole"),
        "missing.safetensors": (None, "does not exist"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            tensors(path)
        assert name in str(caught.value)
    with pytest.raises(ValueError, match=r"choose one of cut\.safetensors"):
        tensors(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"must contain a \.safetensors or"):
        tensors(tmp_path / "folder")


@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.full)])
def test_the_picture_comes_with_its_numbers(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {f"h.{i}.attn": RNG.normal(size=(8, 8)) for i in range(count)}
    nothing = {"nan": np.full((2, 2), np.nan), "zero": np.zeros((3, 2))} if count > 1 else {}
    path = store(tmp_path / "a.safetensors", **named, **nothing)
    assert cli.main(["spectrum", "--checkpoint", str(path), "--out", str(tmp_path / "out")]) == 0
    with np.load(tmp_path / "out/spectrum.npz", allow_pickle=False) as archive:
        kept = dict(archive)
    assert list(kept["names"]) == [*named, *nothing]
    np.testing.assert_allclose(kept["trace"][:count], [np.trace(A) for A in named.values()])
    stable = [np.linalg.norm(A) ** 2 / np.linalg.norm(A, 2) ** 2 for A in named.values()]
    np.testing.assert_allclose(kept["stable_rank"], stable + [np.nan] * len(nothing))
    for name, A in named.items():
        np.testing.assert_allclose(kept[f"{name}/sigma"], sigma(A))
        share = np.cumsum(sigma(A) ** 2) / (A**2).sum()
        np.testing.assert_allclose(kept[f"{name}/energy"], share)
    with (tmp_path / "out/spectrum.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["matrix"] for row in rows] == [*named, *nothing]
    assert float(rows[0]["spectral"]) == pytest.approx(sigma(named["h.0.attn"])[0])
    assert sum(line.startswith("h.") for line in capsys.readouterr().out.splitlines()) == count


def test_the_null_of_small_matrices_has_the_quantiles_of_marchenko_and_pastur() -> None:
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
