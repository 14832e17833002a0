"""Arrays of a store, against zarr, published numbers, and both sides of every limit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from sweeps.runner.store import LARGEST, StoreError, manifest
from sweeps.runner.store.arrays import Array, checksum, described, unpacked
from sweeps.runner.store.place import place
from sweeps.runner.store.store import Store

UNKNOWN = {"bool": True, "int8": -1, "int32": -1, "uint16": 0}
"""What is not computed, by type; NaN in all others."""


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "int32", "uint16", "float16", "float64", "complex64"]
)
def test_zarr_reads_chunks_and_what_is_not_there(kind: str, tmp_path: Path) -> None:
    """The second chunk of five values in chunks of three is there, but for its padding."""
    values = np.array([1, 0]).astype(kind)
    array = Array(("eta",), (5,), (3,), np.dtype(kind), {"units": "1"})
    (tmp_path / "zarr.json").write_text(json.dumps(array.metadata()))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1").write_bytes(array.encoded(values))
    found: Any = zarr.open_array(tmp_path, mode="r")
    want = np.append(np.full(3, UNKNOWN.get(kind, np.nan), kind), values)
    np.testing.assert_array_equal(found[:], want, strict=True)
    assert found.attrs.asdict() == {"units": "1"}
    np.testing.assert_array_equal(array.decoded(array.encoded(values))[:2], values, strict=True)
    assert described(json.loads(json.dumps(array.metadata()))) == array


def test_zarr_reads_a_single_number_and_words(tmp_path: Path) -> None:
    """A single time has no axis, and words are text of their longest."""
    arrays = {"time": np.array(7.0), "rule": np.array(["sgd", "adam"])}
    for name, values in arrays.items():
        dims = ("rule",)[: values.ndim]
        array = Array(dims, values.shape, values.shape, values.dtype)
        about = array.metadata()
        assert ("dimension_names" in about) == bool(dims)
        (tmp_path / name / "c").mkdir(parents=True)
        (tmp_path / name / "zarr.json").write_text(json.dumps(about))
        file = tmp_path / name / "/".join(("c", *"0" * values.ndim))
        if not dims:
            file.rmdir()
        file.write_bytes(array.encoded(values))
        found: Any = zarr.open_array(tmp_path / name, mode="r")
        np.testing.assert_array_equal(found[...], values)
        assert described(json.loads(json.dumps(about))) == array


@pytest.mark.parametrize(
    ("kind", "data_type", "endian", "fill"),
    [
        ("f4", "float32", True, "NaN"),
        ("c8", "complex64", True, ["NaN", 0.0]),
        ("i1", "int8", False, -1),
        ("u2", "uint16", True, 0),
        ("?", "bool", False, True),
        ("U3", {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}}, True, ""),
    ],
)
def test_the_metadata_of_format_5_stays_as_it_is(
    kind: str, data_type: Any, endian: bool, fill: Any
) -> None:
    """Word by word: a version with others would reject the stores of this one."""
    order = {"configuration": {"endian": "little"}} if endian else {}
    assert Array(("a", "b"), (5, 4), (2, 4), np.dtype(kind), {"units": "1"}).metadata() == {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [5, 4],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [
            {"name": "bytes", **order},
            {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
            {"name": "crc32c"},
        ],
        "attributes": {"units": "1"},
        "dimension_names": ["a", "b"],
        "storage_transformers": [],
    }


@pytest.mark.parametrize(
    ("shape", "chunk", "kind", "known"),
    [
        ((2**40,), (2**20,), "uint8", True),
        ((2**40 + 1,), (2**20,), "uint8", False),
        ((2**20, 2**20), (2**10, 2**10), "uint8", True),
        ((2**20, 2**20 + 1), (2**10, 2**10), "uint8", False),
        ((2**24,), (1,), "float64", True),
        ((2**24 + 1,), (1,), "float64", False),
        # The last chunk may be smaller.
        ((3 * 2**24 - 1,), (3,), "float64", True),
        ((2**31,), (2**31 - 1,), "uint8", True),
        ((2**31,), (2**31,), "uint8", False),
        ((2**31,), (2**28 - 1,), "float64", True),
        ((2**31,), (2**28,), "float64", False),
        ((0, 3), (1, 1), "int8", True),
        ((-1, 3), (1, 1), "int8", False),
        ((2, 3), (1, 0), "int8", False),
        ((2, 3), (1,), "int8", False),
        ((2, True), (1, 1), "int8", False),
        ((2.0, 3), (1, 1), "int8", False),
        ((2, 3), (1, 1), "int128", False),
        ((2, 3), (1, 1), "float8", False),
    ],
)
def test_arrays_have_a_largest_size(
    shape: tuple[int, ...], chunk: tuple[int, ...], kind: str, known: bool
) -> None:
    about = Array(("a", "b")[: len(shape)], shape, chunk, np.dtype("i1")).metadata()
    about |= {"data_type": kind, "fill_value": 0}
    width = np.dtype(kind).itemsize if known or kind in ("uint8", "float64") else 1
    if width > 1:
        about["codecs"][0]["configuration"] = {"endian": "little"}
    if not known:
        with pytest.raises((ValueError, TypeError)):
            described(about)
        return
    found = described(about)
    assert (found.shape, found.chunk, found.dtype) == (shape, chunk, np.dtype(kind))


def test_an_array_is_read_from_all_of_its_chunks() -> None:
    values = np.arange(20, dtype="f4").reshape(5, 4)
    array = Array(("a", "b"), (5, 4), (2, 4), values.dtype)
    files = {f"c/{i}/0": array.encoded(values[2 * i : 2 * i + 2]) for i in range(3)}
    np.testing.assert_array_equal(array.whole(files, 32), values)
    without = {key: value for key, value in files.items() if key != "c/1/0"}
    for there, most in ((files, 31), (without, 32), (files | {"c/3/0": b""}, 32)):
        with pytest.raises(ValueError, match="its size does not match its array"):
            array.whole(there, most)
    with pytest.raises(LookupError):
        array.whole(without | {"c/3/0": files["c/1/0"]}, 32)
    # What is not there is left empty.
    places = [np.array([4, 1, 2]), np.array([3, 0])]
    chunks = {(0, 0): values[:2], (2, 0): np.concatenate([values[4:], values[:1]])}
    found = array.select(places, chunks.get)
    want = values[np.ix_(*places)]
    want[2] = np.nan
    np.testing.assert_array_equal(found, want)


def test_what_an_array_is_filled_with_is_known() -> None:
    about = Array(("a",), (3,), (3,), np.dtype("f4")).metadata()
    for fill in ("NaN", 0, ""):
        assert described(about | {"fill_value": fill}).shape == (3,)
    for fill in (1, "Infinity", None):
        with pytest.raises(ValueError, match="fill_value"):
            described(about | {"fill_value": fill})


FRAME = b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize("ids", range(4))
@pytest.mark.parametrize("width", range(4))
@pytest.mark.parametrize("single", [False, True])
def test_the_size_of_a_frame_is_where_the_standard_has_it(
    single: bool, width: int, ids: int
) -> None:
    """RFC 8878, 3.1.1.1: descriptor, a window unless there is a single segment, and a dictionary of
    0, 1, 2 or 4 bytes; then the size in 0 bytes, or 1 of a single segment, 2, of which 256 are left
    out, 4 or 8."""
    head = bytes([width << 6 | single << 5 | ids])
    between = b"\xaa" * ((not single) + (0, 1, 2, 4)[ids])
    length = (1 if single else 0, 2, 4, 8)[width]
    size = 0x0102030405060708 % 256**length
    chunk = FRAME + head + between + size.to_bytes(length, "little")
    want = size + 256 * (width == 1) if length else None
    assert unpacked(chunk + b"blocks") == want
    if single and (width, ids) == (0, 0):
        assert (len(chunk), unpacked(chunk), unpacked(chunk[:-1])) == (6, want, None)
    assert unpacked(b"\x29" + chunk[1:]) is None


def test_checksums_are_those_of_crc32c() -> None:
    """The check value of its catalogue."""
    assert checksum(b"123456789") == 0xE3069283.to_bytes(4, "little")


def test_files_have_a_largest_size(tmp_path: Path) -> None:
    """128 MiB, and metadata 4 MiB; a sparse file takes no place."""
    (tmp_path / "small").write_bytes(b"12345")
    where = place(tmp_path)
    assert where.read("small", 5) == b"12345"
    with pytest.raises(StoreError, match=r"small .*far too large"):
        where.read("small", 4)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**27 + 1)
    assert LARGEST == 2**27
    with pytest.raises(StoreError, match=r"large .*far too large"):
        where.read("large")
    (tmp_path / "s").mkdir()
    with (tmp_path / "s" / "zarr.json").open("wb") as file:
        file.truncate(2**22 + 1)
    with pytest.raises(StoreError, match=r"zarr\.json .*far too large"):
        Store.open(tmp_path / "s")


def test_differences_show_eight_values_and_of_more_the_last_one() -> None:
    old, new = {"x": [*range(8)], "title": "a"}, {"x": [*range(0, 18, 2)], "title": "b"}
    few, many = "[0, 1, 2, 3, 4, 5, 6, 7]", "[0, 2, 4, 6, 8, 10, 12, ..., 16] (9 values)"
    assert manifest.differences(old, new) == [f"x: {few} -> {many}"]
    turned = manifest.differences({"axes": {"a": [1], "b": [2]}}, {"axes": {"b": [2], "a": [1]}})
    assert turned == ["order of the axes: a, b -> b, a"]
    (hashed,) = manifest.differences({"task_holds": "1"}, {"task_holds": "2"})
    assert hashed == "task_holds: the arrays of the task changed ('1' -> '2')"


def test_infinite_values_of_axes_are_numbers() -> None:
    """Alone or among others; a word that is spelt like them has words around it."""
    hashed = lambda *values: manifest.fingerprint({"axes": {"length": [*values]}, "title": "any"})
    assert manifest.spelt([8.0, np.inf]) == [8.0, "inf"]
    assert manifest.spelt([8.0, 9.0]) == [8.0, 9.0]
    assert hashed("inf") == hashed(np.inf)
    assert hashed(8, "inf") == hashed(8.0, np.inf)
    assert len({hashed("inf"), hashed("inf", "none"), hashed(8, "inf"), hashed(8)}) == 4
    assert hashed(8) != manifest.fingerprint({"axes": {"width": [8]}})
