"""Making the store of a sweep."""

import functools
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
from sweeps.runner.store.base import MISSING, Place, Report, Variable
from sweeps.runner.store.local import place
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.store import Store

# A checksum, so that a damaged file is an error and never a number.
COMPRESSORS = (ZstdCodec(level=3), Crc32cCodec())

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
        report: called with lines for people, as when somebody else has to be waited for.

    Raises:
        StoreError: when another process has made a store of another sweep there, or a bucket cannot
            be written.
    """
    config, about = sweep.as_json(), functools.partial(labels.about, sweep.system)
    coordinates = labels.coordinates(sweep)
    try:
        return make(
            where, config, sweep.dims, layout, variables, coordinates, about, sweep.dtype, report
        )
    except FileExistsError:
        store = Store.open(where, report)
        store.require(config)
        return store


def make(
    where: str | Path | Place | None,
    config: Mapping[str, Any],
    dims: Sequence[Dimension],
    layout: Layout,
    variables: Mapping[str, Variable],
    coordinates: Coordinates,
    about: Callable[[str], dict[str, Any]],
    dtype: str,
    report: Report | None = None,
) -> Store:
    """Make an empty store; `about` gives the attributes of an array by name. It appears whole or
    not at all.

    Raises:
        FileExistsError: when another process has made one there in the meantime.
        StoreError: when a bucket cannot be written.
    """
    attributes = {
        "format": manifest.FORMAT,
        # Their values are coordinates.
        "config": {**config, "axes": list(config["axes"])},
        "config_hash": fingerprint(config),
        "environment": {**environment("zarr", "xarray"), "precision": dtype},
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
    where = place(where)
    where.create(manifest.seal({key: file.to_bytes() for key, file in files.items()}), report)
    return Store.open(where)
