"""Singular values of a checkpoint: against numpy and closed forms, for every way of storing it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sweeps.studies.spectrum import checkpoint as singular
from sweeps.studies.spectrum import figure
from sweeps.studies.spectrum.checkpoint import Record, report, summary
from sweeps.studies.spectrum.weights import Tensor

RNG = np.random.default_rng(5)


def store(path: Path, **named: np.ndarray) -> Path:
    save_file({name: np.ascontiguousarray(array) for name, array in named.items()}, path)
    return path


def records(checkpoint: Path, *pattern: str, **options: object) -> dict[str, Record]:
    found = report(checkpoint, pattern or ("*",), **options)
    return {record.name: record for record in found.records}


def sigma(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix.astype(np.float64), compute_uv=False)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_precision_is_decomposed_in_float64(tmp_path: Path, dtype: type) -> None:
    A = RNG.normal(size=(9, 6)).astype(dtype)
    (one,) = records(store(tmp_path / "a.safetensors", A=A)).values()
    np.testing.assert_allclose(one.sigma, sigma(A), rtol=1e-13)
    assert one.numbers.frobenius == pytest.approx(np.linalg.norm(A.astype(np.float64)), rel=1e-13)
    assert one.shape == (9, 6)
    assert one.trace is None


def test_numbers_of_matrices_in_closed_form(tmp_path: Path) -> None:
    orthogonal = np.linalg.qr(RNG.normal(size=(10, 10)))[0]
    rank_one = np.outer(RNG.normal(size=20), RNG.normal(size=30))
    diagonal = np.diag([2.0, -1.0, 1.0, 0.0])
    path = store(tmp_path / "a.safetensors", o=orthogonal, r=rank_one, d=diagonal)
    found = records(path)
    o, r, d = (found[name].numbers for name in "ord")
    assert (o.stable_rank, o.effective_rank) == pytest.approx((10, 10), rel=1e-12)
    assert o.directions == (5, 9, 10)
    assert found["o"].spikes == 0
    assert (r.stable_rank, r.effective_rank, r.top_share) == pytest.approx((1, 1, 1), rel=1e-12)
    assert r.directions == (1, 1, 1)
    assert found["r"].spikes == 1
    np.testing.assert_allclose(found["d"].sigma, [2, 1, 1, 0], atol=1e-15)
    assert (d.frobenius**2, d.spectral, d.stable_rank) == pytest.approx((6, 2, 1.5))
    # Shares 2/3, 1/6, 1/6 have an entropy of ln 6 - (2/3) ln 4.
    assert d.effective_rank == pytest.approx(6 / 4 ** (2 / 3))
    assert d.directions == (1, 3, 3)
    assert d.top_share == pytest.approx(2 / 3)
    assert found["d"].trace == pytest.approx(2)
    np.testing.assert_allclose(singular.energy(np.array([1, 0.5])), [0.8, 1])
    assert np.isnan(singular.energy(np.zeros(2))).all()


@pytest.mark.parametrize(
    ("m", "n", "inner"),
    [
        (400, 150, None),
        (200, 200, 300),
        pytest.param(300, 300, None, marks=pytest.mark.full),
        pytest.param(300, 250, 60, marks=pytest.mark.full),
    ],
)
def test_the_null_is_a_random_matrix(m: int, n: int, inner: int | None) -> None:
    draw = RNG.normal(size=(m, inner or n))
    if inner is not None:
        draw = draw @ RNG.normal(size=(inner, n))
    values, norm = sigma(draw), float(np.linalg.norm(draw))
    expected, edge = singular.null(norm, m, n, inner), singular.edge(norm, m, n, inner)
    assert np.abs(expected - values).max() < 0.05 * values[0]
    assert values[0] == pytest.approx(edge, rel=0.06)
    if inner is None:
        s = norm / np.sqrt(m * n)
        assert edge == pytest.approx(s * (np.sqrt(m) + np.sqrt(n)), rel=1e-12)
        # Page's entropy of a random state, ln r - r / (2 max), for large matrices.
        r, most = min(m, n), max(m, n)
        page = r * np.exp(-r / (2 * most))
        assert singular.numbers(expected).effective_rank == pytest.approx(page, rel=2e-3)
    planted = np.linalg.qr(RNG.normal(size=(m, 3)))[0] @ np.linalg.qr(RNG.normal(size=(n, 3)))[0].T
    spiked = sigma(draw + 3 * edge * planted)
    assert (spiked > singular.edge(float(np.linalg.norm(spiked)), m, n, inner)).sum() == 3


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
    assert found["z"].numbers.directions == (0, 0, 0)
    assert np.isnan(found["z"].numbers.stable_rank)
    assert (found["z"].trace, found["z"].spikes) == (0, 0)
    assert found["b"].sigma.size == 0
    assert not hasattr(found["b"], "numbers")
    assert found["row"].sigma == pytest.approx([5])
    assert found["row"].null.stable_rank == pytest.approx(1)
    assert found["row"].spikes == 0
    assert found["huge"].numbers.frobenius == pytest.approx(1e200)


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
    found = report(path, ("*.10.*", "*Attn*"))
    assert [r.name for r in found.records] == [f"h.{i}.Attn.weight" for i in (0, 2, 10)]
    reasons = {s.name.rsplit(".")[-1]: (s.shape, s.reason) for s in found.skipped}
    assert reasons["bias"] == ((2,), "is 1-D, not 2-D")
    assert reasons["mask"] == ((1, 1, 2, 2), "is 4-D, not 2-D")
    assert "dtype I64" in reasons["ids"][1]
    assert "dtype F8_E4M3" in reasons["f8"][1]
    assert reasons["empty"][1] == "has no entries"
    assert len(reasons) == 5


def test_only_the_chosen_tensors_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path / "a.safetensors", a=np.eye(2), b=np.eye(3), c=np.eye(4))
    read, shown = [], []

    def each(items: list[Any], unit: str, name: Callable[[Any], str]) -> list[Any]:
        shown.extend((unit, name(item)) for item in items)
        return items

    monkeypatch.setattr(singular.progress, "each", each)
    original = Tensor.read
    monkeypatch.setattr(Tensor, "read", lambda self: read.append(self.name) or original(self))
    records(path, "b", products=("c @ c.T",))
    assert read == ["b", "c", "c.T"]
    assert shown == [("matrix", "b"), ("matrix", "c @ c.T")]


def test_shards_are_found_by_the_index_or_the_directory(tmp_path: Path) -> None:
    A, B = RNG.normal(size=(3, 5)), RNG.normal(size=(5, 5))
    store(tmp_path / "model-1-of-2.safetensors", a=A)
    store(tmp_path / "model-2-of-2.safetensors", b=B)
    index = tmp_path / "model.safetensors.index.json"
    where = {"b": "model-2-of-2.safetensors", "a": "model-1-of-2.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for given in (index, tmp_path):
        found = records(given, products=("a @ b",))
        assert list(found) == ["a", "b", "a @ b"]
        np.testing.assert_allclose(found["a"].sigma, sigma(A))
        np.testing.assert_allclose(found["a @ b"].sigma, sigma(A @ B))
    store(tmp_path / "model.safetensors", whole=A)
    assert list(records(tmp_path)) == ["whole"]


def test_fused_matrices_are_cut_into_columns(tmp_path: Path) -> None:
    fused = RNG.normal(size=(4, 12)).astype(np.float32)
    path = store(tmp_path / "a.safetensors", **{"h.0.c_attn": fused})
    product = "h.*.c_attn[0] @ h.*.c_attn[1].T"
    found = records(path, split=3, products=(product,))
    parts = np.split(fused.astype(np.float64), 3, axis=1)
    for i, part in enumerate(parts):
        np.testing.assert_allclose(found[f"h.0.c_attn[{i}]"].sigma, sigma(part))
        assert found[f"h.0.c_attn[{i}]"].trace == pytest.approx(np.trace(part))
    scores = found["h.0.c_attn[0] @ h.0.c_attn[1].T"]
    np.testing.assert_allclose(scores.sigma, sigma(parts[0] @ parts[1].T), rtol=1e-10)


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
    product = "qkv[0].T @ qkv[1]" if rows else "qkv[0] @ qkv[1].T"
    found = records(path, split=3, products=(product,), **options)
    for i, block in enumerate(blocks):
        np.testing.assert_allclose(found[f"qkv[{i}]"].sigma, sigma(block))
        assert found[f"qkv[{i}]"].trace == pytest.approx(np.trace(block))
    np.testing.assert_allclose(
        found[product].sigma, sigma(blocks[0].T @ blocks[1]), atol=1e-12 * sigma(blocks[1])[0]
    )


def test_gates_of_another_shape_are_told_by_options(tmp_path: Path) -> None:
    """Two (11, 4) matrices over each other, as gate and up of an MLP."""
    gate, up = RNG.normal(size=(2, 11, 4))
    path = store(tmp_path / "a.safetensors", gate_up=np.concatenate([gate, up]))
    found = records(path, split=2, fused="rows", heads=1)
    np.testing.assert_allclose(found["gate_up[0]"].sigma, sigma(gate))
    np.testing.assert_allclose(found["gate_up[1]"].sigma, sigma(up))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((24, 8), {}, r"split = 3: the shape of A, \(24, 8\), does not tell how its rows"),
        ((24, 8), {"fused": "rows"}, "set heads = 1 if each block is in one piece"),
        ((24, 24), {}, "does not tell whether rows or columns are fused"),
        # Fewer heads of keys and values than of queries: 4 + 1 + 1.
        ((12, 8), {"heads": 1}, "does not tell whether rows or columns are fused"),
        ((8, 24), {"heads": 5}, r"split \* heads = 3 \* 5: must divide the number of columns"),
        ((8, 24), {"heads": 0}, "heads = 0: must be an integer >= 1"),
        ((8, 8), {"fused": "rows", "heads": 1}, "split = 3: must divide the number of rows"),
        ((8, 24), {"split": 1, "heads": 2}, "heads = 2: describes fused matrices"),
    ],
)
def test_a_layout_that_nothing_tells_is_refused(
    tmp_path: Path, shape: tuple[int, int], options: dict, message: str
) -> None:
    path = store(tmp_path / "a.safetensors", A=np.ones(shape))
    with pytest.raises(ValueError, match=message):
        report(path, ("*",), **({"split": 3} | options))


def test_products_pair_what_the_stars_stand_for(tmp_path: Path) -> None:
    # (out, in) = (3, 8), as PyTorch stores it: thin factors of an (8, 8) matrix of scores.
    named = {
        f"layers.{i}.{kind}_proj.weight": RNG.normal(size=(3, 8))
        for i in (0, 1, 10)
        for kind in "qk"
    }
    left = {f"layers.{i}_proj.weight": np.ones((3, 8)) for i in ("7.q", "8.k")}
    path = store(tmp_path / "a.safetensors", **named, **left)
    product = "layers.*.q_proj.weight.T @ layers.*.k_proj.weight"
    found = report(path, (), (product,))
    names = [f"layers.{i}.q_proj.weight.T @ layers.{i}.k_proj.weight" for i in (0, 1, 10)]
    assert [r.name for r in found.records] == names
    for i, r in zip((0, 1, 10), found.records, strict=True):
        scores = named[f"layers.{i}.q_proj.weight"].T @ named[f"layers.{i}.k_proj.weight"]
        np.testing.assert_allclose(r.sigma, sigma(scores), atol=1e-13)
        assert r.trace == pytest.approx(np.trace(scores))
        assert (r.shape, r.inner) == ((8, 8), 3)
        assert r.edge == pytest.approx(singular.edge(float(np.linalg.norm(scores)), 8, 8, 3))
    assert {skipped.name: skipped.reason for skipped in found.skipped} == {
        "layers.7.q_proj.weight": "nothing in 'layers.*.k_proj.weight' to multiply with",
        "layers.8.k_proj.weight": "nothing in 'layers.*.q_proj.weight' to multiply with",
    }


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"pattern": ("*.nope",)}, ("pattern = '*.nope'", "13 tensors (12 of them 2-D)", "w.0, ")),
        ({"pattern": ("W.*",)}, ("pattern = 'W.*'",)),
        ({"pattern": ()}, ("pattern = ()",)),
        ({"pattern": ("bias",)}, ("none of the 1 tensors", "bias is 1-D")),
        ({"pattern": ("*",), "split": 4}, ("split = 4", "w.0, (2, 3)")),
        ({"split": 0}, ("split = 0",)),
        ({"products": ("w.0",)}, ("products = 'w.0'", "'PATTERN @ PATTERN'")),
        ({"products": ("w.* @ w.0",)}, ("as many *",)),
        ({"products": ("w.0 @ w.1",)}, ("w.0 of shape (2, 3)", "w.1 of shape (2, 3)")),
        ({"products": ("w.* @ v.*",)}, ("'v.*'", "matches none")),
        ({"products": ("w.1* @ *as.T",)}, ("agree in none",)),
        ({"products": ("w.0[1] @ w.1.T",)}, ("block 1 must be below split = 1",)),
    ],
)
def test_bad_choices(tmp_path: Path, options: dict, messages: tuple[str, ...]) -> None:
    named = {f"w.{i}": np.ones((2, 3)) for i in range(12)}
    path = store(tmp_path / "a.safetensors", **named, bias=np.ones(3))
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"^(pattern|products|split)\b") as caught:
        figure.run(figure.Spectrum(path, **options, out=out))
    for message in messages:
        assert message in str(caught.value)
    assert "w.11" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("number", [10, 11])
def test_messages_list_ten_names(tmp_path: Path, number: int) -> None:
    names = [f"w.{i}" for i in range(number)]
    path = store(tmp_path / "a.safetensors", **{name: np.ones(2) for name in names})
    listed = ", ".join(names[:10]) + ", ..." * (number > 10)
    with pytest.raises(ValueError, match=r"matches none of") as caught:
        report(path, ("v",))
    assert str(caught.value).endswith(f"the {number} tensors (0 of them 2-D); there are {listed}")
    with pytest.raises(ValueError, match=r"w\.9 is 1-D, not 2-D$"):
        report(path, ("w.*",))
    for i in range(number - 1):
        store(tmp_path / f"b{i:02}.safetensors", a=np.eye(2))
    with pytest.raises(ValueError, match=r"a\.safetensors, b00.*, b08\.safetensors$"):
        report(tmp_path, ("*",))


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
            report(path, ["*"])
        assert name in str(caught.value)
    with pytest.raises(ValueError, match=r"choose one of cut\.safetensors"):
        report(tmp_path, ["*"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"must contain a \.safetensors or"):
        report(tmp_path / "folder", ["*"])


def test_the_table_has_a_line_for_each_matrix_with_the_null_behind_a_slash(tmp_path: Path) -> None:
    diagonal, broken = np.diag([2.0, -1.0, 1.0, 0.0]), np.full((2, 3), np.nan)
    named = {"d": diagonal, "wide": diagonal[:3], "broken": broken, "bias": np.ones(3)}
    found = report(store(tmp_path / "a.safetensors", **named), ("*",))
    header, *lines = singular.table(found).splitlines()
    assert header == (
        "matrix         shape     |A|_F   sigma_1       stable rank    effective rank"
        "  50 / 90 / 99 % in         top % spikes      trace"
    )
    by_name = {line.split()[0]: line for line in lines if line}
    assert re.split(r"\s{2,}", by_name["broken"]) == ["broken", "2 x 3 not finite (6 of 6 entries)"]
    records = {r.name: r for r in found.records if isinstance(r, singular.Decomposed)}
    for name, trace in (("d", "2"), ("wide", "-")):
        null = records[name].null
        assert len(by_name[name]) == len(header)
        assert re.split(r"\s{2,}", by_name[name]) == [
            name,
            f"{len(named[name])} x 4",
            "2.449",
            "2",
            f"1.5 / {null.stable_rank:.1f}",
            # 6 / 4^(2/3).
            f"2.4 / {null.effective_rank:.1f}",
            "1 / 3 / 3",
            f"66.7 / {100 * null.top_share:.1f}",
            str(records[name].spikes),
            trace,
        ]
    assert lines[-2:] == ["skipped 1:", "  bias (3,) F64: is 1-D, not 2-D"]


def test_arrays_of_matrices_without_singular_values_are_not_numbers(tmp_path: Path) -> None:
    matrix = np.arange(12.0).reshape(3, 4) % 5
    named = {"a": matrix, "b": np.full((2, 2), np.inf), "c": matrix[:, :3]}
    found = report(store(tmp_path / "a.safetensors", **named), ("*",))
    kept, (first, _, last) = singular.arrays(found), found.records
    assert isinstance(first, singular.Decomposed)
    assert isinstance(last, singular.Decomposed)
    np.testing.assert_array_equal(kept["names"], ["a", "b", "c"])
    stable = [np.linalg.norm(A) ** 2 / np.linalg.norm(A, 2) ** 2 for A in (matrix, matrix[:, :3])]
    np.testing.assert_allclose(kept["stable_rank"], [stable[0], np.nan, stable[1]])
    np.testing.assert_allclose(kept["trace"], [np.nan, np.nan, np.trace(matrix[:, :3])])
    edges = [np.linalg.norm(A) * (3**-0.5 + A.shape[1] ** -0.5) for A in (matrix, matrix[:, :3])]
    np.testing.assert_allclose(kept["edge"], [edges[0], np.nan, edges[1]])
    nulls = [r.null.stable_rank for r in (first, last)]
    np.testing.assert_allclose(kept["null_stable_rank"], [nulls[0], np.nan, nulls[1]])
    np.testing.assert_allclose(kept["a/null_sigma"], first.null_sigma)
    assert "b/sigma" not in kept
    by_name = {m["name"]: m for m in summary(found)["matrices"]}
    assert [by_name["b"][n] for n in ("numbers", "null", "edge", "spikes")] == [None] * 4
    assert not {"sigma", "null_sigma"} & by_name["a"].keys()


@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.full)])
def test_the_picture_comes_with_its_numbers(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {f"h.{i}.attn": RNG.normal(size=(8, 8)) for i in range(count)}
    nothing = {"nan": np.full((2, 2), np.nan), "zero": np.zeros((3, 2))} if count > 1 else {}
    path = store(tmp_path / "a.safetensors", **named, **nothing)
    paths = figure.run(figure.Spectrum(path, out=tmp_path / "out"))
    assert {p.name for p in paths} == {"spectrum.png", "spectrum.npz", "spectrum.json"}
    with np.load(tmp_path / "out/spectrum.npz", allow_pickle=False) as archive:
        kept = dict(archive)
    order = [*(f"h.{i}.attn" for i in range(count)), *nothing]
    assert list(kept["names"]) == order
    np.testing.assert_allclose(kept["trace"][:count], [np.trace(A) for A in named.values()])
    for name, A in named.items():
        np.testing.assert_allclose(kept[f"{name}/sigma"], sigma(A))
        share = np.cumsum(sigma(A) ** 2) / (A**2).sum()
        np.testing.assert_allclose(kept[f"{name}/energy"], share)
    written = json.loads((tmp_path / "out/spectrum.json").read_text())
    asked = {"checkpoint": str(path), "pattern": ["*"], "products": [], "split": 1}
    asked |= {"fused": None, "heads": None}
    assert written == asked | summary(report(path, ["*"]))
    assert [m["name"] for m in written["matrices"]] == order
    assert written["matrices"][0]["numbers"]["spectral"] == pytest.approx(
        sigma(named["h.0.attn"])[0]
    )
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("h.") for line in lines) == count


def test_the_null_of_small_matrices_has_the_quantiles_of_marchenko_and_pastur() -> None:
    """Of 20 x 5 and, with the quarter circle, 6 x 6; eigenvalues in units of their mean."""
    for m, n, share in ((20, 5, 0.25), (5, 20, 0.25), (6, 6, 1.0)):
        low, high = (1 - share**0.5) ** 2, (1 + share**0.5) ** 2
        # By x = low + (high - low) sin^2, which is smooth at both ends.
        angle = (np.arange(200_000) + 0.5) / 200_000 * np.pi / 2
        x = low + (high - low) * np.sin(angle) ** 2
        density = np.sqrt((high - x) * (x - low)) / (2 * np.pi * share * x)
        below = np.cumsum(density * (high - low) * np.sin(2 * angle)) * np.pi / 400_000
        assert below[-1] == pytest.approx(1, abs=1e-4)
        r = min(m, n)
        want = np.sqrt(np.interp(1 - (np.arange(r) + 0.5) / r, below, x))
        found = singular.null(3.0, m, n)
        # The law is known at 2000 points.
        np.testing.assert_allclose(found, 3 * want / np.linalg.norm(want), rtol=2e-3)


def test_the_null_of_a_product_has_the_moments_of_fuss_and_catalan() -> None:
    """1, 3 and 12 of square factors, and an edge of 27 / 4; thin factors leave zeros."""
    x = singular.null(1.0, 400, 400, 400) ** 2 * 400
    assert (x.mean(), (x**2).mean()) == pytest.approx((1, 3), rel=2e-3)
    assert (x**3).mean() == pytest.approx(12, rel=5e-3)
    assert singular.edge(2.0, 9, 9, 9) == pytest.approx(2 * np.sqrt(27 / 4 / 9))
    thin = singular.null(1.0, 7, 6, 2)
    assert (thin[:2] > 0).all()
    assert (thin[2:] == 0).all()
    assert thin.size == 6
