"""The configuration of a sweep as JSON values, which identifies its store, and back."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any

from dynsim.training.recording import NamedFunction
from sweeps.language.describe import Objects, words
from sweeps.language.fields import Table
from sweeps.language.tree import build, encode
from sweeps.runner.spec import Sweep
from sweeps.runner.store import CHECKPOINT, PARTS
from sweeps.runner.store.manifest import HASHED, spelt
from sweeps.systems.kinds import language


def config_of(sweep: Sweep) -> dict[str, Any]:
    """Return the settings that determine the numbers, as JSON values, and the title. The code is
    identified by its programs instead, see `sweeps.runner.program.identity`."""
    own = [each for each in sweep.recorded if isinstance(each, NamedFunction)]
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
        "theory": sweep.theory_name,
        "record": list(sweep.names),
        "times": list(sweep.times) if isinstance(sweep.times, tuple) else sweep.times,
        "root": sweep.root,
        "rtol": sweep.rtol,
        "zip": [list(group) for group in sweep.zip],
        "axes": {name: spelt(list(values)) for name, values in sweep.fields.items()},
        "run": encode(language(), sweep.first),
    }


def contents(sweep: Sweep, name: str) -> dict[Any, dict[str, str]]:
    """Return hashes of the files that differ between the labels of an axis, by label; names and
    hashes are those of `Experiment.files`."""
    axis = sweep.varied.named[name]
    if not (axis.named or isinstance(axis.labels[0], str)):
        return {}
    found = {label: sweep.point({name: label}).files.items() for label in axis.labels}
    same = set.intersection(*map(set, found.values()))
    return {n: dict(each for each in pairs if each not in same) for n, pairs in found.items()}


def _contents(sweep: Sweep) -> dict[str, str]:
    """Return hashes of the files that the settings refer to by name."""
    found = dict(sweep.first.files)
    for name in sweep.fields:
        for label, hashes in contents(sweep, name).items():
            found |= {f"{file} of {name} = {label}": each for file, each in hashes.items()}
    return found


def _parts(sweep: Sweep, name: str) -> dict[str, Table]:
    """Return the settings behind each label of an axis, without those that are axes."""
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
    """Rebuild a sweep from the configuration that `config_of` made. `objects` are values such as
    arrays, which the configuration only names. Raises `ValueError` if a file that it names has
    changed."""
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
                f"{HASHED.get(name, name)}: changed since the store was made, from "
                f"{held.get(name)} to {now.get(name)}"
            )
    return made
