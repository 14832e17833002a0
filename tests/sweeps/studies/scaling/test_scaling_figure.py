"""`dynsim figure scaling` on trained quadratics, whose divergence line is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dynsim
from sweeps.studies.scaling.figure import ScalingFigure, order_parameter
from sweeps.systems.experiment import Experiment
from tests.sweeps.studies.scaling.quadratic import Quadratic, Wishart


def scaled(out: Path, run: Experiment, **options: Any) -> dict:
    ScalingFigure(run, **options, out=out).save()
    assert (out / "scaling.png").stat().st_size > 10_000
    return json.loads((out / "scaling.json").read_text())


@pytest.mark.more
def test_the_divergence_line_of_a_quadratic_sharpens_with_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At curvature 2 the line is eta = 1. Next to it m = 1 / (1 + exp(-4 t ln eta - 2 ln w0)), so
    that all curves collapse with 1/nu = 1 and beta = 0."""
    axes = {"rate": "eta:0.8:1.25:49", "size": "steps:4:32:4"}
    run = Experiment(Quadratic(), dynsim.sgd(1.0), batch=1)
    found = scaled(tmp_path, run, **axes, observable="escaped", seeds=16)
    assert found["verdict"] == "transition"
    assert "transition: with L = steps, the width falls as L^(-a)" in capsys.readouterr().out
    assert -found["width"]["exponent"][0] == pytest.approx(1, abs=0.1)
    assert found["place"]["place"][0] == pytest.approx(0, abs=0.02)
    assert found["collapse"]["x_c"][0] == pytest.approx(0, abs=0.02)
    assert found["collapse"]["inverse_nu"][0] == pytest.approx(1, abs=0.1)
    assert found["collapse"]["beta_nu"][0] == pytest.approx(0, abs=0.05)
    with np.load(tmp_path / "scaling.npz") as arrays:
        assert arrays["values"].shape == (4, 49, 16)
        # Exact, for each seed: 2 steps more at eta = 1 change nothing.
        np.testing.assert_allclose(arrays["values"][0, 24], arrays["values"][3, 24], rtol=1e-3)


@pytest.mark.full("test_the_divergence_line_of_a_quadratic_sharpens_with_the_steps")
def test_the_divergence_line_of_random_quadratics_sharpens_with_their_dimension(
    tmp_path: Path,
) -> None:
    run = Experiment(Wishart(), dynsim.sgd(1.0), steps=800, batch=1)
    found = scaled(tmp_path, run, rate="eta:0.35:1.4:61", size="D:4:64:5", seeds=96)
    assert found["verdict"] == "transition"
    assert -found["width"]["exponent"][0] == pytest.approx(2 / 3, abs=0.15)
    assert np.exp(found["place"]["place"][0]) == pytest.approx(0.5, rel=0.1)


def test_order_parameters_of_runs() -> None:
    status = xr.DataArray([[0, 0], [0, 2]], dims=("eta", "seed"))
    loss = xr.DataArray(np.arange(16.0).reshape(2, 2, 2, 2), dims=("eta", "seed", "time", "class"))
    dataset = xr.Dataset({"status": status, "loss": loss})
    # The last time, the mean over classes, and nothing of a run that diverged.
    np.testing.assert_array_equal(order_parameter(dataset, "loss"), [[2.5, 6.5], [10.5, np.nan]])
    np.testing.assert_array_equal(order_parameter(dataset, "diverged"), [[0, 0], [0, 1]])


def test_axes_are_put_in_order() -> None:
    config = ScalingFigure(size="D:8,2,4", rate="eta:9:1:9:lin")
    assert config.axes() == {"D": (2, 4, 8), "eta": tuple(np.arange(1.0, 10))}
