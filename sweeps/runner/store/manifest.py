"""What a store says about itself: which sweep it is of, sealed when it is made, and held against
its files when it is opened.

A group's zarr.json has a digest of itself and of every file that its creation wrote: the metadata
of all arrays, and the coordinates. Chunks of results come later, and records say what they are.
Only what is accepted here is ever given to zarr, so that no store chooses which code reads it, or
how much memory that takes.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from sweeps.runner.store.base import GROUP, LARGEST, StoreError, damaged, missing

FORMAT = 4
"""Number of the way in which stores are written: 4 since each chunk has a commit record."""
WITHOUT_RECORDS = 3
"""The format before, which is read and not gone on with."""
SEAL = "integrity"
"""Attribute of the group that holds the digests."""
NUMBERS = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
NAME = re.compile(r"[\w. -]*\w")
SEALED = re.compile(r"[\w. -]*\w/(zarr\.json|c(/[0-9]+)*)")
MOST_RUNS, MOST_CHUNKS, MOST_BYTES = 2**40, 2**24, 2**31 - 1
"""Cells of an array, its chunks, and bytes of one of them, which its compression cannot exceed."""

CHANGED = "it is not what its checksum says"
"""Why a file is called damaged."""
INFINITY = "inf"
"""How configurations spell it, because JSON has no name for it."""
MOST_SHOWN = 8
"""Values of an axis that a line shows."""

Json = dict[str, Any]
Read = Callable[[Iterable[str]], list[bytes | None]]
Digest = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
Identity = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]


@dataclasses.dataclass
class _Config:
    title: str
    system: str
    engine: str
    record: list[str]
    root: int
    axes: list[str]
    run: Json
    times: Any
    rtol: Any
    zip: Any


@dataclasses.dataclass
class _Seal:
    files: Annotated[dict[str, Digest], pydantic.Field(max_length=2**14)]
    digest: Digest


@dataclasses.dataclass
class _Attributes:
    """The attributes that every group has, and their types."""

    config: _Config
    config_hash: Digest
    environment: dict[str, str]
    title: str
    variables: list[str]
    integrity: _Seal
    store: Identity | None = None


_ATTRIBUTES = pydantic.TypeAdapter(_Attributes)


class Manifest(NamedTuple):
    """What a store says about itself, as it was verified.

    Attributes:
        attributes: of the group, without the digests.
        files: the verified files: all metadata, and the coordinates.
        sizes: bytes of a decoded chunk, by array.
    """

    attributes: Json
    files: dict[str, bytes]
    sizes: dict[str, int]


def seal(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a new store, with their digests in the group's.

    Raises:
        StoreError: for an array of a kind that would not be accepted when it is read.
    """
    others = {key: value for key, value in files.items() if key != GROUP}
    _accept("a new store", others)
    group = json.loads(files[GROUP])
    group["attributes"][SEAL] = {"files": {key: sha(value) for key, value in others.items()}}
    group["attributes"][SEAL]["digest"] = _digest(group)
    return {**others, GROUP: json.dumps(group, indent=2).encode()}


def verified(name: str, read: Read) -> Manifest:
    """The manifest of the store `name`, of which `read` reads files, several at once.

    Raises:
        StoreError: when this is no sweep, or one of another version, or when a file is missing,
            damaged, or not written as dynsim writes.
    """
    (given,) = read([GROUP])
    try:
        group = json.loads(given or b"")
        attributes = group["attributes"]
        version, digests = attributes["format"], attributes.get(SEAL)
        alike = group["zarr_format"] == 3 and group["node_type"] == "group"
        whole = digests is not None and digests["digest"] == _digest(group)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        alike, whole, attributes, version, digests = False, False, {}, None, None
    if not alike:
        raise StoreError(
            f"{name}: holds something other than a sweep of dynsim, or the file {GROUP} is damaged"
        )
    if version not in (WITHOUT_RECORDS, FORMAT) and (whole or digests is None):
        raise StoreError(
            f"{name}: written in format {version} by another version of dynsim; this one reads "
            f"formats {WITHOUT_RECORDS} and {FORMAT}. Choose another folder, or run that version."
        )
    if not whole:
        raise damaged(name, GROUP, CHANGED)
    try:
        said = _ATTRIBUTES.validate_json(json.dumps(attributes), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged(name, GROUP, f"{where}: {first['msg']}") from None
    if (said.store is None) != (version == WITHOUT_RECORDS):
        raise damaged(name, GROUP, f"its store is {said.store}")
    files = _sealed(name, said.integrity.files, read)
    sizes = _accept(name, files)
    assert given is not None
    about = {key: value for key, value in attributes.items() if key != SEAL}
    return Manifest(about, {GROUP: given, **files}, sizes)


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash of a sweep's `as_json`, of all that decides the numbers: not the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = [
        [name, hashlib.sha256(_bytes(values)).hexdigest()]
        for name, values in config["axes"].items()
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _bytes(values: list[Any]) -> bytes:
    """The values of an axis for its hash. They can be millions, if they are numbers."""
    if all(isinstance(value, str) for value in values) and set(values) != {INFINITY}:
        return json.dumps(values).encode()
    return np.asarray(numbers(values), "<f8").tobytes()


def numbers(values: list[Any]) -> list[float]:
    """The values of an axis in a configuration as numbers."""
    return [float(value) for value in values] if INFINITY in values else values


def spelt(values: list[float]) -> list[Any]:
    """Numbers as a configuration has them."""
    return [INFINITY if v == math.inf else v for v in values] if math.inf in values else values


HASHED = {
    "task_holds": "the arrays of the task",
    "problem_holds": "arrays of the problem",
    "problem_code": "the code of the problem",
}
"""What the hashes in a configuration are of."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines "field: old -> new" for what differs between two configurations."""
    lines = []
    for name in sorted({*old, *new} - {"title"}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if name == "axes" and list(a) != list(b) and set(a) == set(b):
                lines.append(f"order of the axes: {', '.join(a)} -> {', '.join(b)}")
            lines += [f"{name}.{line}" for line in differences(a, b)]
        elif a != b and name in HASHED:
            lines.append(f"{name}: {HASHED[name]} changed ({_shown(a)} -> {_shown(b)})")
        elif a != b:
            lines.append(f"{name}: {_shown(a)} -> {_shown(b)}")
    return lines


def sha(value: bytes) -> str:
    """The digest of a file."""
    return hashlib.sha256(value).hexdigest()


def unpacked(chunk: bytes) -> int | None:
    """Bytes that a chunk says it has when it is decoded; None where it does not say so, as those
    that dynsim writes do."""
    if chunk[:4] != b"\x28\xb5\x2f\xfd" or len(chunk) < 6:
        return None
    # RFC 8878, 3.1.1.1: the number of bytes of the size, after a window and the id of a dictionary.
    single, width = chunk[4] >> 5 & 1, (0, 2, 4, 8)[chunk[4] >> 6]
    width = width or single
    start = 5 + (1 - single) + (0, 1, 2, 4)[chunk[4] & 3]
    size = int.from_bytes(chunk[start : start + width], "little")
    return (size + 256 if width == 2 else size) if width else None


def _sealed(name: str, digests: Mapping[str, str], read: Read) -> dict[str, bytes]:
    strange = [key for key in digests if not SEALED.fullmatch(key)]
    if strange:
        raise damaged(name, GROUP, f"it speaks of {strange[0]!r}")
    files = {}
    for (key, digest), value in zip(digests.items(), read(digests), strict=True):
        if value is None:
            raise missing(name, key)
        if sha(value) != digest:
            raise damaged(name, key, CHANGED)
        files[key] = value
    return files


def _accept(name: str, files: Mapping[str, bytes]) -> dict[str, int]:
    """Bytes of a chunk of each array; `StoreError` unless all arrays are as dynsim writes them."""
    arrays = {key.removesuffix(f"/{GROUP}"): key for key in files if key.endswith(f"/{GROUP}")}
    sizes = {array: _size(files[key]) for array, key in arrays.items()}
    for array, size in sizes.items():
        if size is None:
            raise StoreError(
                f"{name}: the file {arrays[array]} says what dynsim never writes; nothing was read"
            )
    for key, value in files.items():
        size = sizes.get(key.partition("/c")[0])
        # A coordinate is read as a whole, whatever it is asked for.
        if "/c" in key and (unpacked(value) != size or (size or 0) > LARGEST):
            raise damaged(name, key, "it has another size than its array says, or is far too large")
    return {array: size for array, size in sizes.items() if size is not None}


def _size(described: bytes) -> int | None:
    """Bytes of a chunk of an array, by its metadata; None for an array of a kind, or of a size,
    that dynsim does not write."""
    try:
        array = json.loads(described)
        shape, chunk = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
        kind, dims = array["data_type"], array.get("dimension_names") or []
        if text := isinstance(kind, dict):
            kind, width = kind["name"], kind["configuration"]["length_bytes"]
        else:
            width = np.dtype(kind).itemsize
        size = width * math.prod(chunk)
        known = (
            (kind == "fixed_length_utf32" if text else NUMBERS.fullmatch(kind))
            and [codec["name"] for codec in array["codecs"]] == ["bytes", "zstd", "crc32c"]
            and (array["zarr_format"], array["node_type"]) == (3, "array")
            and not array.get("storage_transformers")
            and array["chunk_grid"]["name"] == "regular"
            and array["chunk_key_encoding"]["name"] == "default"
            and len(shape) == len(chunk) == len(dims)
            and all(NAME.fullmatch(dim) for dim in dims)
            and all(type(n) is int for n in (*shape, *chunk, width))
            and min((*shape, width, *(n - 1 for n in chunk))) >= 0
            and math.prod(shape) <= MOST_RUNS
            and math.prod(-(-n // c) for n, c in zip(shape, chunk, strict=True)) <= MOST_CHUNKS
            and size <= MOST_BYTES
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return size if known else None


def _digest(group: Json) -> str:
    """Of all that a group's metadata say but this."""
    sealed = {key: value for key, value in group["attributes"][SEAL].items() if key != "digest"}
    attributes = {**group["attributes"], SEAL: sealed}
    return sha(json.dumps({**group, "attributes": attributes}, sort_keys=True).encode())


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        first = ", ".join(map(repr, value[: MOST_SHOWN - 1]))
        return f"[{first}, ..., {value[-1]!r}] ({len(value)} values)"
    return repr(value)
