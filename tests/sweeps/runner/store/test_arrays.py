"""Arrays of a store, against zarr, published numbers, and both sides of every limit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from sweeps.runner.store import manifest
from sweeps.runner.store.arrays import Array, checksum, decoded_size, parse_metadata

UNKNOWN = {"bool": True, "int8": -1, "int32": -1, "uint16": 0}
"""What is not computed, by type; NaN in all others."""


def read_by_zarr(array: Array, values: np.ndarray, chunk: str, folder: Path) -> Any:
    """The array as zarr has it, of which only this chunk is there."""
    (folder / "zarr.json").write_text(json.dumps(array.metadata()))
    (folder / chunk).parent.mkdir(exist_ok=True)
    (folder / chunk).write_bytes(array.encode(values))
    assert parse_metadata(json.loads(json.dumps(array.metadata()))) == array
    return zarr.open_array(folder, mode="r")


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "int32", "uint16", "float16", "float64", "complex64"]
)
def test_zarr_reads_chunks_and_what_is_not_there(kind: str, tmp_path: Path) -> None:
    """The second chunk of five values in chunks of three is there, but for its padding."""
    values = np.array([1, 0]).astype(kind)
    array = Array(("eta",), (5,), (3,), np.dtype(kind), {"units": "1"})
    found = read_by_zarr(array, values, "c/1", tmp_path)
    want = np.append(np.full(3, UNKNOWN.get(kind, np.nan), kind), values)
    np.testing.assert_array_equal(found[:], want, strict=True)
    assert found.attrs.asdict() == {"units": "1"}
    np.testing.assert_array_equal(array.decode(array.encode(values))[:2], values, strict=True)


@pytest.mark.parametrize(
    ("values", "chunk"), [(np.array(7.0), "c"), (np.array(["sgd", "adam"]), "c/0")]
)
def test_zarr_reads_a_single_number_and_words(
    values: np.ndarray, chunk: str, tmp_path: Path
) -> None:
    """A single time has no axis, and words are text of their longest."""
    array = Array(("rule",)[: values.ndim], values.shape, values.shape, values.dtype)
    found = read_by_zarr(array, values, chunk, tmp_path)
    np.testing.assert_array_equal(found[...], values)


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
        ((2, True), (1, 1), "int8", False),
        ((2.0, 3), (1, 1), "int8", False),
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


def test_checksums_are_those_of_crc32c() -> None:
    """The check value of its catalogue."""
    assert checksum(b"123456789") == 0xE3069283.to_bytes(4, "little")


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
