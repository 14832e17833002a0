"""Making the store of a sweep."""

import json
import math
import uuid
from collections.abc import Mapping

from sweeps.output import environment
from sweeps.runner import labels
from sweeps.runner.config import config_of
from sweeps.runner.spec import Sweep
from sweeps.runner.store import manifest
from sweeps.runner.store.arrays import NUMBERS, Array
from sweeps.runner.store.base import (
    GROUP,
    MARKER,
    RECORDS,
    Layout,
    Place,
    Report,
    Variable,
    check_names,
)
from sweeps.runner.store.local import place
from sweeps.runner.store.store import Store
from sweeps.systems import budget


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
        ValueError: for results that do not fit into memory, a name that no array can have, or that
            two have, and an array of what is no number.
        StoreError: when another process has made a store of another sweep there, or a bucket cannot
            be written.
    """
    where = place(where)
    needed = sum(math.prod(each.shape) * each.dtype.itemsize for each in variables.values())
    stored = where.address is not None
    budget.check_held(layout.num_runs, math.prod(layout.chunk), needed, stored)
    try:
        where.create(files(sweep, layout, variables))
    except FileExistsError:
        Store.open(where, report).require(config_of(sweep))
    return Store.open(where, report)


def files(sweep: Sweep, layout: Layout, variables: Mapping[str, Variable]) -> dict[str, bytes]:
    """The files of an empty store, the last of which is its `MARKER`."""
    config, coordinates = config_of(sweep), labels.coordinates(sweep)
    inner = (dim for each in variables.values() for dim in each.dims)
    others = [name for name in coordinates if name not in sweep.fields]
    for name, each in variables.items():
        if not NUMBERS.fullmatch(each.dtype.name):
            raise ValueError(
                f"record = {name!r}: is of type {each.dtype.name}, must be of real, complex or "
                "whole numbers of NumPy, or truth values"
            )
    check_names(("axes", sweep.fields), ("dimensions", [*others, *inner]), ("record", variables))
    made_by = {**environment("zarr", "xarray"), "precision": sweep.dtype}
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
    arrays = {
        name: Array(
            (*names, *v.dims), (*layout.shape, *v.shape), (*layout.chunk, *v.shape), v.dtype
        )
        for name, v in variables.items()
    }
    kept = {GROUP: {"attributes": attributes, "zarr_format": 3, "node_type": "group"}}
    values = {}
    for name, (its_dims, value) in coordinates.items():
        arrays[name] = Array(its_dims, value.shape, value.shape, value.dtype)
        values["/".join((name, "c", *"0" * value.ndim))] = arrays[name].encoded(value)
    for name, array in arrays.items():
        said = labels.about(sweep.system, name, sweep.varied.named.get(name))
        if array.dtype.kind == "U":
            # Words have no unit.
            said.pop("units", None)
        kept[f"{name}/{GROUP}"] = array._replace(attributes=said).metadata()
    sealed = manifest.seal(
        {key: json.dumps(each, indent=2).encode() for key, each in kept.items()} | values
    )
    return {**sealed, f"{RECORDS}{attributes['store']}/{MARKER}": b""}
