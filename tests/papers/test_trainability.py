"""Trainability: made-up losses on the full grid, and a task that trains at any rate."""

import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from odes import symmetric
from papers.trainability import Trainability
from sweeps import cli


@pytest.mark.parametrize("steps", [12, 41])
def test_symmetric_descent_has_the_relative_loss_of_its_losses(steps):
    rates = np.array([0.3, 2.0, 5e3])
    run = symmetric.descend(
        symmetric.symmetric_task(dynsim.SynSmall().build()),
        dynsim.sgd(rates, rates[::-1], momentum=0.9),
        steps=steps,
        times=range(steps + 1),
        record=["relative_loss", "loss"],
    )
    for losses, found in zip(run["loss"], run["relative_loss"], strict=True):
        last = losses[max(0, steps - 20) : steps]
        np.testing.assert_allclose(found[-1], last.mean() / losses[0], rtol=1e-12)
        assert np.isnan(found[:-1]).all()


def relative(eta_y, eta_z):
    """A loss that is 1 on a curve."""
    y, z = np.log10(eta_y), np.log10(eta_z)
    return y / 2 + z / 3 - 0.1 + 0.3 * np.sin(2 * z)


class Stored:
    """Runs of a sweep over both rates, whose last ones diverge at a small loss."""

    def __init__(self, sweep, out):
        assert (sweep.theory, sweep.record) == ("descent", ("relative_loss",))
        assert sweep.fields["seed"] == (3,)
        assert (sweep.first.steps, sweep.first.setting("length")) == (100, 4)
        y, z = (np.asarray(sweep.fields[name]) for name in ("eta_y", "eta_z"))
        status = np.where(y * z > 9e6, dynsim.Status.DIVERGED, dynsim.Status.OK)
        runs = {"relative_loss": relative(y, z)[:, None], "status": status[:, None]}
        self.runs = xr.Dataset({name: (("run", "seed"), each) for name, each in runs.items()})

    def load(self):
        return self.runs


def test_arrays_are_those_of_the_runs_and_cells_are_cut_where_their_corners_differ(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sweeps, "run", Stored)
    run = sweeps.experiment(**Trainability.RUN, seed=3)
    Trainability(run, "descent", (0.1, 10.0), (1.0, 1e6), levels=3, out=tmp_path).save()
    with np.load(tmp_path / "trainability.npz") as stored:
        found = dict(stored)
    trained = lambda y, z: (relative(y, z) < 1) & (y * z < 9e6)
    for level, cells in enumerate((16, 32, 64, 128)):
        y, z, loss = (found[f"level-{level}/{n}"] for n in ("eta_y", "eta_z", "relative_loss"))
        np.testing.assert_allclose(loss, relative(y, z), rtol=1e-12)
        np.testing.assert_array_equal(found[f"level-{level}/trained"], trained(y, z))
        # On the whole grid, of which both boundaries are connected.
        at = np.arange(cells + 1) / cells
        whole = trained(*np.meshgrid(0.1 * 100**at, 1e6**at, indexing="ij"))
        corners = np.stack([whole[:-1, :-1], whole[:-1, 1:], whole[1:, :-1], whole[1:, 1:]])
        cut = np.argwhere(corners.any(0) & ~corners.all(0))
        boundary = found[f"level-{level}/boundary"]
        for end, each in ((0, boundary.min(1)), (1, boundary.max(1))):
            places = (cut + end) / cells
            np.testing.assert_allclose(each, [0.1, 1] * [100, 1e6] ** places, rtol=1e-9)
        assert found["N"][level] == len(cut)
        assert found["eps"][level] == 1 / cells
    np.testing.assert_array_equal(found["fit"], [1, 3])
    x, counts = -np.log(found["eps"][1:]), np.log(found["N"][1:])
    slope, error = np.polyfit(x, counts, 1, cov="unscaled")
    rest = counts - np.polyval(slope, x)
    # One degree of freedom is left of three points.
    want = slope[0], np.sqrt(error[0, 0] * (rest @ rest))
    # Its error is zero up to rounding, as the three points lie on a line.
    np.testing.assert_allclose(found["dimension"], want, rtol=1e-9, atol=1e-12)


def test_runs_are_counted_on_their_side_of_a_line(tmp_path, monkeypatch, capsys):
    """Beyond a relative loss of 2 no run trained; of those below, only the ones below 1."""
    monkeypatch.setattr(sweeps, "run", Stored)

    def edges(run, axes, out):
        y, z = np.meshgrid(axes["eta_y"], axes["eta_z"], indexing="ij")
        assert [*axes] == ["eta_z", "eta_y"]
        loss = relative(y, z)
        right.append(100 * (1 - np.mean((loss > 1) & (loss < 2))))
        values = xr.DataArray(loss - 2, {"eta_y": axes["eta_y"], "eta_z": axes["eta_z"]})
        return [sweeps.diagrams.Line("loss", "loss of 2", values, ("k", "-", 1.0))]

    right = []
    monkeypatch.setattr(sweeps.diagrams, "edges", edges)
    run = sweeps.experiment(**Trainability.RUN, seed=3)
    rates = (0.1, 10.0), (1.0, 1e6)
    Trainability(run, "descent", *rates, levels=3, edge=True, out=tmp_path).save()
    assert 0 < right[0] < 100
    assert f"line loss: {right[0]:.1f} % of the coarse grid" in capsys.readouterr().out


def test_where_everything_trains_there_is_no_boundary(tmp_path, capsys):
    """From zero weights the gradient of a symmetric task keeps its sign, so the loss stays below
    its start ln M whatever the rates are."""
    words = ["--theory", "symmetric-descent", "--eta-y", "1e-2", "1e9", "--eta-z", "1e-2", "1e9"]
    assert (
        cli.main(["figure", "trainability", *words, "--steps", "25", "--out", str(tmp_path)]) == 0
    )
    assert "no boundary: every run trained" in capsys.readouterr().out
    with np.load(tmp_path / "trainability.npz") as arrays:
        assert arrays["N"].tolist() == [0]
        assert (arrays["level-0/relative_loss"] < 1).all()
        assert np.isnan(arrays["dimension"]).all()
