"""What results of sweeps are combined by."""

import json

import xarray as xr

from dynsim import Status, checks


def valid(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with NaN in place of what runs that did not end well recorded.

    Raises:
        ValueError: for what is no dataset; `Trajectory.to_xarray()` makes one of a trajectory.
    """
    checks.kind("dataset", dataset, xr.Dataset)
    return dataset.where(dataset["status"] == Status.OK)


def difference(theory: xr.Dataset, simulation: xr.Dataset) -> xr.Dataset:
    """Theory minus simulation, of everything that both recorded.

    Args:
        theory: results of a sweep, or a `Trajectory.to_xarray()`.
        simulation: the same of training. Dimensions that one of them lacks, such as the seeds of
            a theory that starts from zero, are repeated; of others the common values are kept.

    Returns:
        A dataset with the units of the theory, whose `status` is that of the simulation where it
        did not end well, else that of the theory: `valid` masks it. Its attributes are those of
        both, by the names `theory` and `simulation`, as JSON.

    Raises:
        ValueError: when they are no datasets, have no recorded array in common, or no common value
            of a dimension.
    """
    for side, dataset in (("theory", theory), ("simulation", simulation)):
        checks.kind(side, dataset, xr.Dataset)
    names = [name for name in theory.data_vars if name in simulation.data_vars]
    names = [name for name in names if name not in ("status", "first_bad_step")]
    if not names:
        raise ValueError(
            f"theory recorded {', '.join(map(str, theory.data_vars))}, simulation "
            f"{', '.join(map(str, simulation.data_vars))}: they have no array in common"
        )
    ours, theirs = xr.align(theory, simulation, join="inner")
    empty = next(
        (dim for dim, size in ours.sizes.items() if size < min(theory.sizes[dim], 1)), None
    )
    if empty is not None:
        raise ValueError(f"{empty}: theory and simulation have no value in common")
    found = ours[names] - theirs[names]
    for name in names:
        about = dict(theory[name].attrs)
        about["long_name"] = f"theory minus simulation: {about.get('long_name', name)}"
        found[name].attrs = about
    found["status"] = theirs["status"].where(theirs["status"] != Status.OK, ours["status"])
    found["status"].attrs = dict(simulation["status"].attrs)
    sides = {"theory": theory, "simulation": simulation}
    found.attrs = {name: json.dumps(side.attrs, default=str) for name, side in sides.items()}
    return found
