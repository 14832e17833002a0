"""Planes, curves of maps, and the edge of stability against an exact map of descent."""

import math

import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Status
from papers.catapult import Network
from sweeps import cli
from sweeps.studies.phase import edge
from sweeps.studies.phase.maps import boundary
from sweeps.studies.phase.plane import Phase
from sweeps.studies.phase.regions import Stability, stability_of, trained
from sweeps.systems.experiment import Experiment, experiment


def plane(x="eta_y:1:2", y="eta_z:1:2", **settings):
    return Phase(experiment(steps=4), x, y, **{"against": "none", **settings})


ZOOM = "eta_y:1:1.00001:1000"
"""Over 84 float32 from 1 on, 2^-23 apart: 1e-5 2^23 = 83.9."""


def test_a_plane_that_float32_cannot_resolve_is_refined_as_far_as_it_goes():
    found = plane(ZOOM, refine=True, resolution=40)
    across, up = found.axes().values()
    assert (len(across), len(up)) == (85, 40)
    assert (np.diff(np.float32(across)) > 0).all()
    for each in found.sweeps().values():
        each.check()
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


def test_curves_of_a_map_are_where_its_shares_have_their_level():
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
    # A row has no curves.
    assert boundary(found.isel(size=[0])).sizes["vertex"] == 0


def region(loss, sharpness, status=Status.OK):
    values = {"loss": ("time", loss), edge.PRECONDITIONED: ("time", sharpness)}
    return Stability(int(stability_of(xr.Dataset({**values, "status": status}))))


def test_each_region_has_its_rule():
    assert region([1, 2, 0.1], [1, 1.9, 1]) == Stability.STABLE
    assert region([1, 2, 0.1], [3, 3, 1]) == Stability.CATAPULT
    assert region([1, 1.005, 0.1], [3, 3, 1]) == Stability.EDGE
    assert region([1, 2, 1.1], [3, 3, 1]) == Stability.EDGE
    assert region([1, 2, 0.1], [3, 3, 2.1]) == Stability.EDGE
    # Progressive sharpening: the sharpness rose to the edge, and ends above its start.
    assert region([1, 2, 0.1], [1, 2.1, 1.9]) == Stability.EDGE
    assert region([1, 2, 0.1], [3, 3, 1], Status.DIVERGED) == Stability.DIVERGED


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_the_line_is_where_the_rate_times_the_norm_is_two(tmp_path):
    """At the start, where it is exact for a small output; the flow takes the output to 0."""
    axes = {
        "eta": tuple(np.geomspace(0.5, 8, 30).tolist()),
        "norm": tuple(np.geomspace(0.25, 2, 20).tolist()),
    }
    run = Experiment(Network(), dynsim.sgd(1.0), 20, math.inf, "float64")
    flows = edge.flow_of(run, axes)
    # The ends of both axes and ten values between them, of one seed.
    assert {name: len(values) for name, values in flows.fields.items()} == {
        "eta": 12,
        "norm": 12,
        "seed": 1,
    }
    found = edge.edges(run, axes, tmp_path)
    assert list(map(edge.crosses, found)) == [True, True]
    eta, norm = np.meshgrid(*axes.values())
    for name, _, values, _ in found:
        # As contours are drawn.
        assert values.dims == ("norm", "eta")
        # Exact at f = 0, from which the output at the start is 0.01 away.
        np.testing.assert_allclose(values, np.log(eta * norm / 2), atol=0.01, err_msg=name)


@pytest.mark.parametrize("recorded", ["time", "record"])
def test_lines_are_interpolated_in_the_logarithm_and_along_the_points(recorded):
    """The logarithm of the sharpness rises with the number of a point on either axis, is largest at
    the second of three records, is negative at first in a corner, and not known in another one."""
    axes = {"eta": np.geomspace(0.5, 8, 30), "norm": np.linspace(1, 2, 20)}
    nodes = [np.unique(np.rint(np.linspace(0, len(v) - 1, 12)).astype(int)) for v in axes.values()]
    x, y = np.meshgrid(*nodes, indexing="ij")
    sharp = np.exp(0.1 * x[..., None, None] - 0.07 * y[..., None, None] + [0.2, 0.9, 0.5])
    sharp[0, 0, 0, 0] = -3.0
    sharp[-1, -1, 0, 2] = np.inf
    runs = xr.Dataset({edge.PRECONDITIONED: (("eta", "norm", "seed", recorded), sharp)})
    found = edge.values_of(runs.isel(seed=0), {n: tuple(v) for n, v in axes.items()})
    assert list(found) == ["edge-start", "edge"]
    rise = 0.1 * np.arange(30) - 0.07 * np.arange(20)[:, None] - np.log(2)
    for values, at in zip(found.values(), (0.2, 0.9), strict=True):
        assert values.dims == ("norm", "eta")
        for name, each in axes.items():
            np.testing.assert_array_equal(values[name], each)
        # But for the cells of both corners, of 2 or 3 points a side.
        np.testing.assert_allclose(values[3:17, 3:27], (rise + at)[3:17, 3:27], rtol=1e-9)
        np.testing.assert_allclose(values[-1, :27], (rise + at)[-1, :27], rtol=1e-9)
    start, along = found.values()
    assert start[0, 0] == pytest.approx(np.log(np.finfo(float).tiny))
    assert along[0, 0] == pytest.approx(0.9 - np.log(2))
    # What is infinite says nothing; of the other records something is known.
    assert start[-1, -1] == pytest.approx(2.9 - 19 * 0.07 + 0.2 - np.log(2))


def test_trained_is_below_one_and_not_diverged():
    relative = np.array([0.2, 1.0, 7.0, np.nan, np.inf, 0.2])
    status = np.array([0, 0, 0, 0, 0, Status.DIVERGED])
    runs = xr.Dataset({"relative_loss": ("run", relative), "status": ("run", status)})
    assert trained(runs).values.tolist() == [1, 0, 0, 0, 0, 0]


@pytest.mark.more
def test_a_phase_diagram_has_the_losses_and_regions_of_descent_written_out(tmp_path):
    """Aligned layers of singular values a take steps of eta a (s - a^2), here in NumPy."""
    words = "phase saxe --x eta:0.5:5:2 --y u0:0.01:0.1:2 --steps 60 --batch inf --out"
    assert cli.main([*words.split(), str(tmp_path)]) == 0
    s = 2.0 ** -np.arange(4)
    with np.load(tmp_path / "phase.npz") as arrays:
        status = arrays["simulation/region"]
        np.testing.assert_array_equal(status, [[Status.OK] * 2, [Status.DIVERGED] * 2])
        for u0, loss in zip((0.01, 0.1), arrays["simulation/loss"][0], strict=True):
            a = np.full(4, u0**0.5)
            for _ in range(60):
                a += 0.5 * a * (s - a**2)
            # What is left, a^2 - s = 1e-5, is a thousand roundings of float32, which add up.
            np.testing.assert_allclose(loss, ((a**2 - s) ** 2).sum() / 2, rtol=2e-2)
    assert (tmp_path / "phase.png").stat().st_size > 10_000
