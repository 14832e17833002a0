"""What `dynsim plot` draws of a sweep where nothing is said about it."""

import numpy as np
import pytest
import xarray as xr

from sweeps.commands import plot


def sweep(axes: dict[str, int], *recorded: str) -> xr.Dataset:
    """Zeros of the shape of a sweep's results."""
    coords = {name: np.arange(1.0, size + 1) for name, size in {**axes, "time": 3}.items()}
    values = {name: ((*axes, "time"), np.zeros((*axes.values(), 3))) for name in recorded}
    status = ((*axes,), np.zeros(tuple(axes.values()), int))
    return xr.Dataset({"status": status, **values}, coords)


@pytest.mark.parametrize(
    ("axes", "recorded", "given", "want"),
    [
        ({"num_queries": 2, "eta_z": 4, "seed": 9}, ("loss", "entropy"), {}, ("eta_z", "entropy")),
        ({"eta": 3, "heads": 5}, ("learned", "loss"), {"hue": "heads"}, ("eta", "loss")),
        ({"seed": 9}, ("K1",), {}, ("time", "K1")),
        ({"eta": 3, "heads": 5}, ("loss",), {"x": "time", "observable": "loss"}, ("time", "loss")),
    ],
    ids=["yz", "another system", "seeds alone", "as given"],
)
def test_what_is_not_given_is_taken_from_the_sweep(
    axes: dict, recorded: tuple[str, ...], given: dict, want: tuple[str, str]
) -> None:
    dataset = sweep(axes, *recorded)
    config = plot.completed(plot.Plot("runs/some", **given), dataset)
    assert (config.x, config.observable) == want
    assert plot.chosen(dataset, config).name == want[1]
