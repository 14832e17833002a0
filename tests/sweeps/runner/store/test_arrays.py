"""Arrays of a store, against zarr, published numbers, and both sides of every limit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs.zstd import Zstd

from sweeps.runner.store import MAX_FILE_SIZE, StoreError, manifest
from sweeps.runner.store.arrays import Array, checksum, decoded_size, parse_metadata
from sweeps.runner.store.storage import as_storage
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
    (tmp_path / "c" / "1").write_bytes(array.encode(values))
    found: Any = zarr.open_array(tmp_path, mode="r")
    want = np.append(np.full(3, UNKNOWN.get(kind, np.nan), kind), values)
    np.testing.assert_array_equal(found[:], want, strict=True)
    assert found.attrs.asdict() == {"units": "1"}
    np.testing.assert_array_equal(array.decode(array.encode(values))[:2], values, strict=True)
    assert parse_metadata(json.loads(json.dumps(array.metadata()))) == array


@pytest.mark.parametrize("values", [np.array(7.0), np.array(["sgd", "adam"])])
def test_zarr_reads_a_single_number_and_words(values: np.ndarray, tmp_path: Path) -> None:
    """A single time has no axis, and words are text of their longest."""
    array = Array(("rule",)[: values.ndim], values.shape, values.shape, values.dtype)
    about = array.metadata()
    (tmp_path / "zarr.json").write_text(json.dumps(about))
    file = tmp_path / "/".join(("c", *"0" * values.ndim))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(array.encode(values))
    found: Any = zarr.open_array(tmp_path, mode="r")
    np.testing.assert_array_equal(found[...], values)
    assert parse_metadata(json.loads(json.dumps(about))) == array


def test_the_metadata_of_format_5_stay_as_they_are() -> None:
    """A version with others would reject the stores of this one, which zarr confirms above."""
    about = Array(("a", "b"), (5, 4), (2, 4), np.dtype("f4"), {"units": "1"}).metadata()
    assert (about["data_type"], about["fill_value"]) == ("float32", "NaN")
    assert about["chunk_grid"]["configuration"] == {"chunk_shape": [2, 4]}
    assert about["codecs"] == [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
        {"name": "crc32c"},
    ]
    for fill in ("NaN", 0, ""):
        assert parse_metadata(about | {"fill_value": fill}).shape == (5, 4)
    for fill in (1, "Infinity", None):
        with pytest.raises(ValueError, match="fill_value"):
            parse_metadata(about | {"fill_value": fill})


@pytest.mark.parametrize(
    ("shape", "chunk", "kind", "known"),
    [
        ((2**40,), (2**20,), "uint8", True),
        ((2**40 + 1,), (2**20,), "uint8", False),
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
    ],
)
def test_arrays_have_a_largest_size(
    shape: tuple[int, ...], chunk: tuple[int, ...], kind: str, known: bool
) -> None:
    about = Array(("a", "b")[: len(shape)], shape, chunk, np.dtype("i1")).metadata()
    about |= {"data_type": kind, "fill_value": 0}
    if kind == "float64":
        about["codecs"][0]["configuration"] = {"endian": "little"}
    if not known:
        with pytest.raises((ValueError, TypeError)):
            parse_metadata(about)
        return
    found = parse_metadata(about)
    assert (found.shape, found.chunk, found.dtype) == (shape, chunk, np.dtype(kind))


def test_an_array_is_read_from_all_of_its_chunks() -> None:
    values = np.arange(20, dtype="f4").reshape(5, 4)
    array = Array(("a", "b"), (5, 4), (2, 4), values.dtype)
    files = {f"c/{i}/0": array.encode(values[2 * i : 2 * i + 2]) for i in range(3)}
    np.testing.assert_array_equal(array.assemble(files, 32), values)
    without = {key: value for key, value in files.items() if key != "c/1/0"}
    for there, most in ((files, 31), (without, 32), (files | {"c/3/0": b""}, 32)):
        with pytest.raises(ValueError, match="its size does not match its array"):
            array.assemble(there, most)
    with pytest.raises(LookupError):
        array.assemble(without | {"c/3/0": files["c/1/0"]}, 32)


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
    assert decoded_size(chunk + b"blocks") == want
    if single and (width, ids) == (0, 0):
        assert (len(chunk), decoded_size(chunk), decoded_size(chunk[:-1])) == (6, want, None)
    assert decoded_size(b"\x29" + chunk[1:]) is None


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792])
def test_the_size_of_a_frame_is_what_its_writer_says(size: int) -> None:
    assert decoded_size(Zstd().encode(np.zeros(size, np.uint8))) == size


def test_checksums_are_those_of_crc32c() -> None:
    """The check value of its catalogue."""
    assert checksum(b"123456789") == 0xE3069283.to_bytes(4, "little")


def test_files_have_a_largest_size(tmp_path: Path) -> None:
    """128 MiB, and metadata 4 MiB; a sparse file takes no place."""
    (tmp_path / "small").write_bytes(b"12345")
    where = as_storage(tmp_path)
    assert where.read("small", 5) == b"12345"
    sizes = (("small", 5, 4), ("large", 2**27 + 1, 2**27), ("s/zarr.json", 2**22 + 1, 2**22))
    (tmp_path / "s").mkdir()
    for name, size, most in sizes:
        with (tmp_path / name).open("ab") as file:
            file.truncate(size)
        read = lambda name=name, most=most: where.read(name, most)
        if "/" in name:
            read = lambda: Store.open(tmp_path / "s")
        with pytest.raises(StoreError, match=f"{Path(name).name} .*far too large"):
            read()
    assert MAX_FILE_SIZE == 2**27


def test_differences_of_configurations_name_the_field_and_both_values() -> None:
    """Of more than eight values, the first seven and the last."""
    eight, nine = list(range(8)), list(range(0, 18, 2))
    old = {"title": "a", "steps": 1, "task_holds": "x", "axes": {"b": eight, "c": [1], "d": 0}}
    new = {"title": "b", "root": 0, "task_holds": "y", "axes": {"c": [1], "b": nine, "d": 0}}
    order, b, root, steps, task = manifest.differences(old, new)
    assert "b, c, d -> c, b, d" in order
    assert b == "axes.b: [0, 1, 2, 3, 4, 5, 6, 7] -> [0, 2, 4, 6, 8, 10, 12, ..., 16] (9 values)"
    assert (root, steps) == ("root: None -> 0", "steps: 1 -> None")
    assert task.startswith("task_holds")
    assert manifest.differences({"axes": {"b": [1]}}, {"axes": {"b": [2]}}) == [
        "axes.b: [1] -> [2]"
    ]
    assert manifest.differences(old, dict(old)) == []


def test_infinite_values_of_axes_are_numbers() -> None:
    """Alone or among others; a word that is spelt like them has words around it."""
    hashed = lambda *values: manifest.fingerprint({"axes": {"length": [*values]}, "title": "any"})
    assert manifest.json_numbers([8.0, np.inf]) == [8.0, "inf"]
    assert manifest.json_numbers([8.0, 9.0]) == [8.0, 9.0]
    assert hashed("inf") == hashed(np.inf)
    assert hashed(8, "inf") == hashed(8.0, np.inf)
    assert len({hashed("inf"), hashed("inf", "none"), hashed(8, "inf"), hashed(8)}) == 4
    assert hashed(8) != manifest.fingerprint({"axes": {"width": [8]}})
