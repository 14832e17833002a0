"""A phase diagram in one line: its dataset, its one panel, and its words."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps import cli
from sweeps.commands.views.diagrams import opened


@pytest.fixture(scope="module")
def catapult():
    """Descent on the catapult's two numbers, whose curvature at the start is 2 norm."""
    plane = {"x": "eta:0.5:8:7", "y": "norm:0.25:2:5"}
    return sweeps.phase("catapult", dynsim.sgd(1.0), **plane, steps=60, batch=np.inf)


def test_the_dataset_is_that_of_the_maps(catapult):
    (name,) = catapult.maps
    found, drawn = catapult.dataset.sel(theory=name), catapult.maps[name]
    assert dict(found.sizes) == {"eta": 7, "norm": 5}
    for each in ("region", "loss", "computed", "seeds"):
        np.testing.assert_array_equal(found[each], drawn[each])
    failed = drawn.region.values == int(dynsim.Status.DIVERGED)
    assert 0 < failed.mean() < 1
    assert catapult.dataset.regions[str(int(dynsim.Status.DIVERGED))] == "diverged"
    # A short name of what it is, with the share of each region.
    assert f"diverged {100 * failed.mean():.0f} %" in repr(catapult)
    assert len(repr(catapult)) < 200


def test_runs_that_fail_are_a_region_beside_those_of_ones_own(tmp_path):
    mine = sweeps.diagrams.Regions(
        record=("loss",),
        classify=lambda runs: 3 * (runs["loss"].isel(time=-1) < 1e-9).astype(int),
        legend={0: ("high", "#eeeeee"), 3: ("low", "#4c8bbe")},
        lines=lambda runs: {r"$\eta = 2$": runs["eta"] - 2 + 0 * runs["norm"]},
    )
    plane = {"x": "eta:0.5:8:7", "y": "norm:0.25:2:5", "steps": 60, "batch": np.inf}
    found = sweeps.phase("catapult", regions=mine, out=tmp_path, **plane)
    region = found.dataset.region.isel(theory=0).values
    # A code after the last one; what a failed run would be classified as does not count.
    status = sweeps.open(tmp_path / "simulation").status.isel(seed=0).values
    np.testing.assert_array_equal(region == 4, status != dynsim.Status.OK)
    assert set(np.unique(region)) == {0, 3, 4}
    assert found.dataset.regions["4"] == "diverged"
    # The line with a formula as its name is one without in the terminal.
    assert r"$\eta = 2$" in [line.name for line in found.theory.lines]
    assert "line eta = 2: " in str(found)


@pytest.mark.more
def test_one_panel_has_a_short_key_and_words_without_latex(tmp_path, capsys):
    x, y = "eta_y:0.01:100:8", "eta_z:1:100:6"
    words = f"phase --x {x} --y {y} --momentum 0.9 --steps 20 --no-noise --out"
    assert cli.main([*words.split(), str(tmp_path)]) == 0
    assert "$" not in capsys.readouterr().out
    options = {"momentum": 0.9, "steps": 20, "noise": False, "out": tmp_path}
    diagram = sweeps.phase(x=x, y=y, **options)
    figures = {panels: diagram.plot(panels) for panels in ("one", "all")}
    panels = {name: len(figure.axes) for name, figure in figures.items()}
    assert panels == {"one": 1, "all": 8}  # six maps, and two bars of colours
    (legend,) = figures["one"].legends
    assert 2 < len(legend.get_texts()) <= 6
    # The regions of training, as they are in the map.
    mesh, *_ = figures["one"].axes[0].collections
    codes = list(diagram.regions.legend)
    shown = np.take(codes, mesh.get_array().astype(int))
    np.testing.assert_array_equal(shown.T, diagram.maps["simulation"].region)
    (other,) = set(diagram.maps) - {"simulation"}
    right = (diagram.maps["simulation"].region == diagram.maps[other].region).mean()
    assert f"right at {100 * float(right):.1f} %" in legend.get_title().get_text()
    plt.close("all")


MINE = """import sweeps
MINE = sweeps.diagrams.Regions(
    record=("loss",),
    classify=lambda runs: (runs["loss"].isel(time=-1) < 1e-9).astype(int),
    legend={0: ("high", "#eeeeee"), 1: ("low", "#4c8bbe")},
)
"""


def test_opening_a_diagram_runs_no_code_that_it_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine_of_mine.py").write_text(MINE)
    plane = "--x eta:0.5:8:5 --y norm:0.25:2:4 --steps 60 --batch inf --regions mine_of_mine:MINE"
    assert cli.main(["phase", "catapult", *plane.split(), "--out", "drawn"]) == 0
    del sys.modules["mine_of_mine"]
    Path("mine_of_mine.py").write_text("open('ran', 'w')")
    (found,) = opened(["drawn"], print).values()
    assert not Path("ran").exists()
    # Each run has the region of its point in the figure, and the names that it had there.
    with np.load("drawn/phase.npz") as arrays:
        drawn = arrays["simulation/region"]
    np.testing.assert_array_equal(found.region.isel(seed=0).transpose("eta", "norm"), drawn)
    assert {0, 1, 2} == set(np.unique(drawn))
    assert [name for _, name, _ in found.region.attrs["region"]] == ["high", "low", "diverged"]
