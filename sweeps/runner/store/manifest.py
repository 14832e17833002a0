"""The manifest of a store: it identifies the sweep, is sealed at creation, and is checked against
the files when the store is opened.

A group's zarr.json has a digest of itself and of every file written at creation: the metadata of
all arrays, and the coordinates. Chunks of results come later and have records of their own. Files
are checked here before zarr sees them, so a store cannot choose which code reads it, or how much
memory that requires.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from dynsim import checks
from sweeps.runner.store import (
    CHANGED,
    GROUP_FILE,
    MAX_FILE_SIZE,
    Digest,
    StoreError,
    StoreId,
    damaged,
    missing,
    sha,
)
from sweeps.runner.store.arrays import Array, parse_metadata

FORMAT = 5
"""Version of the storage format; since 5 each chunk names its program."""
SEAL = "integrity"
"""Attribute of the group that contains the digests."""
CREATED = re.compile(rf"{checks.NAME.pattern}/(zarr\.json|c(/[0-9]+)*)")
"""Names of files written at creation."""
INFINITY = "inf"
"""Spelling of infinity in configurations, as JSON has none."""
MAX_VALUES = 8
"""Maximum number of axis values shown in a line."""

Json = dict[str, Any]


@dataclasses.dataclass
class _Config:
    title: str
    system: str
    theory: str
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
    """The attributes that every group has, with their types."""

    config: _Config
    config_hash: Digest
    environment: dict[str, str]
    title: str
    variables: list[str]
    integrity: _Seal
    store: StoreId


_ATTRIBUTES = pydantic.TypeAdapter(_Attributes)


class Manifest(NamedTuple):
    """The verified manifest of a store: the attributes of the group without the digests, all
    arrays, and the values of the coordinates."""

    attributes: Json
    arrays: dict[str, Array]
    coordinates: dict[str, np.ndarray]


def seal(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Add digests of the files of a new store to its group. Raises `StoreError` for an array that
    could not be read back."""
    others = {key: value for key, value in files.items() if key != GROUP_FILE}
    # Raises for arrays beyond the limits of those who will read them.
    _parse_arrays("a new store", others)
    group = json.loads(files[GROUP_FILE])
    group["attributes"][SEAL] = {"files": {key: sha(value) for key, value in others.items()}}
    group["attributes"][SEAL]["digest"] = _digest(group)
    return {**others, GROUP_FILE: json.dumps(group, indent=2).encode()}


def read_manifest(name: str, read: Callable[[Iterable[str]], Sequence[bytes | None]]) -> Manifest:
    """Read and verify the manifest of the store `name`; `read` reads several files at once. Raises
    `StoreError` if there is no sweep of this format, or if a file is missing, damaged, or not
    written by dynsim."""
    # The group: of a sweep, in this format, and as it was written.
    (content,) = read([GROUP_FILE])
    try:
        group = json.loads(content or b"")
        attributes = group["attributes"]
        version, digests = attributes["format"], attributes.get(SEAL)
        is_sweep = group["zarr_format"] == 3 and group["node_type"] == "group"
        is_whole = digests is not None and digests["digest"] == _digest(group)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_sweep, is_whole, attributes, version, digests = False, False, {}, None, None
    if not is_sweep:
        raise StoreError(
            f"{name}: holds something other than a sweep of dynsim, or the file {GROUP_FILE} is "
            "damaged"
        )
    if version != FORMAT and (is_whole or digests is None):
        raise StoreError(
            f"{name}: written in format {version} by another version of dynsim; this one reads "
            f"format {FORMAT}. Choose another folder, or read it with the version that wrote it."
        )
    if not is_whole:
        raise damaged(name, GROUP_FILE, CHANGED)
    # Its attributes, whose types a digest does not guarantee: anybody can compute one.
    try:
        digests = _ATTRIBUTES.validate_json(json.dumps(attributes), strict=True).integrity.files
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged(name, GROUP_FILE, f"{where}: {first['msg']}") from None
    if unknown := [key for key in digests if not CREATED.fullmatch(key)]:
        raise damaged(name, GROUP_FILE, f"it lists the unknown file {unknown[0]!r}")
    # The files that it lists.
    files = {}
    for (key, digest), value in zip(digests.items(), read(digests), strict=True):
        if value is None:
            raise missing(name, key)
        if sha(value) != digest:
            raise damaged(name, key, CHANGED)
        files[key] = value
    arrays, coordinates = _parse_arrays(name, files)
    return Manifest({k: v for k, v in attributes.items() if k != SEAL}, arrays, coordinates)


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return a hash of all settings that determine the numbers, so without the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = []
    for name, values in config["axes"].items():
        if all(isinstance(value, str) for value in values) and set(values) != {INFINITY}:
            content = json.dumps(values).encode()
        else:
            # As bytes, because there can be millions of numbers.
            numbers = [float(value) for value in values] if INFINITY in values else values
            content = np.asarray(numbers, "<f8").tobytes()
        decisive["axes"].append([name, sha(content)])
    return sha(json.dumps(decisive, sort_keys=True))


def json_numbers(values: list[float]) -> list[Any]:
    """Return numbers as a configuration spells them."""
    return [INFINITY if v == math.inf else v for v in values] if math.inf in values else values


HASHED = {
    "task_holds": "the arrays of the task",
    "problem_holds": "arrays of the problem",
    "data_holds": "the files of the examples",
}
"""Descriptions of the hashes in a configuration."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return lines "field: old -> new" for the differences between two configurations."""
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


def _parse_arrays(
    name: str, files: Mapping[str, bytes]
) -> tuple[dict[str, Array], dict[str, np.ndarray]]:
    """Return all arrays, and the values of those with chunks. Raises `StoreError` unless all are
    written as dynsim does."""
    # Files by folder, one for each array.
    folders: dict[str, dict[str, bytes]] = {}
    for key, value in files.items():
        array, _, inside = key.partition("/")
        folders.setdefault(array, {})[inside] = value
    arrays, coordinates = {}, {}
    for array, own in folders.items():
        try:
            arrays[array] = parse_metadata(json.loads(own.pop(GROUP_FILE)))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"{name}: the file {array}/{GROUP_FILE} is not as dynsim writes it; nothing was "
                "read"
            ) from None
        # What is left are chunks, which at creation only coordinates have.
        try:
            if own:
                coordinates[array] = arrays[array].assemble(own, MAX_FILE_SIZE)
        except (ValueError, LookupError) as error:
            raise damaged(name, f"{array}/{min(own)}", str(error)) from None
    return arrays, coordinates


def _digest(group: Json) -> str:
    """Return the digest of all of a group's metadata except this digest."""
    others = {key: value for key, value in group["attributes"][SEAL].items() if key != "digest"}
    attributes = {**group["attributes"], SEAL: others}
    return sha(json.dumps({**group, "attributes": attributes}, sort_keys=True))


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MAX_VALUES:
        first = ", ".join(map(repr, value[: MAX_VALUES - 1]))
        return f"[{first}, ..., {value[-1]!r}] ({len(value)} values)"
    return repr(value)
