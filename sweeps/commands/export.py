"""`dynsim export`: a stored sweep as one file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro
import xarray as xr

from sweeps import output
from sweeps.runner.store.store import Store


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a stored sweep as one netCDF 4 file.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
        out: the file; by default beside the folder, or for a bucket in the current one.
    """

    path: tyro.conf.Positional[str]
    out: Path | None = None


def run(config: Export) -> list[Path]:
    """Run `dynsim export`; returns the file written."""
    store = Store.open(config.path)
    target = config.out or store.place.beside(".nc")
    inside = next(
        (each for each in target.absolute().parents if (each / "zarr.json").exists()), None
    )
    if inside is not None:
        raise ValueError(f"out = {target}: lies in the store {inside}; must be outside")
    if target.suffix != ".nc":
        raise ValueError(f"out = {target}: must end in .nc")
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
