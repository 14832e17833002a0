"""Making the store of a sweep."""

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from sweeps.output import environment
from sweeps.runner import labels
from sweeps.runner.axes import Dimension, Layout
from sweeps.runner.spec import Sweep
from sweeps.runner.store import manifest
from sweeps.runner.store.base import MARKER, MISSING, RECORDS, Place, Report, Variable
from sweeps.runner.store.contents import LEVEL
from sweeps.runner.store.local import place
from sweeps.runner.store.packages import outside
from sweeps.runner.store.store import Store

# A checksum for who reads it without dynsim, to whom a damaged file is an error as well.
COMPRESSORS = (ZstdCodec(level=LEVEL), Crc32cCodec())

EMPTY = {"i": MISSING, "u": 0}
"""What stands for no value in arrays of integers."""

Coordinates = Mapping[str, tuple[tuple[str, ...], np.ndarray]]


def create(
    where: str | Place,
    sweep: Sweep,
    layout: Layout,
    variables: Mapping[str, Variable],
    report: Report | None = None,
) -> Store:
    """An empty store for a sweep, or the one that another process has made for it meanwhile.

    Args:
        where: the place, or its address.
        sweep: what it will hold.
        layout: how the array of runs is cut into chunks.
        variables: the arrays that the runs record.
        report: as `Store.open` takes it.

    Raises:
        StoreError: when another process has made a store of another sweep there, or a bucket cannot
            be written.
    """
    where, config = place(where), sweep.as_json()
    about = functools.partial(labels.about, sweep.system)
    made_by = {
        **environment("zarr", "xarray"),
        **outside(sweep),
        "precision": sweep.dtype,
    }
    coordinates = labels.coordinates(sweep)
    try:
        make(where, config, sweep.dims, layout, variables, coordinates, about, made_by)
    except FileExistsError:
        Store.open(where, report).require(config)
    return Store.open(where, report)


def make(
    where: str | Path | Place | None,
    config: Mapping[str, Any],
    dims: Sequence[Dimension],
    layout: Layout,
    variables: Mapping[str, Variable],
    coordinates: Coordinates,
    about: Callable[[str], dict[str, Any]],
    made_by: Mapping[str, str],
) -> None:
    """Make an empty store; `about` gives the attributes of an array by name.

    Raises:
        FileExistsError: when another process has made one there in the meantime.
        StoreError: when a bucket cannot be written.
    """
    attributes = {
        "format": manifest.FORMAT,
        # Of this store and its copies: what belongs to another one is told by it.
        "store": uuid.uuid4().hex,
        # Their values are coordinates.
        "config": {**config, "axes": list(config["axes"])},
        "config_hash": manifest.fingerprint(config),
        "environment": dict(made_by),
        "time_unit": "optimiser steps",
        "variables": [*(name for name in variables if name != "status"), "status"],
        "title": config["title"],
    }
    # By xarray's convention: labels other than the values of a dimension.
    labelling = [name for name, (its_dims, _) in coordinates.items() if its_dims != (name,)]
    if labelling:
        attributes["coordinates"] = " ".join(labelling)
    names = tuple(dim.name for dim in dims)
    files: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(files), attributes=attributes, zarr_format=3)
    for name, (its_dims, values) in coordinates.items():
        group.create_array(
            name,
            data=values,
            dimension_names=its_dims,
            compressors=COMPRESSORS,
            attributes=about(name),
            config={"write_empty_chunks": True},
        )
    for name, variable in variables.items():
        group.create_array(
            name,
            shape=(*layout.shape, *variable.shape),
            chunks=(*layout.chunk, *variable.shape),
            dtype=variable.dtype,
            fill_value=EMPTY.get(np.dtype(variable.dtype).kind, np.nan),
            dimension_names=(*names, *variable.dims),
            compressors=COMPRESSORS,
            attributes=about(name),
        )
    sealed = manifest.seal({key: file.to_bytes() for key, file in files.items()})
    place(where).create({**sealed, f"{RECORDS}{attributes['store']}/{MARKER}": b""})
