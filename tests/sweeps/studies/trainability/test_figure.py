"""The figure of trainability from runs that train on one side of a line, without training any."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from dynsim import Status
from sweeps.runner.spec import Sweep
from sweeps.studies.options import Line
from sweeps.studies.phase.refinement import Level
from sweeps.studies.trainability import figure
from sweeps.studies.trainability.figure import Trainability

OPTIONS: dict[str, Any] = {"eta_y": (0.1, 10.0), "eta_z": (1.0, 1e6), "cells": 3, "levels": 3}


def relative(eta_y: np.ndarray, eta_z: np.ndarray) -> np.ndarray:
    """A loss that is 1 on a line that is no diagonal of the plane."""
    return np.log10(eta_y) / 2 + np.log10(eta_z) / 3 - 0.1


class Stored:
    """Runs of a sweep over both rates, whose last one diverges at a small loss."""

    def __init__(self, sweep: Sweep) -> None:
        rates = {name: np.asarray(sweep.fields[name]) for name in ("eta_y", "eta_z")}
        loss = relative(**rates)[:, None]
        status = np.where(rates["eta_y"] * rates["eta_z"] > 9e6, Status.DIVERGED, Status.OK)
        runs = {"relative_loss": loss, "status": status[:, None]}
        self.found = xr.Dataset({name: (("run", "seed"), each) for name, each in runs.items()})

    def load(self) -> xr.Dataset:
        return self.found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sweep, Path]]:
    """The sweeps that are run, whose losses are made up, and where they are kept."""
    sweeps: list[tuple[Sweep, Path]] = []

    def run_sweep(sweep: Sweep, out: Path) -> Stored:
        sweeps.append((sweep, out))
        return Stored(sweep)

    monkeypatch.setattr(figure, "run_sweep", run_sweep)
    return sweeps


def test_arrays_are_those_of_the_runs_and_cells_are_cut_where_their_corners_differ(
    asked: list[tuple[Sweep, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figure, "draw", lambda *given: drawn.append(given) or Figure())
    # Nobody asked for an edge.
    monkeypatch.setattr(figure, "edges_of", None)
    config = Trainability(**OPTIONS, fit=(0, 2), out=tmp_path)
    figure.run(config)
    with np.load(tmp_path / "trainability.npz") as kept:
        found = dict(kept)
    np.testing.assert_array_equal(found["fit"], [0, 2])
    np.testing.assert_allclose(found["eps"], [1 / 3, 1 / 6, 1 / 12, 1 / 24])
    trained = lambda y, z: (relative(y, z) < 1) & (y * z < 9e6)
    for level, cells in enumerate((3, 6, 12, 24)):
        y, z, loss = (found[f"level-{level}/{n}"] for n in ("eta_y", "eta_z", "relative_loss"))
        np.testing.assert_allclose(loss, relative(y, z), rtol=1e-12)
        np.testing.assert_array_equal(found[f"level-{level}/trained"], trained(y, z))
        # On the whole grid, of which both boundaries are connected.
        at = np.arange(cells + 1) / cells
        whole = trained(*np.meshgrid(0.1 * 100**at, 1e6**at, indexing="ij"))
        corners = np.stack([whole[:-1, :-1], whole[:-1, 1:], whole[1:, :-1], whole[1:, 1:]])
        cut = np.argwhere(corners.any(0) & ~corners.all(0))
        low = np.stack([0.1 * 100 ** (cut[:, 0] / cells), 1e6 ** (cut[:, 1] / cells)], -1)
        high = np.stack(
            [0.1 * 100 ** ((cut[:, 0] + 1) / cells), 1e6 ** ((cut[:, 1] + 1) / cells)], -1
        )
        boundary = found[f"level-{level}/boundary"]
        assert boundary.shape == (len(cut), 4, 2)
        np.testing.assert_allclose(boundary.min(1), low, rtol=1e-9)
        np.testing.assert_allclose(boundary.max(1), high, rtol=1e-9)
        assert found["N"][level] == len(cut)
    x, counts = -np.log(found["eps"][:3]), np.log(found["N"][:3])
    slope, error = np.polyfit(x, counts, 1, cov="unscaled")
    rest = counts - np.polyval(slope, x)
    # One degree of freedom is left of three points.
    want = slope[0], np.sqrt(error[0, 0] * (rest @ rest))
    np.testing.assert_allclose(found["dimension"], want, rtol=1e-9)
    ((given, _, dimension, fit, edges),) = drawn
    assert (given, fit, edges) == (config, (0, 2), {})
    assert dimension[:2] == pytest.approx(want)


def test_runs_have_the_rates_of_both_groups_and_the_settings_of_the_run(
    asked: list[tuple[Sweep, Path]], tmp_path: Path
) -> None:
    config = Trainability(**OPTIONS, theory="descent", out=tmp_path)
    figure.refine(config).levels()
    for sweep, out in asked:
        assert (sweep.theory, sweep.record, sweep.fields["seed"]) == (
            "descent",
            ("relative_loss",),
            (config.run.seed,),
        )
        assert sweep.title == f"trainability, {out.name}"
        assert out.parent == tmp_path
        assert (sweep.first.steps, sweep.first.problem.length) == (100, 4)
    assert [out.name for _, out in asked][:2] == ["level-0", "level-1"]


def test_the_edge_is_computed_drawn_and_told_where_it_is_asked_for(
    asked: list[tuple[Sweep, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figure, "draw", lambda *given: drawn.append(given) or Figure())
    # Beyond all four values of eta_y, and beyond the upper two.
    up = np.arange(4.0)[:, None] + np.zeros(4)
    lines = {name: xr.DataArray(up - at) for name, at in (("edge-start", 9), ("edge", 1.5))}
    monkeypatch.setattr(figure, "edges_of", lambda config: lines)
    figure.run(Trainability(**OPTIONS, edge=True, out=tmp_path))
    assert drawn[0][-1] is lines
    # Levels 1 to the last, if it is not said.
    assert drawn[0][-2] == (1, 3)
    with np.load(tmp_path / "trainability.npz") as kept:
        np.testing.assert_array_equal(kept["line/edge"], up - 1.5)
        np.testing.assert_array_equal(kept["line/edge-start"], up - 9)
    left_out, share = capsys.readouterr().out.splitlines()
    assert left_out.startswith("line edge-start: not in the plane")
    assert share.startswith("line edge: ")


@pytest.mark.parametrize(
    ("slope", "error", "region", "text"),
    [
        (1.234, 0.056, (1, 0), "box-counting slope 1.23 ± 0.06 (levels 2 to 4)"),
        (1.234, np.nan, (1, 0), "levels 2 and 4 alone give no box-counting dimension"),
        (np.nan, np.nan, (1, 1), "no boundary: every run trained"),
        (np.nan, np.nan, (0, 0), "no boundary: no run trained"),
    ],
)
@pytest.mark.more
def test_the_boundary_is_summarised(
    slope: float, error: float, region: tuple[int, int], text: str
) -> None:
    coarse = Level(np.zeros((2, 2)), np.array(region), np.zeros(2), np.zeros((0, 2), int), 0.5)
    assert figure.summary([coarse], Line(slope, error, 0.0), (2, 4)) == text
