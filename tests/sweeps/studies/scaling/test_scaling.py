"""Finite-size scaling: its arithmetic against SciPy, and systems whose answer is known."""

import json

import numpy as np
import pytest
from scipy import special, stats
from scipy.interpolate import CubicSpline, make_smoothing_spline

import dynsim
from sweeps.studies.scaling import PENALTIES, Verdict, decide, laws, scaling, smoother, step
from sweeps.studies.scaling.figure import ScalingFigure
from sweeps.studies.scaling.laws import Estimate, Power
from sweeps.systems.experiment import Experiment
from tests.sweeps.studies.scaling.quadratic import Quadratic

FEW = np.exp([1.0, 2, 3])
HALF = np.sqrt(3 / 2)
"""Error of one random half of 5 seeds, of which it has 3, that is off by 1."""


def stiffness(x):
    """Matrix of the integral of the square of a natural spline's second derivative, by SciPy's
    smoothing spline, which solves (1 + matrix) f = y."""
    smooth = [make_smoothing_spline(x, each, lam=1.0)(x) for each in np.eye(len(x))]
    return np.linalg.inv(np.array(smooth).T) - np.eye(len(x))


def test_curves_are_smoothed_as_by_scipy():
    x = np.cumsum([0, 1, 0.5, 2, 1, 1, 0.25, 1.5, 1])
    values = np.random.default_rng(0).normal(size=9)
    largest = np.linalg.eigvalsh(stiffness(x))[-1]
    modes, kept, fine, slope = smoother(tuple(x.tolist()))
    assert len(fine) == 8 * 20 + 1
    # Four penalties for each decade.
    np.testing.assert_allclose(PENALTIES, 10.0 ** np.arange(-12, 2.25, 0.25))
    np.testing.assert_allclose(fine[[0, 10, 30, 160]], [0, 0.5, 1.25, x[-1]])
    for i in (30, 42, 50):
        smooth = modes @ (kept[i] * (modes.T @ values))
        wanted = make_smoothing_spline(x, values, lam=PENALTIES[i] / largest * 9**4)
        np.testing.assert_allclose(smooth, wanted(x), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(slope @ smooth, wanted(fine, 1), rtol=1e-4, atol=1e-6)


def test_the_penalty_is_that_of_the_seeds_left_out_one_by_one():
    x, rng = np.linspace(0, 1, 15) ** 1.3 * 10, np.random.default_rng(1)
    values = special.expit(x - 4)[:, None] + 0.3 * rng.normal(size=(15, 6))
    matrix = stiffness(x)
    penalties = PENALTIES / np.linalg.eigvalsh(matrix)[-1] * 15**4
    ways = [np.linalg.inv(np.eye(15) + penalty * matrix) for penalty in penalties]
    lost = [
        sum(((values[:, s] - way @ np.delete(values, s, 1).mean(1)) ** 2).sum() for s in range(6))
        for way in ways
    ]
    assert 0 < np.argmin(lost) < len(ways) - 1
    smooth = CubicSpline(x, ways[int(np.argmin(lost))] @ values.mean(1), bc_type="natural")
    fine = np.linspace(0, 1, 20, endpoint=False)
    fine = np.append((x[:-1, None] + fine * np.diff(x)[:, None]).ravel(), x[-1])
    rise = smooth(fine, 1)
    top = left = right = int(np.argmax(rise))
    while rise[left] >= rise[top] / 2:
        left -= 1
    while rise[right] >= rise[top] / 2:
        right += 1
    found = step(x, values, np.full((1, 6), 1 / 6), 1)
    np.testing.assert_allclose(np.ravel(found), [fine[top], fine[right] - fine[left]])
    assert np.isnan(step(x, values, np.full((1, 6), 1 / 6), -1)).all()
    # Over falling x the same is the mirror image.
    mirror = step(-x[::-1], values[::-1], np.full((1, 6), 1 / 6), -1)
    np.testing.assert_allclose(np.ravel(mirror), [-fine[top], fine[right] - fine[left]])


def test_a_power_law_has_the_error_of_its_residuals_or_of_the_seeds():
    """Over logarithms 1, 2, 3 residuals of 0.1, -0.2 and 0.1 tilt nothing."""
    logs = 4 - 0.5 * np.log(FEW) + [0.1, -0.2, 0.1]
    found = laws.power(FEW, np.exp([logs, logs]), 5)
    assert (found.exponent.value, found.prefactor) == pytest.approx((-0.5, np.exp(4)))
    # The sum of squares, 0.06, over one degree of freedom and the variance of x.
    assert found.exponent.error == pytest.approx(np.sqrt(0.06 / 2))
    tilted = logs + 0.4 * np.log(FEW)
    found = laws.power(FEW, np.exp([logs, tilted]), 5, 0.01)
    student = stats.t.isf(0.01, 4) / stats.norm.isf(0.01)
    assert found.exponent == pytest.approx((-0.5, 0.4 * HALF * student))
    gap = np.array([[1.0, np.nan, 4]])
    two = laws.power(FEW, gap.repeat(2, 0), 5)
    assert two.exponent == pytest.approx((np.log(2), laws.LEAST_ERROR))
    assert np.isnan(laws.power(FEW, np.array([[np.nan, np.nan, 4]]), 5).exponent).all()


LOGISTIC = 2 * np.log(3 + np.sqrt(8))
"""Width at half height of the slope of 1 / (1 + exp(-x)), which is 1 / (4 cosh(x/2)^2)."""
CRITICAL = 1 - special.gamma(0.25) ** 4 / (24 * np.pi**2)
"""Binder cumulant at the critical point of the mean field, whose density is exp(-m^4)."""


def curie_weiss(sizes, x, seeds):
    """|m| of the mean-field Ising model by size, logarithm of the temperature over the critical
    one, and seed, drawn exactly: the weight of m is a binomial coefficient times exp(N m^2/2T)."""
    rng = np.random.default_rng(0)
    found = np.empty((len(sizes), len(x), seeds))
    for i, n in enumerate(sizes):
        up = np.arange(n + 1)
        m = 2 * up / n - 1
        binomial = -special.betaln(up + 1, n - up + 1)
        logs = binomial + n * m**2 / (2 * np.exp(x)[:, None])
        shares = np.cumsum(special.softmax(logs, axis=1), axis=1)
        for j, share in enumerate(shares):
            found[i, j] = np.abs(m[np.minimum(np.searchsorted(share, rng.random(seeds)), n)])
    return found


def thresholds(sizes, x, width, seeds=48):
    """1 for a seed beyond its own threshold, else 0: logistic steps at 0 of a width for each
    size."""
    drawn = np.random.default_rng(1).logistic(size=(len(sizes), 1, seeds))
    return (x[:, None] > drawn * width[:, None, None] / LOGISTIC).astype(float)


@pytest.mark.parametrize("seeds", [4, 64])
def test_error_of_a_mean_is_that_of_the_textbook(seeds):
    values = np.random.default_rng(2).normal(size=(1, 300, seeds))
    drawn = laws.moments(values, np.ones(1), laws.weights(seeds, 200)).mean
    textbook = values.std(-1, ddof=1) / np.sqrt(seeds)
    ratio = laws.error(drawn, seeds) / textbook
    assert ratio.mean() == pytest.approx(1, rel=0.05)


def test_a_step_that_keeps_moving_has_no_limit():
    sizes = np.array([2.0, 4, 8, 16, 32])
    places = (1 + 1.5 * np.log(sizes))[None].repeat(9, 0)
    fit = laws.limit(sizes, places, 0.5, 5)
    assert (fit.place.value, fit.drift.value) == pytest.approx((1, 1.5))
    np.testing.assert_allclose(fit.at(sizes), places[0])
    # Which sizes are known is what the data say; a draw that lacks one is left out.
    places[1, 2] = np.nan
    assert laws.limit(sizes[:3], places[:, :3], 0.5, 5).drift.value == pytest.approx(1.5)
    # By less than its width it may as well approach a limit slowly.
    assert laws.limit(sizes, places, 9, 5).drift.value == 0


@pytest.mark.parametrize(("inverse_nu", "beta_nu"), [(0.5, 0.25), (1, 0), (0.8, 0.1)])
def test_curves_that_scale_exactly_collapse(inverse_nu, beta_nu):
    x, sizes = np.linspace(0, 2, 81), np.array([10.0, 20, 40, 80])
    scaled = (x - 0.9) * sizes[:, None] ** inverse_nu
    curves = np.logaddexp(0, -2 * scaled) ** 0.5 * sizes[:, None] ** -beta_nu
    places, widths = np.full(4, 0.85), 3 * sizes**-inverse_nu
    found = laws.collapse(
        x + 0 * sizes[:, None], sizes, curves[None].repeat(4, 0), places, widths, 3
    )
    assert found is not None
    fit = np.array([each.value for each in found[:3]])
    assert fit[0] == pytest.approx(0.9, abs=0.01)
    assert fit[1:] == pytest.approx((inverse_nu, beta_nu), abs=0.03)
    assert found.misfit < 0.2
    # Of points up to a width from the step, whose errors are at least 1 % of their range.
    near = [np.abs(x - 0.85) <= width for width in widths]
    parts = [curve[part] for curve, part in zip(curves, near, strict=True)]
    rough = 0.01 * np.ptp(np.concatenate(parts))
    data = [(x[n], p, np.full(len(p), rough)) for n, p in zip(near, parts, strict=True)]
    assert found.misfit == pytest.approx(laws.misfit(fit, sizes, data), rel=1e-9)


def ising_model(samples):
    sizes, x = (64, 128, 256, 512, 1024), np.linspace(-0.5, 0.4, 37)
    return scaling(x, np.array(sizes), curie_weiss(sizes, x, samples), draws=20)


def test_the_mean_field_ising_model_has_a_transition():
    ising = ising_model(1000)
    assert ising.verdict is Verdict.TRANSITION
    # 1/nu = 1/2 for the number of spins; a size this small has corrections of a tenth.
    assert -ising.width.exponent.value == pytest.approx(0.5, abs=0.15)
    assert ising.peak.exponent.value == pytest.approx(0.5, abs=0.1)
    assert ising.collapse is not None
    assert ising.collapse.x_c.value == pytest.approx(0, abs=0.03)
    assert ising.collapse.inverse_nu.value == pytest.approx(0.5, abs=0.1)
    assert ising.collapse.beta_nu.value == pytest.approx(0.25, abs=0.1)


def test_binder_cumulants_of_the_mean_field_cross_at_the_critical_point():
    ising = ising_model(256)
    assert (np.abs(ising.crossings.value) < 4 * ising.crossings.error).all()
    assert ising.crossings.error[-1] < 0.02
    at = np.argmin(np.abs(np.linspace(-0.5, 0.4, 37)))
    near = np.abs(ising.moments.binder[1:, at] - CRITICAL) / ising.errors.binder[1:, at]
    assert near.max() < 4


SIZES = np.array([8.0, 16, 32, 64, 128])
X = np.linspace(-6, 6, 49)


def test_a_step_of_fixed_width_is_a_crossover():
    found = scaling(X, SIZES, 0.1 * thresholds(SIZES, X, 3.0 + 0 * SIZES), draws=20)
    assert found.verdict is Verdict.CROSSOVER
    assert "it levels off, a > 0.25 is excluded" in found.why
    assert abs(found.width.exponent.value) < 3 * found.width.exponent.error
    # Of seeds that are 0 or 0.1 the variance at the middle is 0.01 / 4, whatever the size.
    assert found.peak.exponent.value == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(np.nanmax(found.moments.susceptibility, 1), SIZES / 400, rtol=0.05)


def test_few_seeds_or_points_decide_nothing_about_a_step_that_narrows():
    widths = 5 * (SIZES / 8) ** -0.5
    # A single seed of each half says nothing about how much to smooth.
    two = scaling(X, SIZES, thresholds(SIZES, X, widths, seeds=2), draws=4)
    assert (two.verdict, np.isnan(two.width.exponent.error)) == (Verdict.UNDECIDED, True)
    coarse = X[::5]
    found = scaling(coarse, SIZES, thresholds(SIZES, coarse, widths), draws=20)
    assert found.verdict is Verdict.UNDECIDED
    assert "too narrow for the points" in found.why


def law(exponent, error):
    return Power(Estimate(exponent, error), 1)


@pytest.mark.parametrize(
    ("all_sizes", "larger", "verdict"),
    [
        (law(-0.5, 0.1), law(-0.5, 0.2), "transition"),
        (law(-0.5, 0.3), law(-0.5, 0.2), "undecided"),
        (law(-0.5, 0.1), law(-0.2, 0.1), "undecided"),
        (law(-0.5, 0.1), law(-0.5, 0.6), "undecided"),
        # Among the larger sizes it may have levelled off: their exponent is 1.9 errors above 0.
        (law(-0.5, 0.1), law(-0.38, 0.2), "undecided"),
        (law(-0.5, 0.1), law(-0.41, 0.2), "transition"),
        (law(0.0, 0.05), law(0.0, 0.3), "crossover"),
        # 0.25 is 2.08 errors above 0, which excludes it at 2.5 %, and not at the half of it.
        (law(0.0, 0.12), law(0.0, 0.3), "undecided"),
        # 0.25 is 2.31 errors above 0, between the points of 1.25 % (2.24) and 0.83 % (2.39).
        (law(0.0, 0.108), law(0.0, 0.3), "crossover"),
        # It has levelled off among the larger sizes.
        (law(-0.4, 0.05), law(-0.02, 0.05), "crossover"),
        (law(0.5, 0.1), law(0.5, 0.1), "crossover"),
        (law(-0.5, np.nan), law(-0.5, np.nan), "undecided"),
    ],
)
def test_verdicts(all_sizes, larger, verdict):
    assert decide(np.array([4.0, 8, 16, 32, 64]), all_sizes, larger)[0] == verdict


def scaled(out, run, **options):
    ScalingFigure(run, **options, out=out).save()
    assert (out / "scaling.png").stat().st_size > 10_000
    return json.loads((out / "scaling.json").read_text())


@pytest.mark.more
def test_the_divergence_line_of_a_quadratic_sharpens_with_the_steps(tmp_path, capsys):
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
