"""What a store says about itself: which sweep it is of, sealed when it is made, and held against
its files when it is opened.

A group's zarr.json has a digest of itself and of every file that its creation wrote: the metadata
of all arrays, and the coordinates. Chunks of results come later and have checksums of their own.
Only what is accepted here is ever given to zarr, so that no store chooses which code reads it.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sweeps.runner.store.base import StoreError

FORMAT = 3
"""Number of the way in which stores are written: 3 since all of a store has checksums."""
UNSEALED = 2
"""The format before, which is read and gone on with."""
SEAL = "integrity"
"""Attribute of the group that holds the digests."""
GROUP = "zarr.json"
CODECS = {"bytes", "zstd", "crc32c"}
NUMBERS = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
SEALED = re.compile(r"[\w. -]*\w/(zarr\.json|c(/[0-9]+)*)")
SAID = {"config", "config_hash", "environment", "title", "variables"}
"""Attributes that every group has."""

CHANGED = "it is not what its checksum says"
"""Why a file is called damaged."""

INFINITY = "inf"
"""How configurations spell it, because JSON has no name for it."""
MOST_SHOWN = 8
"""Values of an axis that a line shows."""

Json = dict[str, Any]
Read = Callable[[Iterable[str]], list[bytes | None]]


class Manifest(NamedTuple):
    """What a store says about itself, as it was verified.

    Attributes:
        attributes: of the group, without the digests.
        files: the verified files: all metadata, and the coordinates if the store is sealed.
        sealed: whether it has digests.
    """

    attributes: Json
    files: dict[str, bytes]
    sealed: bool


def seal(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a new store, with their digests in the group's.

    Raises:
        StoreError: for an array of a kind that would not be accepted when it is read.
    """
    others = {key: value for key, value in files.items() if key != GROUP}
    for key, value in others.items():
        _accept("a new store", key, value)
    group = json.loads(files[GROUP])
    group["attributes"][SEAL] = {"files": {key: _sha(value) for key, value in others.items()}}
    group["attributes"][SEAL]["digest"] = _digest(group)
    return {**others, GROUP: json.dumps(group, indent=2).encode()}


def verified(name: str, read: Read) -> Manifest:
    """The manifest of the store `name`, of which `read` reads files, several at once.

    Raises:
        StoreError: when this is no sweep, or one of another version, or when a file is missing,
            damaged, or not written as this version writes.
    """
    (given,) = read([GROUP])
    try:
        group = json.loads(given or b"")
        attributes = group["attributes"]
        version, digests = attributes["format"], attributes.get(SEAL)
        alike = group["zarr_format"] == 3 and group["node_type"] == "group"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        alike, attributes, version, digests = False, {}, None, None
    if not alike:
        raise StoreError(
            f"{name}: holds something other than a sweep of dynsim, or the file {GROUP} is damaged"
        )
    if digests is None and version not in (UNSEALED, FORMAT):
        raise _other(name, version)
    if digests is None and version == UNSEALED and attributes.keys() >= SAID:
        files = _unsealed(name, attributes, read)
    elif digests is not None and _digest(group) == digests.get("digest"):
        if version != FORMAT:
            raise _other(name, version)
        files = _sealed(name, digests["files"], read)
    else:
        raise damaged(name, GROUP, CHANGED)
    for key, value in files.items():
        _accept(name, key, value)
    assert given is not None
    about = {key: value for key, value in attributes.items() if key != SEAL}
    return Manifest(about, {GROUP: given, **files}, digests is not None)


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash of a sweep's `as_json`, of all that decides the numbers: not the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = [
        # By their bytes: the values of an axis can be millions.
        [name, hashlib.sha256(np.asarray(numbers(values), "<f8").tobytes()).hexdigest()]
        for name, values in config["axes"].items()
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def numbers(values: list[Any]) -> list[float]:
    """The values of an axis in a configuration as numbers."""
    return [float(value) for value in values] if INFINITY in values else values


def spelt(values: list[float]) -> list[Any]:
    """Numbers as a configuration has them."""
    return [INFINITY if v == math.inf else v for v in values] if math.inf in values else values


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines "field: old -> new" for what differs between two configurations."""
    lines = []
    for name in sorted({*old, *new} - {"title"}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if name == "axes" and list(a) != list(b) and set(a) == set(b):
                lines.append(f"order of the axes: {', '.join(a)} -> {', '.join(b)}")
            lines += [f"{name}.{line}" for line in differences(a, b)]
        elif a != b:
            lines.append(f"{name}: {_shown(a)} -> {_shown(b)}")
    return lines


def damaged(name: str, key: str, why: str) -> StoreError:
    """The error for a file of a store that is not what was written."""
    return StoreError(f"{name}: the file {key} is damaged ({why}). Nothing was changed.")


def missing(name: str, key: str) -> StoreError:
    """The error for a file of a store that was written and is not there."""
    return StoreError(f"{name}: the file {key} is missing. Nothing was changed.")


def _sealed(name: str, digests: Mapping[str, str], read: Read) -> dict[str, bytes]:
    strange = [key for key in digests if not SEALED.fullmatch(key)]
    if strange:
        raise damaged(name, GROUP, f"it speaks of {strange[0]!r}")
    files = {}
    for (key, digest), value in zip(digests.items(), read(digests), strict=True):
        if value is None:
            raise missing(name, key)
        if _sha(value) != digest:
            raise damaged(name, key, CHANGED)
        files[key] = value
    return files


def _unsealed(name: str, attributes: Json, read: Read) -> dict[str, bytes]:
    """The metadata of the arrays that there must be, and of those that there can be."""
    try:
        variables = list(attributes["variables"])
        axes = [*attributes["config"]["axes"], *attributes.get("coordinates", "").split(), "time"]
        keys = [f"{each}/{GROUP}" for each in dict.fromkeys(variables + axes)]
    except (LookupError, TypeError, AttributeError):
        raise damaged(name, GROUP, "it lacks what the others have") from None
    if not all(SEALED.fullmatch(key) for key in keys):
        raise damaged(name, GROUP, "it has names that no array has")
    found = dict(zip(keys, read(keys), strict=True))
    inner = set()
    for each in variables:
        value = found[f"{each}/{GROUP}"]
        if value is None:
            raise missing(name, f"{each}/{GROUP}")
        _accept(name, f"{each}/{GROUP}", value)
        inner |= {dim for dim in json.loads(value).get("dimension_names") or () if dim}
    keys = [f"{each}/{GROUP}" for each in inner if f"{each}/{GROUP}" not in found]
    found |= dict(zip(keys, read(keys), strict=True))
    return {key: value for key, value in found.items() if value is not None}


def _accept(name: str, key: str, value: bytes) -> None:
    """Raise `StoreError` unless a file is a chunk, or describes an array as dynsim writes it."""
    if not key.endswith(f"/{GROUP}"):
        return
    try:
        array = json.loads(value)
        kind, codecs = array["data_type"], [codec["name"] for codec in array["codecs"]]
        if isinstance(kind, dict):
            known = kind["name"] == "fixed_length_utf32"
        else:
            known = NUMBERS.fullmatch(kind) is not None
        accepted = (
            known
            and CODECS.issuperset(codecs)
            and (array["zarr_format"], array["node_type"]) == (3, "array")
            and not array.get("storage_transformers")
            and array["chunk_grid"]["name"] == "regular"
            and array["chunk_key_encoding"]["name"] == "default"
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise damaged(name, key, "it describes no array") from None
    if not accepted:
        raise StoreError(
            f"{name}: the file {key} asks for {kind!r} by {', '.join(map(str, codecs))}, which "
            "dynsim never writes; nothing was read"
        )


def _other(name: str, version: Any) -> StoreError:
    return StoreError(
        f"{name}: written in format {version} by another version of dynsim; this one reads formats "
        f"{UNSEALED} and {FORMAT}. Choose another folder, or run that version to read it."
    )


def _digest(group: Json) -> str:
    """Of all that a group's metadata say but this."""
    sealed = {key: value for key, value in group["attributes"][SEAL].items() if key != "digest"}
    attributes = {**group["attributes"], SEAL: sealed}
    return _sha(json.dumps({**group, "attributes": attributes}, sort_keys=True).encode())


def _sha(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        first = ", ".join(map(repr, value[: MOST_SHOWN - 1]))
        return f"[{first}, ..., {value[-1]!r}] ({len(value)} values)"
    return repr(value)
