"""What a store knows a sweep by: its settings as JSON values, the sweep of such settings, and the
empty store of a sweep."""

import dataclasses
import functools
import json
import math
import operator
import uuid
from collections.abc import Mapping
from typing import Any

from dynsim.training.recording import Own
from sweeps import output
from sweeps.language.describe import Objects, words
from sweeps.language.fields import Table
from sweeps.language.tree import build, encode
from sweeps.runner import labels
from sweeps.runner.spec import Sweep
from sweeps.runner.store import (
    CHECKPOINT,
    GROUP,
    MARKER,
    PARTS,
    RECORDS,
    Layout,
    Report,
    Variable,
    check_names,
    manifest,
)
from sweeps.runner.store.arrays import NUMBERS, Array
from sweeps.runner.store.place import Place, place
from sweeps.runner.store.store import Store
from sweeps.systems import budget
from sweeps.systems.kinds import language


def config_of(sweep: Sweep) -> dict[str, Any]:
    """The settings that decide the numbers, as JSON values, and the title. The code that does is
    known by its programs, `sweeps.runner.identity`."""
    own = [each for each in sweep.recorded if isinstance(each, Own)]
    named = [name for name, axis in sweep.varied.named.items() if axis.named]
    optional = {
        CHECKPOINT: sweep.checkpoint,
        "functions": {each.name: words(each.function) for each in own},
        PARTS: {name: _parts(sweep, name) for name in named},
        "contents": _contents(sweep),
    }
    return {name: value for name, value in optional.items() if value} | {
        "title": sweep.title,
        "system": sweep.system.name,
        "engine": sweep.engine,
        "record": list(sweep.names),
        "times": list(sweep.times) if isinstance(sweep.times, tuple) else sweep.times,
        "root": sweep.root,
        "rtol": sweep.rtol,
        "zip": [list(group) for group in sweep.zip],
        "axes": {name: manifest.spelt(list(values)) for name, values in sweep.fields.items()},
        "run": encode(language(), sweep.first),
    }


def contents(sweep: Sweep, name: str) -> dict[Any, dict[str, str]]:
    """By the labels of an axis, hashes of the files that are not the same for all of them, as
    `Experiment.files` has them."""
    axis = sweep.varied.named[name]
    if not (axis.named or isinstance(axis.labels[0], str)):
        return {}
    found = {label: sweep.point({name: label}).files.items() for label in axis.labels}
    same = set.intersection(*map(set, found.values()))
    return {n: dict(each for each in pairs if each not in same) for n, pairs in found.items()}


def _contents(sweep: Sweep) -> dict[str, str]:
    """Hashes of what files hold that the settings only name."""
    found = dict(sweep.first.files)
    for name in sweep.fields:
        for label, hashes in contents(sweep, name).items():
            found |= {f"{file} of {name} = {label}": each for file, each in hashes.items()}
    return found


def _parts(sweep: Sweep, name: str) -> dict[str, Table]:
    """What the labels of an axis stand for, without what is an axis of its own."""
    path, found = sweep.varied.named[name].path, {}
    paths = [axis.path for axis in sweep.varied.named.values()]
    inside = [each for each in paths if each[: len(path)] == path != each]
    for label in sweep.fields[name]:
        table = encode(language(), sweep.point({name: label}))
        for *above, last in inside:
            functools.reduce(operator.getitem, above, table).pop(last)
        found[label] = functools.reduce(operator.getitem, path, table)
    return found


def from_config(config: Mapping[str, Any], objects: Objects | None = None) -> Sweep:
    """The sweep of a store's configuration, as `config_of` makes it, with the objects that its text
    only names, such as arrays. `ValueError` where a file that it names has changed."""
    given = {n: config[n] for n in (f.name for f in dataclasses.fields(Sweep)) if n in config}
    described = [pair for pair in config["run"].items() if pair[0] != "kind"]
    run = build(language(), language().assign({}, described), objects)
    parts = config.get(PARTS, {})
    axes = {name: parts.get(name, values) for name, values in config["axes"].items()}
    made = Sweep(**{**given, "run": run, "axes": axes})
    held, now = config.get("contents", {}), _contents(made)
    for name in sorted({*held, *now}):
        if held.get(name) != now.get(name):
            raise ValueError(
                f"{manifest.HASHED.get(name, name)}: changed since the store was made, from "
                f"{held.get(name)} to {now.get(name)}"
            )
    return made


def create(
    where: str | Place,
    sweep: Sweep,
    layout: Layout,
    variables: Mapping[str, Variable],
    report: Report | None = None,
) -> Store:
    """An empty store for a sweep, or the one that another process has made for it meanwhile.
    `ValueError` for results that do not fit into memory, for a name that no array can have, or that
    two have, and for an array of what is no number; `StoreError` when another process has made a
    store of another sweep there, or a bucket cannot be written."""
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
    made_by = {**output.environment("zarr", "xarray"), "precision": sweep.dtype}
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
