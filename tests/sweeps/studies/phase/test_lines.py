"""Lines of a phase diagram and what they say, on made-up maps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from sweeps.studies.phase import figure, panels
from sweeps.studies.phase.regions import BY_STATUS

PLACES = {"eta_y": [1.0, 2, 4], "eta_z": [0.1, 0.2]}
REGION = xr.DataArray(np.zeros((3, 2), int), PLACES, ("eta_y", "eta_z"))


def test_closed_forms_are_zero_where_they_are_1_and_lie_over_the_plane_as_drawn() -> None:
    """Up and across, as contours are drawn; lines that stay on one side are left out."""
    closed = {
        "rise_end": np.array([[0.5, 1, 2], [1, 2, 4]]),
        "snap": np.array([[2.0, 3, 4], [5, 6, 7]]),
        "bound": np.array([[0.5, 1, 2], [1, 2, 4]]),
    }
    noise = xr.DataArray([[-1.0, 1], [-2, 2], [-3, 3]], PLACES, ("eta_y", "eta_z"))
    own = {"a": noise * 2, "high": noise + 9, "touches": noise + 3, "lost": noise.where(noise != 3)}
    rise, snow, first = panels.lines_of(closed, noise, own, REGION)
    assert (rise.name, snow.name, first.name) == ("rise_end", "noise", "a")
    for line in (rise, snow, first):
        assert line.values.dims == ("eta_z", "eta_y")
    np.testing.assert_allclose(rise.values, np.log(closed["rise_end"]))
    np.testing.assert_allclose(snow.values, [[-1, -2, -3], [1, 2, 3]])
    assert (rise.style[1], first.style[0]) == (":", "C0")


def test_agreement_is_told_of_theories_noise_and_lines() -> None:
    first = xr.Dataset({"region": REGION.copy(data=[[0, 0], [1, 0], [1, 1]])})
    other = xr.Dataset({"region": REGION.copy(data=[[0, 0], [0, 0], [1, 1]])})
    closed = {"peak": np.array([[0.5, 2, 4], [0.5, 0.6, 4]])}
    told = figure.theory({"simulation": first, "flow": other}, BY_STATUS, closed, None, {})
    assert [each.name for each in told] == ["flow", "peak"]
    assert told[0].agreement.right == pytest.approx(5 / 6)
    # At eta_z = 0.2 and eta_y = 2 it is below 1, as are both at eta_y = 1.
    assert told[1].agreement.right == pytest.approx(1)
    words = (BY_STATUS.legend[code][0] for code in (1, 0))
    assert told[1].text == "{} on one side and {} on the other".format(*words)
    lines = list(figure.reported(told, "simulation", first["region"]))
    assert "(its most common region alone: 50.0 %)" in lines[0]
    assert lines[1].startswith("  flow: 83.3 %")
    assert lines[2].startswith("  line peak: 100.0 %, ")
    assert list(figure.reported([], "simulation", first["region"])) == []


def test_theories_without_seeds_have_steps_where_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = REGION.copy(data=[[0, 0], [1, 0], [1, 1]])
    first = xr.Dataset({"region": region})
    seeded = xr.Dataset({"region": region, "share": region})
    drawn = {"simulation": first, "flow": first, "noisy": seeded, "calm": first}
    config = SimpleNamespace(run="run", observable="loss", out=tmp_path)
    monkeypatch.setattr(figure, "sweep", lambda config, theory: theory)
    asked: list[Any] = []

    def stepped(run: Any, flow: Any, ties: Any, noisy: str, tally: Any, out: Path) -> Any:
        asked.append((run, ties, noisy, tally.counts.shape, tally.observable, out.name))
        return None if out.name.startswith("calm") else flow * 0

    monkeypatch.setattr(figure.limits, "stepped", stepped)
    ties = xr.DataArray(1.0)
    (found,) = figure.with_steps(config, drawn, BY_STATUS, ties)
    assert found.name == "flow with steps where they are large"
    assert found.agreement.right == pytest.approx(1 / 2)
    shape = (3, 2, len(BY_STATUS.legend))
    assert [each[2:] for each in asked] == [
        ("symmetric-noise", shape, "loss", f"{name}-with-steps") for name in ("flow", "calm")
    ]
    assert asked[0][1] is ties


def test_what_was_computed_is_told() -> None:
    computed = REGION.copy(data=[[True, False], [True, False], [True, False]])
    about = {"dimension": 1.254, "probes": 8, "failures": 1, "bound": 0.41, "band": 1.5}
    seeds = REGION.copy(data=[[8, 0], [16, 0], [64, 64]])
    found = xr.Dataset({"computed": computed, "seeds": seeds}, attrs=about)
    config = SimpleNamespace(refine=True, band=1.5)
    points, band = figure.said(config, found)
    assert points == (
        "50 % of 6 points computed about a boundary of dimension 1.25; 1 of 8 random points among "
        "the others were not as inferred, so with 95 % confidence at most 41 % of the plane is "
        "wrong"
    )
    assert band == "8 to 64 seeds at a point; the boundary is uncertain by at most 1.5 points"
    found.attrs |= {"dimension": np.nan, "probes": 0, "band": 1.6}
    points, band = figure.said(config, found)
    assert points == "50 % of 6 points computed, nothing probed"
    assert band.endswith("1.6 points, more than band = 1.5: max_seeds is reached")
