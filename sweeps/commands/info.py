"""`dynsim info`: configuration and progress of a stored sweep."""

import dataclasses
import json
from typing import Any

import numpy as np
import tyro

from dynsim.trajectory import counts
from sweeps.runner.progress import say
from sweeps.runner.store import history
from sweeps.runner.store.store import Store


@dataclasses.dataclass(frozen=True)
class Info:
    """Show a stored sweep's configuration, its progress, and which runs diverged.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
        json: print JSON instead of text.
    """

    path: tyro.conf.Positional[str]
    json: bool = False


def run(config: Info) -> None:
    """Run `dynsim info`."""
    about = describe(Store.open(config.path, say))
    if config.json:
        print(json.dumps(about, indent=2))
        return
    lines = [f"{config.path}: {about['title'] or 'a sweep'}", f"engine {about['engine']}"]
    for name, values in about["axes"].items():
        lines.append(f"  {name:<16} {_shown(values)}")
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in about["run"].items()))
    lines += [
        f"recorded: {', '.join(about['recorded'])}",
        progress(about),
        *([f"wall time {_took(about)}"] if about["chunks_done"] else []),
        "made with " + ", ".join(f"{k} {v}" for k, v in about["environment"].items()),
        *(
            f"chunks {ranges}: {', '.join(differences)}"
            for each in about["made"]
            if (differences := history.differences(about["environment"], each["environment"]))
            for ranges in [", ".join(f"{a} to {b}" for a, b in each["chunks"])]
        ),
        f"config hash {about['config_hash'][:12]}",
    ]
    print("\n".join(lines))


def describe(store: Store) -> dict[str, Any]:
    """Configuration and progress of a store, as JSON values."""
    attributes, config, status = store.attributes, store.config, store.status()
    done = store.done()
    dims = store.dims
    return {
        "path": store.name,
        "title": attributes["title"],
        "engine": config["engine"],
        "dimensions": dict(zip(dims, store.layout.shape, strict=True)),
        "axes": config["axes"],
        "run": config["run"],
        "recorded": list(store.names),
        "chunk": dict(zip(dims, store.layout.chunk, strict=True)),
        "chunks_done": int(done.sum()),
        "chunks": len(done),
        "runs_done": int((status >= 0).sum()),
        "runs": int(status.size),
        "status": counts(status),
        "wall_time": dict(zip(("seconds", "chunks"), store.spent(), strict=True)),
        "config_hash": store.fingerprint,
        "environment": attributes["environment"],
        "made": _made(store, done),
    }


def _made(store: Store, done: np.ndarray) -> list[dict[str, Any]]:
    """The environments of the chunks that are done, each with its ranges of them."""
    made = store.made()
    return [
        {"chunks": history.ranges(mine), "environment": environment}
        for i, environment in enumerate(made.environments)
        if (mine := done & (made.by == i)).any()
    ]


def progress(about: dict[str, Any]) -> str:
    """One line of progress, from what `describe` returns."""
    codes = ", ".join(f"{number} {name}" for name, number in about["status"].items())
    return (
        f"{about['runs_done']} of {about['runs']} runs done "
        f"({about['chunks_done']} of {about['chunks']} chunks): {codes or 'nothing yet'}"
    )


def _took(about: dict[str, Any]) -> str:
    """What the chunks took that are done, as far as that is known."""
    known, done = about["wall_time"]["chunks"], about["chunks_done"]
    if not known:
        return "not known: it is noted when a process ends by itself"
    seconds = f"{about['wall_time']['seconds']:.3g} s, summed up over processes"
    return seconds if known == done else f"{seconds}, for {known} of the chunks"


def _shown(values: list[Any]) -> str:
    text = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(text) <= 8:
        return ", ".join(text)
    return f"{', '.join(text[:3])}, ... {text[-1]} ({len(text)} values)"
