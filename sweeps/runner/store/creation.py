"""Making the store of a sweep."""

import functools
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from sweeps.output import environment
from sweeps.runner import labels
from sweeps.runner.axes import Layout
from sweeps.runner.spec import Sweep
from sweeps.runner.store import manifest
from sweeps.runner.store.base import MARKER, MISSING, RECORDS, Place, Report, Variable
from sweeps.runner.store.contents import LEVEL, with_words
from sweeps.runner.store.local import place
from sweeps.runner.store.packages import outside
from sweeps.runner.store.store import Store

# A checksum for who reads it without dynsim, to whom a damaged file is an error as well.
COMPRESSORS = (ZstdCodec(level=LEVEL), Crc32cCodec())

EMPTY = {"i": MISSING, "u": 0}
"""What stands for no value in arrays of integers."""


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
    where = place(where)
    try:
        where.create(files(sweep, layout, variables))
    except FileExistsError:
        Store.open(where, report).require(sweep.as_json())
    return Store.open(where, report)


def files(sweep: Sweep, layout: Layout, variables: Mapping[str, Variable]) -> dict[str, bytes]:
    """The files of an empty store, the last of which is its `MARKER`."""
    config, coordinates = sweep.as_json(), labels.coordinates(sweep)
    about = functools.partial(labels.about, sweep.system)
    made_by = {**environment("zarr", "xarray"), **outside(sweep), "precision": sweep.dtype}
    attributes = {
        "format": manifest.FORMAT,
        # Of this store and its copies: what belongs to another one is told by it.
        "store": uuid.uuid4().hex,
        # Their values are coordinates.
        "config": {**config, "axes": list(config["axes"])},
        "config_hash": manifest.fingerprint(config),
        "environment": made_by,
        "time_unit": "optimiser steps",
        "variables": [*(name for name in variables if name != "status"), "status"],
        "title": config["title"],
    }
    # By xarray's convention: labels other than the values of a dimension.
    labelling = [name for name, (its_dims, _) in coordinates.items() if its_dims != (name,)]
    if labelling:
        attributes["coordinates"] = " ".join(labelling)
    names = tuple(dim.name for dim in sweep.dims)
    kept: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(kept), attributes=attributes, zarr_format=3)
    for name, (its_dims, values) in coordinates.items():
        said = about(name)
        if values.dtype.kind == "U":
            # Words have no unit.
            said.pop("units", None)
        with with_words():
            group.create_array(
                name,
                data=values,
                dimension_names=its_dims,
                compressors=COMPRESSORS,
                attributes=said,
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
    sealed = manifest.seal({key: file.to_bytes() for key, file in kept.items()})
    return {**sealed, f"{RECORDS}{attributes['store']}/{MARKER}": b""}
