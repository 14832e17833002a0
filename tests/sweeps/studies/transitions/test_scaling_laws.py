"""The arithmetic of finite-size scaling, against sums, SciPy's splines and numbers by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import special, stats
from scipy.interpolate import CubicSpline, make_smoothing_spline

from sweeps.studies.transitions.scaling import analysis, figure, laws
from sweeps.studies.transitions.scaling.analysis import Scaling, Verdict
from sweeps.studies.transitions.scaling.laws import Collapse, Limit, Moments, Power

SIZES = np.exp([1.0, 2, 3])
HALF = np.sqrt(3 / 2)
"""Error of one random half of 5 seeds, of which it has 3, that is off by 1."""


def stiffness(x: np.ndarray) -> np.ndarray:
    """Matrix of the integral of the square of a natural spline's second derivative, by SciPy's
    smoothing spline, which solves (1 + matrix) f = y."""
    smooth = [make_smoothing_spline(x, each, lam=1.0)(x) for each in np.eye(len(x))]
    return np.linalg.inv(np.array(smooth).T) - np.eye(len(x))


def test_curves_are_smoothed_as_by_scipy() -> None:
    x = np.cumsum([0, 1, 0.5, 2, 1, 1, 0.25, 1.5, 1])
    values = np.random.default_rng(0).normal(size=9)
    largest = np.linalg.eigvalsh(stiffness(x))[-1]
    modes, kept, fine, slope = analysis._smoother(tuple(x.tolist()))
    assert len(fine) == 8 * 20 + 1
    # Four penalties for each decade.
    np.testing.assert_allclose(analysis.PENALTIES, 10.0 ** np.arange(-12, 2.25, 0.25))
    np.testing.assert_allclose(fine[[0, 10, 30, 160]], [0, 0.5, 1.25, x[-1]])
    for i in (30, 42, 50):
        smooth = modes @ (kept[i] * (modes.T @ values))
        wanted = make_smoothing_spline(x, values, lam=analysis.PENALTIES[i] / largest * 9**4)
        np.testing.assert_allclose(smooth, wanted(x), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(slope @ smooth, wanted(fine, 1), rtol=1e-4, atol=1e-6)


def test_the_penalty_is_that_of_the_seeds_left_out_one_by_one() -> None:
    x, rng = np.linspace(0, 1, 15) ** 1.3 * 10, np.random.default_rng(1)
    values = special.expit(x - 4)[:, None] + 0.3 * rng.normal(size=(15, 6))
    matrix = stiffness(x)
    penalties = analysis.PENALTIES / np.linalg.eigvalsh(matrix)[-1] * 15**4
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
    found = analysis.step(x, values, np.full((1, 6), 1 / 6), 1)
    assert found.place[0] == pytest.approx(fine[top])
    assert found.width[0] == pytest.approx(fine[right] - fine[left])
    # Over falling x the same is the mirror image.
    mirror = analysis.step(-x[::-1], values[::-1], np.full((1, 6), 1 / 6), -1)
    assert mirror.place[0] == pytest.approx(-fine[top])
    assert mirror.width[0] == pytest.approx(fine[right] - fine[left])


def test_steps_go_the_way_of_most_and_points_without_values_are_left_out() -> None:
    x = np.arange(0.0, 13)
    falls = special.expit(5 - x)
    values = np.stack([falls, falls, 1 - falls])[..., None].repeat(3, 2)
    values[1, -1, 2] = np.nan
    places, widths = analysis.steps(x, values, np.full((1, 3), 1 / 3))
    assert places.shape == widths.shape == (1, 3)
    np.testing.assert_allclose(places[0, :2], 5, atol=0.1)
    assert np.isnan(places[0, 2])
    # The way from the first to the last point, also where a curve begins the other way.
    bent = falls + 0.04 * np.exp(-((x - 1) ** 2))
    assert bent[1] > bent[0]
    rises = 1 - bent
    for curve in (bent, rises):
        found, _ = analysis.steps(x, curve[None, :, None].repeat(3, 2), np.full((1, 3), 1 / 3))
        np.testing.assert_allclose(found[0, 0], 5, atol=0.2)


def test_halves_of_the_seeds_have_sum_1_and_half_of_them() -> None:
    drawn = laws.weights(5, 40)
    assert drawn.shape == (41, 5)
    np.testing.assert_allclose(drawn[0], 1 / 5)
    np.testing.assert_allclose(np.sort(drawn[1:], 1), [[0, 0, 1 / 3, 1 / 3, 1 / 3]] * 40)
    assert len(np.unique(drawn[1:], axis=0)) > 5
    np.testing.assert_array_equal(drawn, laws.weights(5, 40))


def test_moments_at_the_origin_and_of_one_seed() -> None:
    values = np.array([[[2.0, 2, 2], [2, 3, 4]]])
    found = laws.moments(values, np.array([6.0]), np.full((1, 3), 1 / 3), origin=2.0)
    np.testing.assert_allclose(found.susceptibility[0, 0], [0, 6], atol=1e-12)
    # 0, 1, 4 and 0, 1, 16: 1 - 17/3 / (3 (5/3)^2).
    np.testing.assert_allclose(found.binder[0, 0], [np.nan, 1 - 17 / 25])
    alone = laws.moments(values, np.array([6.0]), np.array([[0.0, 1, 0]]), origin=2.0)
    assert np.isnan(alone.susceptibility).all()
    np.testing.assert_allclose(alone.mean[0, 0], [2, 3])


def test_a_power_law_has_the_error_of_its_residuals_or_of_the_seeds() -> None:
    """Over logarithms 1, 2, 3 residuals of 0.1, -0.2 and 0.1 tilt nothing."""
    logs = 4 - 0.5 * np.log(SIZES) + [0.1, -0.2, 0.1]
    found = laws.power(SIZES, np.exp([logs, logs]), 5)
    assert (found.exponent, found.prefactor) == pytest.approx((-0.5, np.exp(4)))
    assert found.off == pytest.approx(np.exp(0.2) - 1)
    # The sum of squares, 0.06, over one degree of freedom and the variance of x.
    assert found.error == pytest.approx(np.sqrt(0.06 / 2))
    tilted = logs + 0.4 * np.log(SIZES)
    found = laws.power(SIZES, np.exp([logs, tilted]), 5, 0.01)
    student = stats.t.isf(0.01, 4) / stats.norm.isf(0.01)
    assert found.error == pytest.approx(0.4 * HALF * student)
    assert found.exponent == pytest.approx(-0.5)
    gap = np.array([[1.0, np.nan, 4]])
    two = laws.power(SIZES, gap.repeat(2, 0), 5)
    assert (two.exponent, two.error) == pytest.approx((np.log(2), laws.LEAST_ERROR))
    assert np.isnan(laws.power(SIZES, np.array([[np.nan, np.nan, 4]]), 5)).all()


def test_errors_of_a_limit_are_those_of_its_halves() -> None:
    sizes, at = np.array([2.0, 4, 8, 16]), laws.APPROACH[[30, 33]]
    moved = 0.5 - 2 * sizes ** -at[0], 0.7 - 2 * sizes ** -at[1]
    found = laws.limit(sizes, np.array(moved), 9.0, 5)
    assert (found.place, found.drift, found.amplitude) == pytest.approx((0.5, 0, -2))
    assert (found.error, found.drift_error) == pytest.approx((0.2 * HALF, 0))
    assert found.exponent_error == pytest.approx((at[1] - at[0]) * HALF)
    places = np.array([1 + 1.5 * np.log(sizes), 1.1 + 1.8 * np.log(sizes)])
    drift = laws.limit(sizes, places, 0.5, 5)
    assert (drift.error, drift.drift_error) == pytest.approx((0.1 * HALF, 0.3 * HALF))
    assert np.isnan(laws.limit(sizes[:2], places[:, :2], 0.5, 5)).all()
    # As far as it is wide, which is not further.
    assert laws.limit(sizes, places, float(np.ptp(places[0])), 5).drift == 0
    # A half that keeps moving is not what all seeds do.
    assert laws.limit(sizes, np.array([moved[0], places[1]]), 0.5, 5).place == pytest.approx(0.5)


def test_curves_cross_nearest_to_the_larger_size() -> None:
    x = np.linspace(0, 3, 7)
    zigzag = np.interp(x, [0, 1, 2, 3], [1.0, -1, 1, -1])
    found = laws.crossings(x, np.stack([0 * x, zigzag])[None], np.array([[0.4, 2.4]]))
    np.testing.assert_allclose(found, [[2.5]])
    # Equal up to 1, from where they part.
    part = np.maximum(x - 1, 0)
    found = laws.crossings(x, np.stack([0 * x, part])[None], np.array([[0.0, 0.0]]))
    np.testing.assert_allclose(found, [[1]])
    # A third of the way from 0 to 0.5.
    found = laws.crossings(x, np.stack([0 * x, x - 1 / 6])[None], np.array([[0.0, 3.0]]))
    np.testing.assert_allclose(found, [[1 / 6]])


def test_a_misfit_is_the_mean_square_distance_in_units_of_the_errors() -> None:
    """Scaled, both lie on lines that are 0.3 apart, of errors 0.1 and 0.2; the fourth point of the
    larger size has none to be compared with."""
    fit, sizes = np.array([0.5, 1.0, 2.0]), np.array([3.0, 6])
    small = np.array([0.0, 1, 2])
    large = np.array([0.0, 1, 2, 3])
    curves = [
        # By ratios of 1/2: x about x_c by 2, m by 4.
        (0.5 + 2 * small, 4 * small, np.full(3, 0.4)),
        (0.5 + large, large + 0.3, np.full(4, 0.2)),
    ]
    assert laws.misfit(fit, sizes, curves) == pytest.approx(0.09 / 0.05)
    same = np.zeros(3)
    ones = np.ones(2)
    touching = [(np.array([0.0, 1]), ones * 0, ones), (np.array([1.0, 2]), ones, ones)]
    assert laws.misfit(same, sizes, touching) == pytest.approx(1 / 2)
    apart = [touching[0], (np.array([1.0, 2, 3]), np.ones(3), np.ones(3))]
    assert laws.misfit(same, sizes, apart) == pytest.approx(1e9 * 3 / 5)


def test_a_collapse_has_errors_by_halves_and_needs_three_points() -> None:
    x, sizes = np.linspace(0, 2, 41), np.array([10.0, 20, 40])
    curves = np.array([special.expit(2 * (x - c) * sizes[:, None] ** 0.5) for c in (0.9, 0.95)])
    given = x + 0 * sizes[:, None], sizes, curves, np.full(3, 0.9), 4 * sizes**-0.5
    found = laws.collapse(*given, seeds=5)
    assert found is not None
    assert (found.x_c, found.inverse_nu) == pytest.approx((0.9, 0.5), abs=0.02)
    # What the minimum is found to.
    assert found.errors[0] == pytest.approx(0.05 * HALF, rel=0.2)
    assert laws.collapse(*given[:3], np.array([0.9, np.nan, np.nan]), given[4], 5) is None
    assert laws.collapse(*given[:3], np.array([0.9, np.nan, 0.9]), given[4], 5) is not None
    # The points 0.8, 0.9 and 1 are within 0.1 of 0.9, and two of them within 0.09 of 0.95.
    coarse = np.round(x[::2], 3) + 0 * sizes[:, None]
    narrow = coarse, sizes, curves[:, :, ::2], np.full(3, 0.9)
    assert laws.collapse(*narrow, np.full(3, 0.1 + 1e-9), 5) is not None
    assert laws.collapse(*narrow, np.full(3, 0.099), 5) is None


def test_a_collapse_is_sought_from_three_exponents_and_from_there_for_each_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In steps of half the width of the largest size that has one, and of half of these."""
    x, sizes = np.linspace(0, 2, 21) + np.zeros((3, 1)), np.array([10.0, 20, 40])
    mean = np.array([x, 2 * x, 3 * x])
    asked = []

    def minimize(function: Any, start: np.ndarray, given: Any, *_: Any, options: Any) -> Any:
        asked.append((start, options["initial_simplex"], given, options["xatol"]))
        assert function is laws.misfit
        # Of a misfit of about 1.
        assert options["fatol"] == 1e-4
        # The second start is best; those of halves end elsewhere.
        end = start + np.array([0.1, 0.2, 0.3 * len(asked)])
        return SimpleNamespace(x=end, fun=abs(start[1] - 0.5) + 2)

    monkeypatch.setattr(laws, "minimize", minimize)
    places, widths = np.array([0.7, 0.8, np.nan]), np.array([0.65, 0.45, 0.2])
    found = laws.collapse(x, sizes, mean, places, widths, seeds=5)
    assert found is not None
    assert (found.x_c, found.inverse_nu, found.beta_nu) == pytest.approx((0.9, 0.7, 0.6))
    assert found.misfit == 2
    # Halves are off by (0.1, 0.2, 1.2) and (0.1, 0.2, 1.5).
    off = np.array([0.1, 0.2, np.sqrt((1.2**2 + 1.5**2) / 2)])
    np.testing.assert_allclose(found.errors, off * HALF)
    step = np.array([0.225, 0.2, 0.1])
    starts = [*([0.8, exponent, 0] for exponent in (0.25, 0.5, 1.0)), *[[0.9, 0.7, 0.6]] * 2]
    for i, ((start, simplex, (used, curves), end), want) in enumerate(
        zip(asked, starts, strict=True)
    ):
        size = step / (1 if i < 3 else 2)
        np.testing.assert_allclose(start, want)
        np.testing.assert_allclose(simplex, start + np.vstack([np.zeros(3), np.diag(size)]))
        # A thousandth of the first step.
        assert end == pytest.approx(size[0] / 1000)
        np.testing.assert_array_equal(used, sizes[:2])
        row = max(i - 2, 0)
        for size_of, (across, m, error) in enumerate(curves):
            near = np.abs(x[0] - places[size_of]) <= widths[size_of]
            np.testing.assert_array_equal(across, x[0, near])
            np.testing.assert_array_equal(m, (row + 1) * across)
            # Halves are off by m and 2 m; of the plain means the range is 1.3, by 0.1 to 1.3.
            square = 5 / 2 * HALF**2 * across**2 + (0.01 * (1.3 - 0.1)) ** 2
            np.testing.assert_allclose(error**2, square)


def test_widths_that_the_points_resolve_make_the_laws() -> None:
    """Points 1 apart up to 20, then 2: a width of 3 is resolved before, of 6 behind, and of 4.5
    halfway between the middles of the intervals that differ."""
    x = np.append(np.arange(0.0, 21), np.arange(22.0, 41, 2))
    sizes = np.array([2.0, 4, 8, 16, 32, 64])
    places = np.array([5.0, 6, 8, 20.25, 30, 31])[None].repeat(2, 0)
    widths = np.array([[12.0, 8, 3, 4.5, 6, 5.9], [14, 9, 5, 4.4, 7, 8]])
    found = analysis.verdict_on(x, sizes, places, widths, 5, 0.05)
    used, late = slice(0, 5), slice(2, 5)
    want = np.array([[*widths[0, :5], np.nan], [14, 9, 5, np.nan, 7, np.nan]])
    np.testing.assert_array_equal(found.widths, want)
    for law, part in ((found.law, used), (found.late, late)):
        slope, intercept = np.polyfit(np.log(sizes[part]), np.log(widths[0, part]), 1)
        assert (law.exponent, law.prefactor) == pytest.approx((slope, np.exp(intercept)))
    assert found.why.endswith("; 1 of 6 steps are too narrow for the points")
    assert "at a level of 5 %" in found.why
    # Of exact laws, the error is that of a half of the seeds, at half the level.
    exact = np.array([40 * sizes**-0.3, 40 * sizes**-0.5])
    found = analysis.verdict_on(x, sizes, 0 * places + 5, exact, 5, 0.05)
    student = stats.t.isf(0.025, 4) / stats.norm.isf(0.025)
    for law in (found.law, found.late):
        assert (law.exponent, law.error) == pytest.approx((-0.3, 0.2 * HALF * student))
    assert found.why.startswith("the width falls as L^(-a), a = 0.30 ± 0.")


@pytest.mark.parametrize(
    ("number", "verdict"), [(4, "undecided"), (5, "crossover"), (6, "crossover")]
)
def test_two_larger_sizes_make_no_crossover(number: int, verdict: str) -> None:
    """Half of four are two, and half of five or six are three."""
    falling, level = Power(-0.4, 0.05, 1, 0), Power(-0.02, 0.05, 1, 0)
    found, why = analysis.decide(np.geomspace(4, 64, number), falling, level)
    assert found == verdict
    assert "a = 0.40 ± 0.05 (0.02 ± 0.05 for the larger half" in why


def test_curves_that_move_with_the_size_collapse_about_where_they_are() -> None:
    """expit of 5 (x - 0.4 ln L) L^0.2, above 2: the origin, which is not scaled."""
    x, sizes = np.linspace(-1, 3, 61), np.exp(np.arange(5.0))
    logs = np.log(sizes)[:, None]
    curve = special.expit(5 * (x - 0.4 * logs) * np.exp(0.2 * logs))
    values = 2 + curve[..., None].repeat(4, 2)
    found = analysis.scaling(x, sizes, values, origin=2.0, draws=2)
    assert found.place.drift == pytest.approx(0.4, rel=0.03)
    assert found.collapse is not None
    assert found.collapse.x_c == pytest.approx(0, abs=0.03)
    assert (found.collapse.inverse_nu, found.collapse.beta_nu) == pytest.approx((0.2, 0), abs=0.03)
    assert found.collapse.misfit < 0.1
    # Seeds that agree have the cumulant of one number, and no susceptibility.
    np.testing.assert_allclose(found.moments.binder, 2 / 3)
    assert np.isnan(found.peak.exponent)
    np.testing.assert_allclose(found.moments.mean, 2 + curve)


def made_up(**changes: Any) -> Scaling:
    """Three sizes over four rates."""
    each = np.arange(12.0).reshape(3, 4)
    some = Moments(each, np.array([each[0], each[0] * 2, each[0] * np.nan]), each)
    known = {
        "moments": some,
        "errors": Moments(each / 10, each, each),
        "places": np.log([0.5, 0.25, 0.1]),
        "place_errors": np.array([0.1, 0.2, 0.3]),
        "widths": np.array([2.0, 1, np.nan]),
        "width_errors": np.array([0.4, 0.5, np.nan]),
        "width": Power(-0.5, 0.1, 4, 0),
        "late": Power(-0.5, 0.1, 4, 0),
        "place": Limit(np.log(0.05), 0.7, 0.0, 0.0, 1, 0.1, 0.2),
        "peak": Power(1.25, 0.5, 1, 0),
        "crossings": np.log([0.4, 0.2]),
        "crossing_errors": np.zeros(2),
        "collapse": Collapse(-1.5, 0.8, 0.25, (0.25, 0.39, 0.05), 2.9),
        "verdict": Verdict.UNDECIDED,
        "why": "the errors are too large",
    }
    return Scaling(**known | changes)


VALUES = xr.DataArray(
    np.zeros((3, 4, 2)), {"D": [2, 4, 8], "eta": [0.1, 0.2, 0.4, 0.8]}, ("D", "eta", "seed")
)


def test_a_scaling_in_words() -> None:
    header, *rows, blank, chi, place, collapse, verdict = figure.in_words(made_up(), VALUES, False)
    assert header.split()[:6] == ["D", "eta", "error", "width", "in", "ln"]
    assert [row.split() for row in rows] == [
        ["2", "0.5", "0.1", "2", "0.4", "3", "-"],
        ["4", "0.25", "0.2", "1", "0.5", "6", "0.4"],
        ["8", "0.1", "0.3", "-", "-", "-", "0.2"],
    ]
    assert blank == ""
    assert chi == "largest chi ~ D^(1.25 ± 0.50)"
    assert place == "eta of the step for infinite D: 0.05, ln eta ± 0.7"
    assert collapse == (
        "collapse: x_c = -1.5 ± 0.25, 1/nu = 0.80 ± 0.39, beta/nu = 0.25 ± 0.05, misfit 2.9"
    )
    assert verdict == "undecided: with L = D, the errors are too large"
    poor = Collapse(-1.5, 0.8, 0.25, (0.25, 0.41, 0.05), 3.0)
    moving = Limit(-0.7, 0.1, 0.4, 0.02, np.nan, np.nan, 0)
    lines = figure.in_words(made_up(collapse=poor, place=moving), VALUES, True)
    assert lines[-3:-1] == [
        "the step keeps moving: eta = -0.7 + s ln D, s = 0.40 ± 0.02",
        "collapse of eta - s ln D: 1/nu = 0.80 ± 0.41, beta/nu = 0.25 ± 0.05, misfit 3; one curve "
        "fits without a critical point",
    ]
    assert lines[1].split()[1] == "-0.693"
    bad = poor._replace(misfit=3.01)
    assert figure.in_words(made_up(collapse=bad), VALUES, True)[-2].endswith(
        "misfit 3; curves do not collapse"
    )


def test_the_picture_of_a_scaling_has_its_numbers() -> None:
    import matplotlib.pyplot as plt

    found = made_up(place=Limit(-3.0, 0.1, 0.5, 0.02, np.nan, np.nan, 0))
    found = found._replace(widths=np.array([0.2, 0.1, 0.0]))
    ax = figure.plot_collapse(found, VALUES, False, plt.figure().subplots())
    x = np.log([0.1, 0.2, 0.4, 0.8])
    for i, (L, near) in enumerate(((2, [2, 3]), (4, [1]), (8, [0]))):
        line = ax.lines[i]
        np.testing.assert_allclose(line.get_xdata(), (x[near] - 0.5 * np.log(L) + 1.5) * L**0.8)
        np.testing.assert_allclose(line.get_ydata(), found.moments.mean[i, near] * L**0.25)
    exponents, place = ax.get_title().split("\n")
    assert exponents == "$1/\\nu = 0.8 \\pm 0.4$, $\\beta/\\nu = 0.25 \\pm 0.05$,"
    assert place == "$x_c = -1.5 \\pm 0.2$"
    # An exponent that is less than two errors from 0.
    vague = Collapse(-1.5, 0.8, 0.25, (0.25, 0.41, 0.05), 2.9)
    vague_ax = figure.plot_collapse(made_up(collapse=vague), VALUES, False, plt.figure().subplots())
    assert vague_ax.get_title().endswith("\nno critical point")
    ax = figure.plot_place(found, VALUES["D"], "eta", False, plt.figure().subplots())
    (data, _, (bars,)) = ax.containers[0]
    np.testing.assert_allclose(data.get_ydata(), [0.5, 0.25, 0.1])
    ends = np.array([bar[:, 1] for bar in bars.get_segments()])
    np.testing.assert_allclose(np.log(ends[:, 1] / ends[:, 0]), [0.2, 0.4, 0.6])
    fit = ax.lines[-1]
    np.testing.assert_allclose(fit.get_ydata(), np.exp(-3) * np.sqrt(fit.get_xdata()))
    np.testing.assert_allclose(np.asarray(fit.get_xdata())[[0, -1]], [2, 8])
    found = found._replace(widths=np.array([2.0, 1.5, 1.0]), width_errors=np.full(3, 0.1))
    ax = figure.plot_width(found, VALUES["D"], False, plt.figure().subplots())
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), 4 / np.sqrt([2, 4, 8]))
    assert ax.get_title() == "$\\propto D^{-a}$, $a = 0.5 \\pm 0.1$"
    # Of more than six sizes some have a tick, four or five.
    for number, every in ((6, 1), (7, 2), (9, 3)):
        sizes = xr.DataArray(2.0 ** np.arange(number), dims="D", name="D")
        sizes = sizes.assign_coords(D=sizes.values)
        many = found._replace(widths=np.ones(number), width_errors=np.full(number, 0.1))
        ax = figure.plot_width(many, sizes, False, plt.figure().subplots())
        np.testing.assert_array_equal(ax.get_xticks(), sizes[::every])
    plt.close("all")
