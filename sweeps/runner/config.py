"""The configuration of a sweep as JSON values, which identifies its store, and back; and the
creation of that store."""

import dataclasses
import functools
import json
import math
import operator
import uuid
from collections.abc import Mapping
from typing import Any

from dynsim.training.recording import NamedFunction
from sweeps import output
from sweeps.language.describe import Objects, stable_repr
from sweeps.language.fields import Table
from sweeps.language.tree import build, encode
from sweeps.runner import labels
from sweeps.runner.spec import Sweep
from sweeps.runner.store import (
    CHECKPOINT,
    GROUP_FILE,
    MARKER,
    PARTS,
    RECORDS,
    Layout,
    Report,
    Variable,
    check_names,
    manifest,
)
from sweeps.runner.store.arrays import NUMBER_TYPES, Array
from sweeps.runner.store.manifest import HASHED, json_numbers
from sweeps.runner.store.storage import Storage, as_storage
from sweeps.runner.store.store import Store
from sweeps.systems import budget
from sweeps.systems.kinds import language


def config_of(sweep: Sweep) -> dict[str, Any]:
    """Return the settings that determine the numbers, as JSON values, and the title. The code is
    identified by its programs instead, see `sweeps.runner.program.identity`."""
    functions = [entry for entry in sweep.recorded if isinstance(entry, NamedFunction)]
    labelled = [name for name, axis in sweep.varied.named.items() if axis.named]
    optional = {
        CHECKPOINT: sweep.checkpoint,
        "functions": {entry.name: stable_repr(entry.function) for entry in functions},
        PARTS: {name: _parts(sweep, name) for name in labelled},
        "contents": _file_hashes(sweep),
    }
    return {name: value for name, value in optional.items() if value} | {
        "title": sweep.title,
        "system": sweep.system.name,
        "theory": sweep.theory_name,
        "record": list(sweep.names),
        "times": list(sweep.times) if isinstance(sweep.times, tuple) else sweep.times,
        "root": sweep.root,
        "rtol": sweep.rtol,
        "zip": [list(group) for group in sweep.zip],
        "axes": {name: json_numbers(list(values)) for name, values in sweep.fields.items()},
        "run": encode(language(), sweep.first),
    }


def _parts(sweep: Sweep, name: str) -> dict[str, Table]:
    """Return the settings behind each label of an axis, without those that are axes themselves."""
    path = sweep.varied.named[name].path
    paths = [axis.path for axis in sweep.varied.named.values()]
    inside = [other for other in paths if other[: len(path)] == path != other]
    parts = {}
    for label in sweep.fields[name]:
        table = encode(language(), sweep.point({name: label}))
        for *above, last in inside:
            # A setting that is an axis itself has its values there.
            functools.reduce(operator.getitem, above, table).pop(last)
        parts[label] = functools.reduce(operator.getitem, path, table)
    return parts


def _file_hashes(sweep: Sweep) -> dict[str, str]:
    """Return hashes of the files that the settings refer to by name."""
    hashes = dict(sweep.first.files)
    for name in sweep.fields:
        for label, of_label in contents(sweep, name).items():
            hashes |= {f"{file} of {name} = {label}": digest for file, digest in of_label.items()}
    return hashes


def contents(sweep: Sweep, name: str) -> dict[Any, dict[str, str]]:
    """Return hashes of the files that differ between the labels of an axis, by label; names and
    hashes are those of `Experiment.files`."""
    axis = sweep.varied.named[name]
    if not (axis.named or isinstance(axis.labels[0], str)):
        return {}
    files = {label: sweep.point({name: label}).files.items() for label in axis.labels}
    common = set.intersection(*map(set, files.values()))
    return {
        label: dict(pair for pair in pairs if pair not in common) for label, pairs in files.items()
    }


def from_config(config: Mapping[str, Any], objects: Objects | None = None) -> Sweep:
    """Rebuild a sweep from the configuration that `config_of` returned. `objects` are values such
    as arrays, which the configuration only names. Raises `ValueError` if a file that it names has
    changed."""
    names = [field.name for field in dataclasses.fields(Sweep) if field.name in config]
    # The kind of a run is always `Experiment`.
    settings = [pair for pair in config["run"].items() if pair[0] != "kind"]
    run = build(language(), language().assign({}, settings), objects)
    parts = config.get(PARTS, {})
    axes = {name: parts.get(name, values) for name, values in config["axes"].items()}
    sweep = Sweep(**{**{name: config[name] for name in names}, "run": run, "axes": axes})
    before, now = config.get("contents", {}), _file_hashes(sweep)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{HASHED.get(name, name)}: changed since the store was made, from "
                f"{before.get(name)} to {now.get(name)}"
            )
    return sweep


def existing(
    where: Storage, config: Mapping[str, Any], report: Report | None = None
) -> Store | None:
    """Return the store of this sweep if it exists, or None if one can be created there."""
    if where.vacant():
        where.check_writable()
        return None
    store = Store.open(where, report)
    store.require(config)
    return store


def create(
    where: str | Storage,
    sweep: Sweep,
    layout: Layout,
    variables: Mapping[str, Variable],
    report: Report | None = None,
) -> Store:
    """Create an empty store for a sweep, or open one that another process has just created for it.
    Raises `ValueError` for results that do not fit into memory, for invalid or duplicate array
    names, and for non-numeric arrays; `StoreError` if another process has created a store of a
    different sweep there, or a bucket is not writable."""
    where = as_storage(where)
    per_run = sum(math.prod(v.shape) * v.dtype.itemsize for v in variables.values())
    stored = where.address is not None
    budget.check_results(layout.num_runs, math.prod(layout.chunk), per_run, stored)
    try:
        where.create(files(sweep, layout, variables))
    except FileExistsError:
        Store.open(where, report).require(config_of(sweep))
    return Store.open(where, report)


def files(sweep: Sweep, layout: Layout, variables: Mapping[str, Variable]) -> dict[str, bytes]:
    """Return the files of an empty store; the last one is its `MARKER`."""
    config, coordinates = config_of(sweep), labels.coordinates(sweep)
    for name, variable in variables.items():
        if not NUMBER_TYPES.fullmatch(variable.dtype.name):
            raise ValueError(
                f"record = {name!r}: has type {variable.dtype.name}; must be real, complex, "
                "integer or boolean"
            )
    inner = (dim for variable in variables.values() for dim in variable.dims)
    others = [name for name in coordinates if name not in sweep.fields]
    check_names(("axes", sweep.fields), ("dimensions", [*others, *inner]), ("record", variables))
    store = uuid.uuid4().hex
    attributes = {
        "format": manifest.FORMAT,
        # Shared by copies of this store; identifies files of other stores.
        "store": store,
        # The values of axes are stored as coordinates.
        "config": {**config, "axes": list(config["axes"])},
        "config_hash": manifest.fingerprint(config),
        "environment": {**output.environment("zarr", "xarray"), "precision": sweep.dtype},
        "time_unit": "optimiser steps",
        "variables": [*(name for name in variables if name != "status"), "status"],
        "title": config["title"],
    }
    # By xarray's convention: coordinates other than those named like their dimension.
    labelling = [name for name, (dims, _) in coordinates.items() if dims != (name,)]
    if labelling:
        attributes["coordinates"] = " ".join(labelling)
    outer = tuple(dim.name for dim in sweep.dims)
    arrays = {
        name: Array(
            (*outer, *v.dims), (*layout.shape, *v.shape), (*layout.chunk, *v.shape), v.dtype
        )
        for name, v in variables.items()
    }
    values = {}
    for name, (dims, value) in coordinates.items():
        arrays[name] = Array(dims, value.shape, value.shape, value.dtype)
        values["/".join((name, "c", *"0" * value.ndim))] = arrays[name].encode(value)
    metadata = {GROUP_FILE: {"attributes": attributes, "zarr_format": 3, "node_type": "group"}}
    for name, array in arrays.items():
        about = labels.about(sweep.system, name, sweep.varied.named.get(name))
        if array.dtype.kind == "U":
            # Text has no unit.
            about.pop("units", None)
        metadata[f"{name}/{GROUP_FILE}"] = array._replace(attributes=about).metadata()
    encoded = {key: json.dumps(value, indent=2).encode() for key, value in metadata.items()}
    return {**manifest.seal(encoded | values), f"{RECORDS}{store}/{MARKER}": b""}
