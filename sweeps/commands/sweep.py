"""The commands on sweeps: `dynsim sweep`, `info`, `plot` and `export`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import tyro
import xarray as xr

from dynsim.trajectory import counts
from sweeps import output
from sweeps.runner import hosts
from sweeps.runner.files import load
from sweeps.runner.run import Interrupted, run
from sweeps.runner.store import Store


@dataclasses.dataclass(frozen=True)
class SweepCommand(hosts.Hosts):
    """Run a sweep; run the same command again to resume one that was interrupted.

    Attributes:
        file: TOML file of the sweep, or the name of one of the paper's sweeps, such as fig6.
        out: folder of the results; by default runs/ and the name of the file.
        set: replace settings of the file: run.steps=50 'axes.eta_z=[0.1, 1]'.
        chunk: runs in a chunk, the unit of work and storage; chosen from the tile if left out.
        tile: runs that a device works on at once; chosen from an estimate of memory if left out.
        distributed, coordinator, processes, process: other processes that work on the same sweep,
            see docs/sweeps.md.
    """

    file: tyro.conf.Positional[str]
    out: Path | None = None
    set: tuple[str, ...] = ()
    chunk: int | None = None
    tile: int | None = None


@dataclasses.dataclass(frozen=True)
class Info:
    """Say what a stored sweep is, what is done, and what diverged.

    Attributes:
        path: folder of the sweep.
        json: print it as JSON.
    """

    path: tyro.conf.Positional[Path]
    json: bool = False


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a stored sweep as one netCDF 4 file.

    Attributes:
        path: folder of the sweep.
        out: the file; by default beside the folder.
    """

    path: tyro.conf.Positional[Path]
    out: Path | None = None


def run_sweep(config: SweepCommand) -> list[Path]:
    """Run `dynsim sweep`; returns the folder written."""
    sweep = load(config.file, config.set)
    out = config.out or Path("runs") / Path(config.file).stem
    hosts.use_all_cores()
    process = config.connect()
    try:
        run(sweep, out, chunk=config.chunk, tile=config.tile, process=process, report=_say)
    except Interrupted:
        _say(f"stopped; what is finished is in {out}. Run the same command again to resume.")
        raise
    print(_progress(describe(Store.open(out))))
    return [out]


def describe(store: Store) -> dict[str, Any]:
    """What a store holds and how far it is, as JSON values."""
    attributes, status = store.attributes, store.status()
    done = store.done()
    dims = store.dims
    return {
        "path": str(store.path),
        "title": attributes["title"],
        "engine": attributes["config"]["engine"],
        "dimensions": dict(zip(dims, store.layout.shape, strict=True)),
        "axes": attributes["config"]["axes"],
        "run": attributes["config"]["run"],
        "recorded": list(store.names),
        "chunk": dict(zip(dims, store.layout.chunk, strict=True)),
        "chunks_done": int(done.sum()),
        "chunks": len(done),
        "runs_done": int((status >= 0).sum()),
        "runs": int(status.size),
        "status": counts(status),
        "config_hash": attributes["config_hash"],
        "environment": attributes["environment"],
    }


def run_info(config: Info) -> None:
    """Run `dynsim info`."""
    about = describe(Store.open(config.path))
    if config.json:
        print(json.dumps(about, indent=2))
        return
    lines = [f"{config.path}: {about['title'] or 'a sweep'}", f"engine {about['engine']}"]
    for name, values in about["axes"].items():
        lines.append(f"  {name:<16} {_shown(values)}")
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in about["run"].items()))
    lines += [
        f"recorded: {', '.join(about['recorded'])}",
        _progress(about),
        "made with " + ", ".join(f"{k} {v}" for k, v in about["environment"].items()),
        f"config hash {about['config_hash'][:12]}",
    ]
    print("\n".join(lines))


def run_export(config: Export) -> list[Path]:
    """Run `dynsim export`; returns the file written."""
    store = Store.open(config.path)
    target = config.out or config.path.with_suffix(".nc")
    output.check_directory(target.parent)
    dataset = store.dataset()
    for name, value in dataset.attrs.items():
        # netCDF knows no nested attributes.
        if isinstance(value, dict | list):
            dataset.attrs[name] = json.dumps(value)
    target.parent.mkdir(parents=True, exist_ok=True)
    return [output.write_whole(target, lambda file: _to_netcdf(dataset, file))]


def _to_netcdf(dataset: xr.Dataset, file: Any) -> None:
    file.write(dataset.load().to_netcdf(engine="h5netcdf"))


def _progress(about: dict[str, Any]) -> str:
    codes = ", ".join(f"{number} {name}" for name, number in about["status"].items())
    return (
        f"{about['runs_done']} of {about['runs']} runs done "
        f"({about['chunks_done']} of {about['chunks']} chunks): {codes or 'nothing yet'}"
    )


def _shown(values: list[Any]) -> str:
    text = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(text) <= 8:
        return ", ".join(text)
    return f"{', '.join(text[:3])}, ... {text[-1]} ({len(text)} values)"


def _say(line: str) -> None:
    print(line, file=sys.stderr)
