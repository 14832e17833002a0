"""Limits of the settings of a plane, and curves of a made-up map."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import xarray as xr

from sweeps.studies.phase.counts import Tally
from sweeps.studies.phase.maps import boundary
from sweeps.studies.phase.plane import Phase
from sweeps.studies.phase.regions import BY_STATUS, TRAINED
from sweeps.systems.experiment import experiment


def plane(x: str = "eta_y:1:2", y: str = "eta_z:1:2", **settings: Any) -> Phase:
    return Phase(experiment(steps=4), x, y, **{"against": "none", **settings})


ZOOM = "eta_y:1:1.00001:1000"
"""Over 84 float32 from 1 on, 2^-23 apart: 1e-5 2^23 = 83.9."""


def test_a_plane_that_float32_cannot_resolve_is_an_error_or_refined_as_far_as_it_goes() -> None:
    (wanted,) = plane(ZOOM, resolution=5).sweeps().values()
    with pytest.raises(ValueError, match=r"axes.eta_y: .* equal in float32 \(85 of 1000 values"):
        wanted.check()
    found = plane(ZOOM, refine=True, resolution=40)
    across, up = found.axes().values()
    assert (len(across), len(up)) == (85, 40)
    assert (np.diff(np.float32(across)) > 0).all()
    for each in found.sweeps().values():
        each.check()
    few = plane("eta_y:1:1.000001:1000", "eta_z:1:1.000001", refine=True)
    with pytest.raises(ValueError, match=r"have 9 and 9 values, .* those that differ in float32; "):
        few.axes()
    # In double precision all differ, as in theories.
    run = experiment(steps=4, dtype="float64")
    wide = Phase(run, ZOOM, "eta_z:1:2", refine=True, against="none")
    theory = plane(ZOOM, refine=True, theory="plain")
    # For the layer this is another name of descent, which has the precision of the runs.
    assert len(plane(ZOOM, refine=True, theory="symmetric").axes()["eta_y"]) == 85
    for config in (wide, theory):
        assert len(config.axes()["eta_y"]) == 1000
        for each in config.sweeps().values():
            each.check()


def test_what_a_problem_does_not_say_has_to_be_given() -> None:
    layer, other = Phase(experiment(steps=4)), Phase(experiment("saxe", steps=4))
    assert (list(layer.axes()), layer.shown) == (["eta_y", "eta_z"], "entropy")
    assert (other.shown, other.rule()) == ("loss", BY_STATUS)
    with pytest.raises(ValueError, match="saxe has no default axes"):
        other.axes()
    axes = {"x": "eta:0.1:1", "y": "u0:0.1:1"}
    assert list(dataclasses.replace(other, **axes).sweeps()) == ["simulation"]
    best = dataclasses.replace(other, **axes, against="best").sweeps()
    assert list(best) == ["simulation", "modes"]
    assert Phase(experiment(steps=4), regions="trained").rule() is TRAINED


def test_curves_of_a_map_are_where_its_shares_have_their_level() -> None:
    """Shares that are linear in the indices of the points, over a logarithmic and a linear axis."""
    i, j = np.indices((3, 4))
    above = 0.4 * i + 0.05 * j
    shares = np.stack([1 - above, above], -1)
    dims = ("rate", "size", "code")
    computed = (i + 2 * j) % 3 > 0
    found = xr.Dataset(
        {
            "share": (dims, shares),
            "low": (dims, shares - 0.1),
            "high": (dims, shares + 0.1),
            "computed": (dims[:2], computed),
        },
        {
            "rate": ("rate", [1.0, 10, 100], {"units": "1/step"}),
            "size": ("size", [0.0, 1, 2, 3]),
            "code": [0, 3],
            "name": ("code", ["below", "above"]),
        },
    )
    table = boundary(found)
    wanted = {("share", 0.1), ("share", 0.5), ("share", 0.9), ("low", 0.5), ("high", 0.5)}
    pieces = {}
    for piece, rows in table.groupby("piece"):
        region, level, of = (np.unique(rows[name]).item() for name in ("region", "level", "of"))
        across, up = np.log10(rows["x"].values), rows["y"].values
        value = 0.4 * across + 0.05 * up
        value = value if region == "above" else 1 - value
        value = value + {"share": 0, "low": -0.1, "high": 0.1}[of]
        np.testing.assert_allclose(value, level)
        near = np.rint(across).astype(int), np.rint(up).astype(int)
        np.testing.assert_array_equal(rows["computed"], computed[near])
        # In order along the curve, which goes one way.
        assert len({*np.sign(np.diff(up))} - {0.0}) == 1
        pieces[piece] = region, (of, level)
    assert sorted(pieces) == list(range(10))
    assert {*pieces.values()} == {(r, each) for r in ("above", "below") for each in wanted}
    assert table["x"].attrs == {"units": "1/step", "axis": "rate"}
    assert table["y"].attrs == {"axis": "size"}
    # A row has no curves, and a map of single runs no shares.
    assert boundary(found.isel(size=[0])).sizes["vertex"] == 0
    with pytest.raises(ValueError, match="a boundary needs several seeds"):
        boundary(found.drop_vars("share"))


def test_shares_are_linear_between_points_with_runs_and_nearest_in_a_row() -> None:
    for width in (1, 2, 3):
        tally = Tally((9, width), BY_STATUS, "loss")
        tally.counts[0, :, 0], tally.counts[8, :, 1] = 4, 2
        step = np.arange(9) / 8 if width > 1 else np.repeat([0.0, 1.0], [4, 5])
        want = np.stack([1 - step, step, 0 * step, 0 * step], -1)
        # In a row the middle is as near to either end.
        places = [i for i in range(9) if width > 1 or i != 4]
        found = tally.shares[places]
        np.testing.assert_allclose(found, np.repeat(want[places, None], width, 1), atol=1e-12)
