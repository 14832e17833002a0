"""`dynsim info`: configuration and progress of a stored sweep."""

import dataclasses
import json
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from dynsim import Status
from sweeps import output
from sweeps.lines import printable
from sweeps.output import programs
from sweeps.runner.progress import say
from sweeps.runner.store import PARTS, SHORT
from sweeps.runner.store.records import differences
from sweeps.runner.store.store import Store


@dataclasses.dataclass(frozen=True)
class Info:
    """Show a stored sweep's configuration, its progress, and which runs diverged.

    Attributes:
        path: folder of the sweep, or its address in a bucket; without it, versions, devices, and
            the folder of compiled programs.
        json: print JSON instead of text.
    """

    POSITIONAL: ClassVar = ("path",)

    path: str = ""
    json: bool = False


def run(config: Info) -> None:
    """Run `dynsim info`."""
    if not config.path:
        here = output.environment() | {"compiled programs": str(programs.keep() or "not kept")}
        lines = [f"{name} {value}" for name, value in here.items()]
        print(json.dumps(here, indent=2) if config.json else "\n".join(lines))
        return
    about = describe(Store.open(config.path, say))
    if config.json:
        print(json.dumps(about, indent=2))
        return
    lines = [f"{config.path}: {about['title'] or 'a sweep'}", f"engine {about['engine']}"]
    for name, values in about["axes"].items():
        lines.append(f"  {name:<16} {_shown(values)}")
    run = {name: value for name, value in about["run"].items() if name != "kind"}
    lines += [f"  {name:<16} {_told(value)}" for name, value in run.items()]
    for name, parts in about[PARTS].items():
        lines += [f"  {name} {label}: {_told(part)}" for label, part in parts.items()]
    lines += [f"recorded: {', '.join(about['recorded'])}", progress(about)]
    if about["made"]:
        lines.append(f"wall time {about['seconds']:.3g} s, summed up over chunks")
    lines.append("made with " + ", ".join(f"{k} {v}" for k, v in about["environment"].items()))
    for each in about["made"]:
        ranges = ", ".join(f"{first} to {last}" for first, last in each["chunks"])
        if changed := differences(about["environment"], each["environment"]):
            lines.append(f"chunks {ranges}: {', '.join(changed)}")
    for each in about["decided"]:
        pair = f"{each['same_as'][:SHORT]} -> {each['program'][:SHORT]}"
        how = "accepted by name"
        if each["decided"] == "numbers":
            how = (
                f"decided by numbers: {each['runs']} stored runs, computed again, agree to "
                f"{each['difference']:.1g} of the largest value"
            )
        lines.append(f"program {pair}: {how}")
    lines.append(f"config hash {about['config_hash'][:12]}")
    # Whoever made the store may have written anything.
    print("\n".join(map(printable, lines)))


def describe(store: Store) -> dict[str, Any]:
    """Configuration and progress of a store, as JSON values."""
    attributes, config, dims = store.attributes, store.config, store.dims
    done, records = store.done(), store.chunks.all()
    status: Counter[int] = Counter()
    made: dict[str, np.ndarray] = {}
    for number, record in records.items():
        status.update({int(code): runs for code, runs in record.status.items()})
        made.setdefault(record.environment, np.zeros(len(done), bool))[number] = True
    return {
        "path": store.name,
        "title": attributes["title"],
        "engine": config["engine"],
        "dimensions": dict(zip(dims, store.layout.shape, strict=True)),
        "axes": config["axes"],
        "run": config["run"],
        PARTS: config.get(PARTS, {}),
        "recorded": list(store.names),
        "chunk": dict(zip(dims, store.layout.chunk, strict=True)),
        "chunks_done": int(done.sum()),
        "chunks": len(done),
        "runs_done": store.layout.runs_in(done),
        "runs": store.layout.num_runs,
        "status": {s.name: status[s] for s in Status if status[s]},
        "seconds": sum(record.seconds for record in records.values()),
        "config_hash": store.fingerprint,
        "environment": attributes["environment"],
        "programs": sorted({record.program for record in records.values()}),
        "decided": [dataclasses.asdict(each) for each in store.programs.all() if each.decided],
        "made": [
            {"chunks": _ranges(mine), "environment": store.chunks.environment(digest)}
            for digest, mine in made.items()
        ],
    }


def _ranges(chunks: np.ndarray) -> list[tuple[int, int]]:
    """First and last number of each range of the chunks of a mask."""
    edges = np.flatnonzero(np.diff(chunks, prepend=False, append=False))
    return [(first, end - 1) for first, end in edges.reshape(-1, 2).tolist()]


def progress(about: dict[str, Any]) -> str:
    """One line of progress, from what `describe` returns."""
    codes = ", ".join(f"{number} {name}" for name, number in about["status"].items())
    return (
        f"{about['runs_done']} of {about['runs']} runs done "
        f"({about['chunks_done']} of {about['chunks']} chunks): {codes or 'nothing yet'}"
    )


def _told(value: Any) -> str:
    """A setting in a line: of a part its kind, and what is inside in brackets."""
    if not isinstance(value, dict):
        return str(value)
    inside = ", ".join(f"{n} {_told(each)}" for n, each in value.items() if n != "kind")
    return " ".join(filter(None, [value.get("kind"), f"({inside})" if inside else ""]))


def _shown(values: list[Any]) -> str:
    text = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(text) <= 8:
        return ", ".join(text)
    return f"{', '.join(text[:3])}, ... {text[-1]} ({len(text)} values)"
