"""Figures of several papers: measured on maps, laws and curves that are known."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
import odes
import sweeps
from dynsim import Status, Trajectory
from papers import linear_icl, sparse_attention
from papers.catapult import Network
from papers.linear_icl.figure import LinearICL
from papers.linear_icl.plateaus import Plateaus, summary
from papers.qkv import figure
from papers.qkv.figure import FactorFlow
from papers.sparse_attention.figure import SparseAttention
from papers.two_stage.spectrum import Spectrum
from sweeps import cli
from tests.papers import made
from tests.systems.catapult import descended


@pytest.mark.parametrize("eta", [1.5, 3.0])
def test_descent_and_its_theory_are_the_map_of_the_paper(eta):
    want = descended(eta, 1.0, 0.01, 40)
    options = {"times": range(41), "dtype": "float64", "record": ["curvature", "loss"]}
    problem, rule, key = Network(), dynsim.sgd(eta), jax.random.key(0)
    theory = odes.theories(problem)["map"].solve(problem, rule, key=key, **options)
    run = dynsim.train(problem, rule, key, steps=40, batch=np.inf, **options)
    for found in (theory, run):
        # Weights start in float32.
        np.testing.assert_allclose(found["curvature"], want[:, 1], rtol=1e-4)
        np.testing.assert_allclose(found["loss"], want[:, 0] ** 2 / 2, rtol=1e-3, atol=1e-9)


def test_the_phases_end_where_the_paper_has_them(tmp_path, capsys):
    assert cli.main(["figure", "catapult", "--points", "18", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "from eta lambda = 2.25 on" in printed
    assert "diverges from eta lambda = 4.25 on" in printed
    with np.load(tmp_path / "catapult.npz") as arrays:
        eta, curvature = arrays["eta"], arrays["rates/simulation/curvature"]
    lazy, catapulted = eta < 2, (eta > 2) & (eta < 4)
    np.testing.assert_allclose(curvature[lazy], 1, atol=1e-3)
    assert (curvature[catapulted] < 2 / eta[catapulted]).all()


def test_errors_are_distances_over_how_far_descent_went(tmp_path, monkeypatch):
    """Descent moves at a speed of 1 plus its seed, one theory at the speed of the scale and the
    other at twice that, which fails at the scale 4."""

    def moved(speed, status=Status.OK):
        along = jnp.arange(11.0) * speed
        values = {"attention": jnp.stack([along] * 3, -1), "loss": 1 - along}
        return Trajectory(jnp.arange(11), values, None, jnp.int32(status), jnp.int32(-1), "")

    def runs(self, width, scale, seed):
        assert jax.config.jax_enable_x64
        factors = moved(2 * scale, Status.SOLVER_FAILED * (scale == 4))
        return moved(1.0 + seed), {"plain": moved(scale), "factors": factors}

    monkeypatch.setattr(FactorFlow, "runs", runs)
    assert cli.main(["figure", "qkv", "--out", str(tmp_path)]) == 0
    assert {path.suffix for path in tmp_path.glob("qkv.*")} == {".npz", ".png"}
    away = lambda speed: np.hypot(speed - 1, speed / 2 - 1) / 2**0.5
    scales = np.array(figure.SCALES)
    with np.load(tmp_path / "qkv.npz") as arrays:
        for measure in ("attention", "loss"):
            plain, factors = arrays[f"plain/{measure}"], arrays[f"factors/{measure}"]
            assert plain.shape == (4, 5)
            np.testing.assert_allclose(plain[-1], away(scales))
            np.testing.assert_allclose(factors[0], [*away(2 * scales[:-1]), np.nan])


TINY = {"stage_2": 0.5, "d": 4, "length": 7, "batch": 8, "pool": 16, "num_test": 16}
TINY |= {"decay": 0.2, "eta_2": 0.1}


@pytest.mark.more
def test_both_stages_of_every_run_are_examined_at_their_ends(tmp_path):
    Spectrum(run=sweeps.experiment("two_stage", **TINY), seeds=2, out=tmp_path).save()
    stored = sweeps.open(tmp_path / "simulation").load()
    np.testing.assert_array_equal(stored.time, 2 * [[6, 6 + 25]])
    with np.load(tmp_path / "spectrum.npz") as arrays:
        found = {stage: arrays[f"stage-{stage}/singular"] for stage in (1, 2)}
    for stage, values in found.items():
        for seed in range(2):
            W, V = (stored[f"{name}_signal"][seed, stage - 1].values for name in "WV")
            both = np.concatenate([np.linalg.svd(x, compute_uv=False) for x in (W, V)])
            # float32.
            np.testing.assert_allclose(values[seed], np.sort(both)[::-1], rtol=1e-4, atol=1e-5)
    assert (tmp_path / "spectrum.png").stat().st_size > 10_000


def test_the_closed_form_is_the_root_law():
    assert sparse_attention.closed_form(256, 16) == pytest.approx(256 * math.sqrt(8 * math.pi))
    ratio = sparse_attention.closed_form(256, 64, 4) / sparse_attention.closed_form(256, 64)
    assert ratio == pytest.approx(1 / 2)


def test_the_law_is_fitted_where_the_plateau_ended():
    T = xr.DataArray([256, 512], {"length": [256, 512]}, name="loss")
    by_size = {d: 1.5 * d**0.5 * T for d in (16, 64)}
    assert sparse_attention.law(by_size) == pytest.approx((1.5, 1))
    by_size[64] = by_size[64].where(by_size[64].length < 512)
    assert sparse_attention.law(by_size) == pytest.approx((1.5, 1))


def test_adam_with_noise_escapes_where_its_loss_has_fallen_to_four_fifths(monkeypatch):
    def solve(task, rule, times, *, batch):
        assert isinstance(rule, dynsim.Adam)
        assert (task.T, task.d, times[-1]) == (64, 64, 400)
        # Down from 0.5 by one part in ten batches at every step, so at 0.4 after two batches.
        loss = 0.5 * (1 - np.array(times) / (10 * batch))
        return Trajectory(np.array(times), {"loss": loss}, None, np.array(0), np.array(-1), "")

    monkeypatch.setattr(sparse_attention.odes.sparse_attention.finite_batch, "solve", solve)
    assert sparse_attention.with_noise() == pytest.approx(2 * sparse_attention.BATCH)


def test_the_figure_reports_exponents_of_the_flow(monkeypatch):
    """Losses of flows fall in a straight line to 0 in five times (64 + T^0.7 d^0.4) steps."""
    monkeypatch.setattr(sparse_attention, "with_noise", lambda: 12.3)
    figure = SparseAttention(seeds=2)
    data = {name: made.falling(each) for name, each in figure.sweeps().items()}
    for name in sparse_attention.RULES:
        for T, d in sparse_attention.LADDER:
            flow = data[f"{name}/{T}-{d}"]
            flow["loss"] = 1 - flow.time / (5 * T**0.7 * d**0.4) + 0 * flow.loss
    picture = figure.draw(data)
    assert len(picture.figure.axes) == 3
    # The root law at d = 64, for lengths with one copy and for copies at T = 256.
    rows = [line.split() for line in picture.text.split("\n")]
    law = {int(each[0]): float(each[-1]) for each in rows if each[0].isdigit()}
    want = {T: T * (32 * math.pi) ** 0.5 for T in (256, 512, 1024, 2048, 4096)}
    want |= {B: 256 * (32 * math.pi / B) ** 0.5 for B in (1, 2, 4, 8)}
    assert law == pytest.approx(want, rel=1e-4)
    row = next(line.split() for line in picture.text.split("\n") if line.startswith("momentum"))
    assert [float(row[i]) for i in (-3, -2)] == pytest.approx([0.7, 0.4], abs=1e-4)


def test_escapes_of_stairs_are_halfway_between_plateaus():
    times = np.geomspace(1, 1000, 400)
    stairs = np.where(times < 10, 1.0, np.where(times < 11, 0.6, 0.3))
    slope = np.interp(np.log(times), [0, np.log(20)], [1.0, 0.2])
    rest = np.ones_like(times)
    loss = xr.DataArray([stairs, slope, rest], {"time": times}, ("run", "time"))
    levels = xr.DataArray([1.0, 0.6, 0.3], dims="plateau")
    escapes = linear_icl.escapes(loss, levels).transpose("run", "plateau")
    want = [[10, 11], 20 ** np.array([0.25, 0.6875]), [np.nan, np.nan]]
    np.testing.assert_allclose(escapes, want, rtol=times[1] / times[0] - 1)


def test_the_last_plateau_is_the_one_that_the_heads_can_reach():
    """D = 3 with plateaus at 1, 0.6, 0.3 and 0.1: one head can end at 0.6; of four heads, one run
    ends at 0.1 and one a plateau higher. Eq. 21 is right about the plateaus of a half."""
    axes = {"heads": [1, 4], "ratio": [0.5], "seed": [0, 1]}
    number = xr.DataArray([[[2, 2]], [[4, 3]]], axes)
    trained = xr.Dataset({"plateaus": number, "escape": number * 0 + 2.0})
    trained["end"] = trained.plateaus.dims, [[[0.6, 0.6]], [[0.1, 0.3]]]
    trained["level"] = ("ratio", "plateau"), [[1, 0.6, 0.3, 0.1]]
    theory = trained.assign(plateaus=number * 0 + 4, escape=trained.escape * 1.5)
    one, four = (line.split()[1:] for line in summary((trained, theory), "heads").split("\n")[-2:])
    assert one == ["2.00", "0.00", "1.50", "100.00"]
    assert four == ["3.50", "50.00", "1.50", "50.00"]


@pytest.mark.parametrize("figure", [LinearICL(seeds=2), Plateaus(resolution=2, seeds=1)])
def test_pictures_have_four_and_six_panels(figure):
    picture = figure.draw({name: made.falling(each) for name, each in figure.sweeps().items()})
    panels = [ax for ax in picture.figure.axes if ax.get_title()]
    assert len(panels) == {"linear_icl": 4, "linear_icl_plateaus": 6}[figure.NAME]
    assert picture.text
