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
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from dynsim import checks
from sweeps.runner.store import (
    CHANGED,
    GROUP,
    LARGEST,
    Digest,
    Identity,
    StoreError,
    damaged,
    missing,
    sha,
)
from sweeps.runner.store.arrays import Array, described

FORMAT = 5
"""Version of the storage format; since 5 each chunk names its program."""
SEAL = "integrity"
"""Attribute of the group that contains the digests."""
WRITTEN = re.compile(rf"{checks.NAME.pattern}/(zarr\.json|c(/[0-9]+)*)")
"""Names of files written at creation."""
INFINITY = "inf"
"""Spelling of infinity in configurations, as JSON has none."""
MOST_SHOWN = 8
"""Maximum number of axis values shown in a line."""

Json = dict[str, Any]
Read = Callable[[Iterable[str]], list[bytes | None]]


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
    store: Identity


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
    others = {key: value for key, value in files.items() if key != GROUP}
    _accept("a new store", others)
    group = json.loads(files[GROUP])
    group["attributes"][SEAL] = {"files": {key: sha(value) for key, value in others.items()}}
    group["attributes"][SEAL]["digest"] = _digest(group)
    return {**others, GROUP: json.dumps(group, indent=2).encode()}


def verified(name: str, read: Read) -> Manifest:
    """Read and verify the manifest of the store `name`; `read` reads several files at once. Raises
    `StoreError` if there is no sweep of this format, or if a file is missing, damaged, or not
    written by dynsim."""
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
    if version != FORMAT and (whole or digests is None):
        raise StoreError(
            f"{name}: written in format {version} by another version of dynsim; this one reads "
            f"format {FORMAT}. Choose another folder, or read it with the version that wrote it."
        )
    if not whole:
        raise damaged(name, GROUP, CHANGED)
    try:
        said = _ATTRIBUTES.validate_json(json.dumps(attributes), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged(name, GROUP, f"{where}: {first['msg']}") from None
    sealed, files = said.integrity.files, {}
    if strange := [key for key in sealed if not WRITTEN.fullmatch(key)]:
        raise damaged(name, GROUP, f"it lists the unknown file {strange[0]!r}")
    for (key, digest), value in zip(sealed.items(), read(sealed), strict=True):
        if value is None:
            raise missing(name, key)
        if sha(value) != digest:
            raise damaged(name, key, CHANGED)
        files[key] = value
    arrays, coordinates = _accept(name, files)
    return Manifest({k: v for k, v in attributes.items() if k != SEAL}, arrays, coordinates)


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return a hash of all settings that determine the numbers, so without the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = [[name, sha(_bytes(values))] for name, values in config["axes"].items()]
    return sha(json.dumps(decisive, sort_keys=True))


def _bytes(values: list[Any]) -> bytes:
    """Encode the values of an axis for its hash. Numbers can be millions."""
    if all(isinstance(value, str) for value in values) and set(values) != {INFINITY}:
        return json.dumps(values).encode()
    numbers = [float(value) for value in values] if INFINITY in values else values
    return np.asarray(numbers, "<f8").tobytes()


def spelt(values: list[float]) -> list[Any]:
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


def _accept(
    name: str, files: Mapping[str, bytes]
) -> tuple[dict[str, Array], dict[str, np.ndarray]]:
    """Return all arrays, and the values of those with chunks. Raises `StoreError` unless all are
    written as dynsim does."""
    folders: dict[str, dict[str, bytes]] = {}
    for key, value in files.items():
        array, _, inside = key.partition("/")
        folders.setdefault(array, {})[inside] = value
    arrays, coordinates = {}, {}
    for array, own in folders.items():
        try:
            arrays[array] = about = described(json.loads(own.pop(GROUP)))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"{name}: the file {array}/{GROUP} is not as dynsim writes it; nothing was read"
            ) from None
        try:
            if own:
                coordinates[array] = about.whole(own, LARGEST)
        except (ValueError, LookupError) as error:
            raise damaged(name, f"{array}/{min(own)}", str(error)) from None
    return arrays, coordinates


def _digest(group: Json) -> str:
    """Return the digest of all of a group's metadata except this digest."""
    sealed = {key: value for key, value in group["attributes"][SEAL].items() if key != "digest"}
    attributes = {**group["attributes"], SEAL: sealed}
    return sha(json.dumps({**group, "attributes": attributes}, sort_keys=True))


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        first = ", ".join(map(repr, value[: MOST_SHOWN - 1]))
        return f"[{first}, ..., {value[-1]!r}] ({len(value)} values)"
    return repr(value)
