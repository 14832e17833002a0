"""`dynsim check`, `info` and `export`: verify a stored sweep, describe it, write it as one file."""

import dataclasses
import importlib.util
import json
import math
import warnings
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from dynsim import Status
from sweeps import output
from sweeps.lines import explained, printable
from sweeps.output import programs
from sweeps.runner.labels import select
from sweeps.runner.progress import say
from sweeps.runner.store import PARTS, SHORT
from sweeps.runner.store.records import CALLS, changed_versions
from sweeps.runner.store.store import Store
from sweeps.systems import budget


@dataclasses.dataclass(frozen=True)
class Check:
    """Verify every checksum of a stored sweep. An error names the first damaged file.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
    """

    POSITIONAL: ClassVar = ("path",)

    path: str


def check(config: Check) -> None:
    """Run `dynsim check`."""
    store = Store.open(config.path, say)
    store.verify()
    done = int(store.done().sum())
    print(printable(f"{store.name}: {done} of {store.layout.num_chunks} chunks, all intact"))


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


def info(config: Info) -> None:
    """Run `dynsim info`."""
    if not config.path:
        here = output.environment() | {"compiled programs": str(programs.keep() or "not kept")}
        lines = [f"{name} {value}" for name, value in here.items()]
        print(json.dumps(here, indent=2) if config.json else "\n".join(lines))
        return
    about = summarise(Store.open(config.path, say))
    if config.json:
        print(json.dumps(about, indent=2))
        return
    lines = [f"{config.path}: {about['title'] or 'a sweep'}", f"theory {about['theory']}"]
    for name, values in about["axes"].items():
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if len(texts) > 8:
            texts = [*texts[:3], f"... {texts[-1]} ({len(texts)} values)"]
        lines.append(f"  {name:<16} {', '.join(texts)}")
    run = {name: value for name, value in about["run"].items() if name != "kind"}
    lines += [f"  {name:<16} {_format_setting(value)}" for name, value in run.items()]
    for name, parts in about[PARTS].items():
        lines += [f"  {name} {label}: {_format_setting(part)}" for label, part in parts.items()]
    lines += [f"recorded: {', '.join(about['recorded'])}", progress(about)]
    if about["made"]:
        lines.append(f"wall time {about['seconds']:.3g} s, summed over chunks")
    lines.append("made with " + ", ".join(f"{k} {v}" for k, v in about["environment"].items()))
    for part in about["made"]:
        ranges = ", ".join(f"{first} to {last}" for first, last in part["chunks"])
        if changed := changed_versions(about["environment"], part["environment"]):
            lines.append(f"chunks {ranges}: {', '.join(changed)}")
        if called := part["environment"].get(CALLS):
            lines.append(f"chunks {ranges}: call {called}; a change of what that does is not seen")
    for program in about["decided"]:
        pair = f"{program['same_as'][:SHORT]} -> {program['program'][:SHORT]}"
        how = "accepted by name"
        if program["decided"] == "numbers":
            how = (
                f"compared numerically: {program['runs']} stored runs, recomputed, agree to within "
                f"{program['difference']:.1g} of the largest value"
            )
        lines.append(f"program {pair}: {how}")
    lines.append(f"config hash {about['config_hash'][:12]}")
    # Text from a store is untrusted.
    print("\n".join(map(printable, lines)))


def summarise(store: Store) -> dict[str, Any]:
    """Return configuration and progress of a store, as JSON values."""
    attributes, config, dims = store.attributes, store.config, store.dims
    done, records = store.done(), store.chunks.all()
    status: Counter[int] = Counter()
    masks: dict[str, np.ndarray] = {}
    for number, record in records.items():
        status.update({int(code): runs for code, runs in record.status.items()})
        masks.setdefault(record.environment, np.zeros(len(done), bool))[number] = True
    environments = []
    for digest, mask in masks.items():
        # A mask changes at the first chunk of a range, and after its last one.
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
        ranges = [(first, end - 1) for first, end in edges.tolist()]
        environments.append({"chunks": ranges, "environment": store.chunks.environment(digest)})
    return {
        "path": store.name,
        "title": attributes["title"],
        "theory": config["theory"],
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
        "decided": [dataclasses.asdict(p) for p in store.programs.all() if p.decided],
        "made": environments,
    }


def progress(about: dict[str, Any]) -> str:
    """Format the result of `summarise` as one line of progress."""
    codes = ", ".join(f"{number} {name}" for name, number in about["status"].items())
    return (
        f"{about['runs_done']} of {about['runs']} runs done "
        f"({about['chunks_done']} of {about['chunks']} chunks): {codes or 'nothing yet'}"
    )


def _format_setting(value: object) -> str:
    """Format a setting for one line: a part is shown as its kind, with its fields in brackets."""
    if not isinstance(value, dict):
        return str(value)
    inside = ", ".join(f"{n} {_format_setting(v)}" for n, v in value.items() if n != "kind")
    return " ".join(filter(None, [value.get("kind"), f"({inside})" if inside else ""]))


EXPORT_SUFFIXES = (".nc", ".zarr", ".csv", ".parquet")
"""Suffixes of exported files, which select the format."""
MOST_TABLE_BYTES = 2**31
"""Maximum size of a table in memory."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Export a stored sweep, as labelled netCDF 4 or zarr, or as one long table.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
        out: output file; its suffix selects the format: .nc, .zarr (a plain folder), .csv or
            .parquet. By default NAME.nc next to the folder of the sweep; for a sweep in a bucket,
            in the current folder.
        arrays: recorded arrays to export; by default all. In a table, every array is repeated
            along the dimensions of the others.
        where: fixed values of axes, for instance eta_z=1 or optimizer=adam; by default all.
        overwrite: replace an existing file.
    """

    POSITIONAL: ClassVar = ("path",)

    path: str
    out: Path | None = None
    arrays: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    overwrite: bool = False


def export(config: Export) -> list[Path]:
    """Run `dynsim export`; returns the written file."""
    store = Store.open(config.path, say)
    target = config.out or beside(config.path)
    for folder in target.absolute().parents:
        if (folder / "zarr.json").exists():
            raise ValueError(f"out = {target}: lies in the store {folder}; must be outside of it")
    if target.suffix not in EXPORT_SUFFIXES:
        raise ValueError(f"out = {target}: must end in {', '.join(EXPORT_SUFFIXES)}")
    output.check_directory(target.parent)
    if target.exists() and not config.overwrite:
        raise ValueError(f"out = {target}: already exists; --overwrite replaces it")
    dataset = select(store.dataset(), config.where)
    unknown = [name for name in config.arrays if name not in dataset]
    if unknown:
        known = ", ".join(map(str, dataset.data_vars))
        raise ValueError(f"arrays: {unknown[0]!r} was not recorded; must be one of {known}")
    if records := store.chunks.all():
        seconds = sum(record.seconds for record in records.values())
        dataset.attrs["wall_time"] = f"{seconds:.3g} s, summed over chunks"
    if config.arrays:
        dataset = dataset[[*dict.fromkeys((*config.arrays, "status"))]]
    budget.check_read(config.path, dataset.nbytes, budget.memory())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return [_write(dataset, target)]
    except ValueError:
        raise
    except OSError as error:
        raise ValueError(f"out = {explained(error)}") from error
    except Exception as error:
        # Libraries raise different errors for types that their format lacks.
        kinds = ", ".join(f"{name} of {array.dtype}" for name, array in dataset.data_vars.items())
        raise ValueError(
            f"out = {target}: cannot hold all of {kinds} ({error}); choose another of "
            f"{', '.join(EXPORT_SUFFIXES)}, or fewer arrays with --arrays"
        ) from error


def beside(path: str) -> Path:
    """Return the default target of an export: next to the sweep's folder, or in the current one."""
    if output.address(path) is not None:
        return Path(f"{PurePosixPath(path).name}.nc")
    folder = Path(path) if Path(path).name not in ("", "..") else Path(path).absolute()
    return folder.parent / f"{folder.name or 'sweep'}.nc"


def _write(dataset: xr.Dataset, target: Path) -> Path:
    if target.suffix == ".nc":
        return output.write_whole(
            target, lambda file: file.write(dataset.load().to_netcdf(engine="h5netcdf"))
        )
    if target.suffix == ".zarr":
        # Encodings such as chunk sizes belong to the store and not to a copy.
        plain = dataset.load().drop_encoding()
        with warnings.catch_warnings(), output.appearing(target) as folder:
            # zarr warns that its text type is not yet standardized.
            message = "The data type .* does not have a Zarr V3"
            warnings.filterwarnings("ignore", message, FutureWarning)
            plain.to_zarr(folder, zarr_format=3, consolidated=False)
        return target

    # A table has all arrays as columns, and one row per cell of all dimensions.
    if target.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f'out = {target}: needs pyarrow: pip install "dynsim[parquet]"')
    rows = math.prod(dataset.sizes.values())
    columns = len(dataset.data_vars) + len(dataset.coords)
    if 8 * rows * columns > MOST_TABLE_BYTES:
        raise ValueError(
            f"a table of {rows} rows and {columns} columns would take "
            f"{8 * rows * columns / 1e9:.3g} GB; export to .nc or .zarr, or fewer "
            "--arrays: each is repeated along the dimensions "
            f"{', '.join(map(str, dataset.sizes))}"
        )
    if dataset.sizes:
        table = dataset.load().to_dataframe().reset_index()
    else:
        # A single run has no dimension, of which a table needs one.
        table = dataset.load().expand_dims("run").to_dataframe().reset_index(drop=True)
    write = table.to_parquet if target.suffix == ".parquet" else table.to_csv
    return output.write_whole(target, lambda file: write(file, index=False))


def run(config: Check | Info | Export) -> list[Path] | None:
    """Run `dynsim check`, `info` or `export`; returns the file written, if any."""
    return {Check: check, Info: info, Export: export}[type(config)](config)
