"""`dynsim export`: a stored sweep as one file for other programs."""

import dataclasses
import importlib.util
import math
import warnings
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import xarray as xr

from sweeps import output
from sweeps.runner.progress import say
from sweeps.runner.labels import select
from sweeps.runner.store.store import Store

LARGEST_TABLE = 2**31
"""Bytes that a table may take in memory."""


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


def run(config: Export) -> list[Path]:
    """Run `dynsim export`; returns the file written."""
    store = Store.open(config.path, say)
    target = config.out or beside(config.path)
    inside = next(
        (each for each in target.absolute().parents if (each / "zarr.json").exists()), None
    )
    if inside is not None:
        raise ValueError(f"out = {target}: lies in the store {inside}; must be outside")
    if target.suffix not in WRITERS:
        raise ValueError(f"out = {target}: must end in {', '.join(WRITERS)}")
    output.check_directory(target.parent)
    if target.exists() and not config.overwrite:
        raise ValueError(f"out = {target}: is there already; --overwrite replaces it")
    dataset = select(store.dataset(), config.where)
    unknown = [name for name in config.arrays if name not in dataset]
    if unknown:
        known = ", ".join(map(str, dataset.data_vars))
        raise ValueError(f"arrays: {unknown[0]!r} was not recorded; must be of {known}")
    if records := store.chunks.all():
        seconds = sum(record.seconds for record in records.values())
        dataset.attrs["wall_time"] = f"{seconds:.3g} s, summed up over chunks"
    if config.arrays:
        dataset = dataset[[*dict.fromkeys((*config.arrays, "status"))]]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return [WRITERS[target.suffix](dataset, target)]
    except ValueError:
        raise
    except OSError as error:
        raise ValueError(f"out = {target}: cannot be written ({error})") from error
    except Exception as error:
        # Each library has errors of its own for what its format does not have.
        kinds = ", ".join(f"{name} of {each.dtype}" for name, each in dataset.data_vars.items())
        raise ValueError(
            f"out = {target}: cannot hold all of {kinds} ({error}); choose another of "
            f"{', '.join(WRITERS)}, or some of them by --arrays"
        ) from error


def beside(path: str) -> Path:
    """Where the export of a sweep goes that the user gave no name: beside its folder, or in the
    current one."""
    if output.address(path) is not None:
        return Path(f"{PurePosixPath(path).name}.nc")
    folder = Path(path) if Path(path).name not in ("", "..") else Path(path).absolute()
    return folder.parent / f"{folder.name or 'sweep'}.nc"


def _netcdf(dataset: xr.Dataset, target: Path) -> Path:
    return output.write_whole(
        target, lambda file: file.write(dataset.load().to_netcdf(engine="h5netcdf"))
    )


def _zarr(dataset: xr.Dataset, target: Path) -> Path:
    # What belongs to the files of the store, such as its chunks, is not what a copy needs.
    plain = dataset.load().drop_encoding()
    with warnings.catch_warnings(), output.appearing(target) as begun:
        # The type of words is in zarr's format, where it is called unstable.
        warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3", FutureWarning)
        plain.to_zarr(begun, zarr_format=3, consolidated=False)
    return target


def _csv(dataset: xr.Dataset, target: Path) -> Path:
    table = _table(dataset)
    return output.write_whole(target, lambda file: table.to_csv(file, index=False))


def _parquet(dataset: xr.Dataset, target: Path) -> Path:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f'out = {target}: needs pyarrow: pip install "dynsim[parquet]"')
    table = _table(dataset)
    return output.write_whole(target, lambda file: table.to_parquet(file, index=False))


def _table(dataset: xr.Dataset) -> Any:
    """All arrays as columns of a data frame, a row for each cell of all their dimensions."""
    rows = math.prod(dataset.sizes.values())
    columns = len(dataset.data_vars) + len(dataset.coords)
    if 8 * rows * columns > LARGEST_TABLE:
        raise ValueError(
            f"a table of {rows} rows and {columns} columns takes "
            f"{8 * rows * columns / 1e9:.3g} GB; export to .nc or .zarr, or fewer "
            "--arrays: each is repeated along the dimensions "
            f"{', '.join(map(str, dataset.sizes))}"
        )
    if not dataset.sizes:
        return dataset.load().expand_dims("run").to_dataframe().reset_index(drop=True)
    return dataset.load().to_dataframe().reset_index()


WRITERS: dict[str, Callable[[xr.Dataset, Path], Path]] = {
    ".nc": _netcdf,
    ".zarr": _zarr,
    ".csv": _csv,
    ".parquet": _parquet,
}
"""By the ending of the file."""
