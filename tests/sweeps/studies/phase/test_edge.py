"""The edge of stability against a system whose descent is an exact map of two numbers."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from numpy.typing import ArrayLike

import dynsim
from dynsim import Status
from papers.catapult import Network
from sweeps.studies.phase import edge
from sweeps.studies.phase.regions import (
    BY_EDGE,
    BY_STATUS,
    DIVERGED,
    Stability,
    stability_of,
    trained,
)
from sweeps.systems.diagrams import Line
from sweeps.systems.experiment import Experiment, experiment
from tests.systems.catapult import descended

STEPS = 200
RATES = (0.5, 1.5, 1.9, 2.2, 3.0, 3.5, 4.3, 6.0)
"""Times the norm of 1: regions end at 2 and 4, and near 2 a run takes longer than its steps."""


def run_of(eta: float) -> dynsim.Trajectory:
    return dynsim.train(
        Network(),
        dynsim.sgd(eta),
        jax.random.key(0),
        steps=STEPS,
        batch=math.inf,
        times=range(STEPS + 1),
        record=BY_EDGE.record,
        dtype="float64",
    )


def region(loss: ArrayLike, sharpness: ArrayLike, status: int = Status.OK) -> Stability:
    values = {"loss": ("time", loss), edge.PRECONDITIONED: ("time", sharpness)}
    return Stability(int(stability_of(xr.Dataset({**values, "status": status}))))


def test_regions_of_a_two_layer_linear_network_are_its_exact_ones() -> None:
    found = []
    for eta in RATES:
        run = run_of(eta)
        if run.ok:
            exact = descended(eta, 1.0, Network().output, STEPS)[:, 0] ** 2 / 2
            # Weights start in float32, 6e-8 off, which a factor of each of 200 steps multiplies.
            np.testing.assert_allclose(run["loss"], exact, rtol=1e-3, atol=1e-12)
        values = (np.asarray(run[name]) for name in BY_EDGE.record)
        found.append(region(*values, int(run.status)).name)
    assert found == ["STABLE"] * 3 + ["CATAPULT"] * 3 + ["DIVERGED"] * 2


def test_each_region_has_its_rule() -> None:
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
def test_the_line_is_where_the_rate_times_the_norm_is_two(tmp_path: Path) -> None:
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
def test_lines_are_interpolated_in_the_logarithm_and_along_the_points(
    recorded: str,
) -> None:
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


def test_seeds_are_in_the_band_of_a_line_by_how_many_diverge() -> None:
    """Of six points on either side of a line, by the share of runs that diverge there."""
    places = {"x": np.arange(4.0), "y": np.arange(3.0)}
    values = xr.DataArray(places["x"][:, None] - 1.5 + 0 * places["y"], places, ("x", "y"))
    # Not diverged in 10 to 90 % of the runs: four of the first six; diverged: three of the others.
    share = np.array([[0.0, 0.11, 0.5], [0.3, 0.89, 0.95], [0.05, 0.2, 0.95], [0.7, 1.0, 0.45]])
    code = next(c for c, (name, _) in BY_STATUS.legend.items() if name == DIVERGED)
    others = [c for c in BY_STATUS.legend if c != code]
    shares = {c: (1 - share) * (c == others[0]) for c in others} | {code: share}
    region = np.where(share > 0.5, code, others[0])
    found = xr.Dataset(
        {
            "region": (("x", "y"), region),
            "share": (("code", "x", "y"), np.stack([*shares.values()])),
        },
        {**places, "code": [*shares]},
    )
    line = Line("edge-start", "edge at the start", values)
    (said,) = edge.predicted([line], BY_STATUS, found)
    assert (said.agreement.within, said.agreement.right) == pytest.approx((7 / 12, 7 / 12))
    assert "(58.3 % do not diverge)" in said.text
    assert (said.name, said.line.text) == ("edge-start", "edge at the start")
    # A rule that has no such region, and lines that are not in the plane.
    other = BY_STATUS._replace(legend={c: BY_STATUS.legend[c] for c in others})
    assert list(edge.predicted([line], other, found)) == []
    lost = values.where(values != 1.5)
    # Lines that are not in the plane, touch it, or are not known everywhere.
    for moved in (values + 9, values + 1.5, values - 1.5, lost):
        assert list(edge.predicted([line._replace(values=moved)], BY_STATUS, found)) == []


def test_its_share_is_that_of_the_points_that_diverge_beyond_it() -> None:
    x, y = np.arange(4.0), np.arange(3.0)
    places = {"x": x, "y": y}
    values = xr.DataArray(x[:, None] - 1.5 + 0 * y, places, ("x", "y"))
    region = np.full((4, 3), Status.OK)
    # One of six beyond the line ends well, and one of six before it does not.
    region[2:] = Status.DIVERGED
    region[3, 0], region[0, 0] = Status.OK, Status.DIVERGED
    found = xr.Dataset({"region": (("x", "y"), region)}, places)
    (told,) = edge.predicted([Line("edge", "", values)], BY_STATUS, found)
    assert told.agreement.right == pytest.approx(10 / 12)
    assert "50.0 % do not diverge" in told.text


def test_what_has_no_edge_is_left_out_with_the_reason() -> None:
    axes = {"eta_y": (0.1, 1.0), "eta_z": (0.1, 1.0)}
    with pytest.raises(ValueError, match="the preconditioner of adam is not known"):
        edge.flow_of(experiment(rule="adam"), axes)
    with pytest.raises(ValueError, match="the problem has no population loss"):
        edge.flow_of(experiment("two_stage"), {"r": (0.1, 1.0), "tau": (0.1, 1.0)})
    # Of so short sequences there is no expansion, and the flow is that of infinite ones.
    flows = edge.flow_of(experiment(length=4), axes)
    assert flows.run.setting("length") == "inf"


def test_trained_is_below_one_and_not_diverged() -> None:
    relative = np.array([0.2, 1.0, 7.0, np.nan, np.inf, 0.2])
    status = np.array([0, 0, 0, 0, 0, Status.DIVERGED])
    runs = xr.Dataset({"relative_loss": ("run", relative), "status": ("run", status)})
    assert trained(runs).values.tolist() == [1, 0, 0, 0, 0, 0]
