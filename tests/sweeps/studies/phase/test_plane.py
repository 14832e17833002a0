"""Limits of the settings of a plane, curves of a made-up map, and what a diagram is made of."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from sweeps.studies.phase import figure
from sweeps.studies.phase.diagram import Phase
from sweeps.studies.phase.maps import boundary
from sweeps.studies.phase.plane import Plane, Tally
from sweeps.studies.phase.regions import BY_STATUS
from sweeps.systems.experiment import experiment


def plane(x: str = "eta_y:1:2", y: str = "eta_z:1:2", **settings: Any) -> Plane:
    return Plane(experiment(steps=4), x, y, **settings)


@pytest.mark.parametrize(
    ("allowed", "refused", "message"),
    [
        (
            {"x": "eta_y:1:2:4096", "y": "eta_z:1:2:4096"},
            {"x": "eta_y:1:2:4097", "y": "eta_z:1:2:4096"},
            "are 16781312 points, at most 16777216 can be drawn",
        ),
        ({"refine": True, "resolution": 34}, {"refine": True, "resolution": 33}, "from 33 values"),
        (
            {"refine": True, "x": "eta_y:1:2:34", "y": "eta_z:1:2:3"},
            {"refine": True, "x": "eta_y:1:2:33", "y": "eta_z:1:2:3"},
            "have 33 and 3 values, .* needs more than 33 on one axis",
        ),
        (
            {"refine": True, "tolerance": 0.1},
            {"tolerance": 0.1},
            "tolerance = 0.1: only refine reads it",
        ),
        ({"band": 1.0, "seeds": 8}, {"band": 1.0, "seeds": 7}, "seeds = 7: band needs at least 8"),
        (
            {"band": 1.0, "seeds": 9, "max_seeds": 9},
            {"band": 1.0, "seeds": 9, "max_seeds": 8},
            "max_seeds = 8: must be at least seeds = 9",
        ),
    ],
)
def test_settings_are_allowed_up_to_their_limit(allowed: dict, refused: dict, message: str) -> None:
    assert list(plane(**allowed).axes()) == ["eta_y", "eta_z"]
    with pytest.raises(ValueError, match=message):
        plane(**refused).axes()


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
    wide = Plane(experiment(steps=4, dtype="float64"), ZOOM, "eta_z:1:2", refine=True)
    theory = plane(ZOOM, refine=True, theory="symmetric")
    # `figure phase` has another meaning for this name, descent in the precision of the runs.
    run = experiment(steps=4)
    assert len(Phase(run, ZOOM, refine=True, theory="symmetric").axes()["eta_y"]) == 85
    for config in (wide, theory):
        assert len(config.axes()["eta_y"]) == 1000
        for each in config.sweeps().values():
            each.check()


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


def test_a_diagram_is_made_of_its_maps_the_noise_and_the_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"eta_y": [1.0, 2], "eta_z": [0.1, 0.2]}
    over = lambda values: xr.DataArray(values, axes, ("eta_y", "eta_z"))
    region = over([[0, 1], [1, 1]])
    first = xr.Dataset({"region": region, "computed": region == region, "seeds": region * 0 + 1})
    first = first.assign_attrs(runs=7)
    other = first.assign(region=over([[0, 0], [1, 1]])).assign_attrs(runs=5)
    noise, ties, edge = (over([[-1.0, x], [1, 1]]) for x in (2.0, 3.0, 4.0))
    asked: dict[str, Any] = {}

    def note(name: str, result: Any) -> Any:
        def noted(*given: Any, **options: Any) -> Any:
            asked[name] = given
            return result

        return noted

    spread = SimpleNamespace(load=lambda: "predicted")
    for name, result in (
        ("panels_of", {"simulation": (first, None), "flow": (other, None)}),
        ("run_sweep", spread),
        ("with_steps", iter(())),
        ("draw", Figure()),
    ):
        monkeypatch.setattr(figure, name, note(name, result))
    for module, name, result in (
        (figure.diagram, "most_distinct", 3),
        (figure.diagram, "winning_spread", 0.5),
        (figure.diagram, "noise", noise),
        (figure.limits, "flow_of", "flows"),
        (figure.limits, "tie_lines", {"ties": ties}),
        (figure.limits, "edge_lines", {"edge": edge}),
        (figure.limits, "told", []),
        (figure.limits, "outside", ["line edge: left out"]),
    ):
        monkeypatch.setattr(module, name, note(name, result))
    kept: dict[str, Any] = {}
    monkeypatch.setattr(
        figure.output, "write", lambda out, stem, **each: kept.update(each) or [out / stem]
    )
    scatter = SimpleNamespace(check=lambda: None, first=SimpleNamespace(built=("layer", "rule")))
    config: Any = SimpleNamespace(
        edge=True,
        refine=False,
        run="run",
        observable="loss",
        out=tmp_path,
        axes=lambda: axes,
        lines=dict,
        scatter=lambda: scatter,
    )
    assert figure.run(config, BY_STATUS) == [tmp_path / "phase"]
    assert asked["flow_of"] == ("run", axes)
    assert asked["most_distinct"] == ("layer",)
    assert asked["winning_spread"] == (3,)
    assert asked["run_sweep"] == (scatter, tmp_path / "spread")
    assert asked["noise"] == ("predicted", 0.5)
    assert asked["tie_lines"] == (scatter,)
    flows, places, out = asked["edge_lines"]
    assert (flows, places, out.parent) == ("flows", axes, tmp_path)
    assert asked["with_steps"][3] is ties
    told = asked["draw"][4]
    assert [each.name for each in told] == ["flow", "flow with noise", "noise", "ties"]
    arrays = kept["arrays"]
    np.testing.assert_array_equal(arrays["noise"], noise)
    np.testing.assert_array_equal(arrays["ties"], ties)
    np.testing.assert_array_equal(arrays["line/edge"], edge)
    assert arrays["agreement"]["flow"] == 3 / 4
    said = capsys.readouterr().out
    assert said.startswith("12 runs in ")
    assert "line edge: left out" in said
    # The most common of the regions of training.
    assert "(its most common region alone: 75.0 %)" in said
