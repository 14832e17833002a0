"""Refined diagrams: the same regions as the full grid, resumed, and told from what was inferred."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import cli
from sweeps.studies.phase import maps
from sweeps.studies.phase.diagram import Phase
from sweeps.studies.phase.plane import sampled

ENGINE = "symmetric-descent"
X, Y = "eta_y:0.1:100:45", "eta_z:0.1:10:3"


def plane(out: Path, refine: bool) -> xr.Dataset:
    config = Phase(x=X, y=Y, engine=ENGINE, steps=20, out=out, refine=refine, probes=12)
    return sweeps.phase.maps(config)[ENGINE]


def test_a_refined_diagram_has_the_regions_of_the_full_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--engine", ENGINE, "--x", X, "--y", Y, "--steps", "20", "--refine", "--probes", "12"]
    assert cli.main(["phase", *words, "--out", str(tmp_path / "refined")]) == 0
    assert "0 of 12 random points among the others" in capsys.readouterr().out
    full = plane(tmp_path / "full", refine=False)
    assert full.computed.all()
    assert len(np.unique(full.region)) > 1
    with np.load(tmp_path / "refined" / "phase.npz") as arrays:
        found = {name.removeprefix(f"{ENGINE}/"): values for name, values in arrays.items()}
    np.testing.assert_array_equal(found["region"], full.region)
    computed = found["computed"]
    assert found["runs"] == computed.sum() < computed.size
    # Nothing that was inferred has a value, and what has one is what the full grid has.
    np.testing.assert_array_equal(np.isnan(found["entropy"]), ~computed)
    # float32 and its rounding, in programs of other widths.
    entropy = full.entropy.values[computed]
    np.testing.assert_allclose(found["entropy"][computed], entropy, rtol=1e-5)


def test_an_interrupted_refinement_resumes_to_the_same_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plane(tmp_path / "whole", refine=True)
    run, ran = maps.run_sweep, []

    def noted(sweep: sweeps.Sweep, out: Path, **options: object) -> xr.Dataset:
        if not out.exists():
            ran.append(out.name)
        if len(ran) == 3:
            raise sweeps.Interrupted("stopped")
        return run(sweep, out, **options)

    monkeypatch.setattr(maps, "run_sweep", noted)
    with pytest.raises(sweeps.Interrupted):
        plane(tmp_path / "stopped", refine=True)
    ran.append("resumed")
    xr.testing.assert_identical(plane(tmp_path / "stopped", refine=True), whole)
    # What was stored is not run again.
    assert ran[2] == ran[4]
    assert len(set(ran)) == len(ran) - 1


def test_the_points_of_a_level_are_zipped_and_lines_are_on_their_grid() -> None:
    full = sweeps.Sweep(
        {"momentum": [0.0, 0.5, 0.9], "eta_z": [1.0, 2.0], "seed": [0, 1]},
        sweeps.Training(steps=4, eta_y=1.0),
        "symmetric-descent",
        ("loss",),
        title="plane",
    )
    points = np.indices((3, 2)).reshape(2, -1).T
    some = sampled(full, points[[0, 3]], "level-1")
    assert some.fields == {"momentum": (0.0, 0.5), "eta_z": (1.0, 2.0), "seed": (0, 1)}
    assert [(dim.name, dim.size) for dim in some.dims] == [("momentum", 2), ("seed", 2)]
    assert some.title == "plane, level-1"
    zipped = sweeps.run(sampled(full, points, "level-0"), progress=False)
    grid = maps.on_grid(zipped, "momentum", "eta_z").transpose("momentum", "eta_z", "seed", ...)
    np.testing.assert_array_equal(grid.loss, sweeps.run(full, progress=False).loss)
    np.testing.assert_array_equal(grid.eta_z, [1.0, 2.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--refine", "--probes", "-1"], "probes = -1: must be an integer >= 0"),
        (["--refine", "--tolerance", "-1"], "tolerance = -1.0: must be finite and in (0, 1]"),
        (["--tolerance", "0.1"], "tolerance = 0.1: only refine reads it"),
        (["--refine", "--resolution", "33"], "resolution = 33: refine starts from 33 values"),
    ],
)
def test_bad_input_is_named(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["phase", *options, "--out", str(tmp_path / "x")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
