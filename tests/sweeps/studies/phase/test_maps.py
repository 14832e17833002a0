"""Refined diagrams: the same regions as the full grid, resumed, and told from what was inferred."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps.studies.phase import figure, maps
from sweeps.studies.phase.plane import Phase, at_points
from sweeps.systems.experiment import experiment

THEORY = "symmetric-descent"
AXES = {"x": "eta_y:0.1:100:45", "y": "eta_z:0.1:10:3"}


def options(out: Path, refine: bool) -> Phase:
    run = experiment(steps=20)
    return sweeps.diagrams.Phase(run, **AXES, theory=THEORY, out=out, refine=refine, probes=12)


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, xr.Dataset]:
    """A refined map, and the folder of its stores."""
    out = tmp_path_factory.mktemp("refined")
    return out, sweeps.diagrams.maps(options(out, refine=True))[THEORY]


@pytest.mark.more
def test_a_refined_diagram_has_the_regions_of_the_full_one(
    refined: tuple[Path, xr.Dataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, found = refined
    full = sweeps.diagrams.maps(options(tmp_path, refine=False))[THEORY]
    assert full.computed.all()
    assert len(np.unique(full.region)) > 1
    np.testing.assert_array_equal(found.region, full.region)
    assert found.attrs["runs"] == found.computed.sum() < found.computed.size
    # Nothing that was inferred has a value, and what has one is what the full grid has.
    np.testing.assert_array_equal(found.entropy.isnull(), ~found.computed)
    # float32 and its rounding, in programs of other widths.
    np.testing.assert_allclose(found.entropy, full.entropy.where(found.computed), rtol=1e-5)
    assert found.drawn.notnull().all()
    # What is drawn and written is read from the stores, and is the same.
    figure.run(options(out, refine=True))
    said = capsys.readouterr().out
    assert "0 of 12 random points among the others" in said
    assert f"about a boundary of dimension {found.attrs['dimension']:.2f};" in said
    with np.load(out / "phase.npz") as arrays:
        for name in ("region", "entropy", "computed"):
            np.testing.assert_array_equal(arrays[f"{THEORY}/{name}"], found[name])
        assert arrays[f"{THEORY}/bound"] == found.attrs["bound"]


def test_an_interrupted_refinement_resumes_to_the_same_map(
    refined: tuple[Path, xr.Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ran = maps.run_sweep, []

    def noted(sweep: sweeps.Sweep, out: Path, **options: object) -> xr.Dataset:
        if not out.exists():
            ran.append(out.name)
        if len(ran) == 3:
            raise sweeps.Interrupted("stopped")
        return run(sweep, out, **options)

    monkeypatch.setattr(maps, "run_sweep", noted)
    with pytest.raises(sweeps.Interrupted):
        sweeps.diagrams.maps(options(tmp_path, refine=True))
    ran.append("resumed")
    xr.testing.assert_identical(
        sweeps.diagrams.maps(options(tmp_path, refine=True))[THEORY], refined[1]
    )
    # What was stored is not run again.
    assert ran[2] == ran[4]
    assert len(set(ran)) == len(ran) - 1


def test_the_points_of_a_level_are_zipped_and_lines_are_on_their_grid() -> None:
    full = sweeps.Sweep(
        experiment(steps=4, eta_y=1.0),
        {"momentum": [0.0, 0.5, 0.9], "eta_z": [1.0, 2.0], "seed": [0, 1]},
        "symmetric-descent",
        ("loss",),
        title="plane",
    )
    points = np.indices((3, 2)).reshape(2, -1).T
    some = at_points(full, points[[0, 3]], "level-1")
    assert some.fields == {"momentum": (0.0, 0.5), "eta_z": (1.0, 2.0), "seed": (0, 1)}
    assert [(dim.name, dim.size) for dim in some.dims] == [("momentum", 2), ("seed", 2)]
    assert some.title == "plane, level-1"
    zipped = sweeps.run(at_points(full, points, "level-0"), progress=False)
    grid = maps.on_grid(zipped, "momentum", "eta_z").transpose("momentum", "eta_z", "seed", ...)
    np.testing.assert_array_equal(grid.loss, sweeps.run(full, progress=False).loss)
    np.testing.assert_array_equal(grid.eta_z, [1.0, 2.0])
