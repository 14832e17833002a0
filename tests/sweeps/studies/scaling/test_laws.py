"""The arithmetic of finite-size scaling, against sums, SciPy's splines and numbers by hand."""

import numpy as np
import pytest
from scipy import special, stats
from scipy.interpolate import CubicSpline, make_smoothing_spline

from sweeps.studies import scaling
from sweeps.studies.scaling import laws

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
    modes, kept, fine, slope = scaling.smoother(tuple(x.tolist()))
    assert len(fine) == 8 * 20 + 1
    # Four penalties for each decade.
    np.testing.assert_allclose(scaling.PENALTIES, 10.0 ** np.arange(-12, 2.25, 0.25))
    np.testing.assert_allclose(fine[[0, 10, 30, 160]], [0, 0.5, 1.25, x[-1]])
    for i in (30, 42, 50):
        smooth = modes @ (kept[i] * (modes.T @ values))
        wanted = make_smoothing_spline(x, values, lam=scaling.PENALTIES[i] / largest * 9**4)
        np.testing.assert_allclose(smooth, wanted(x), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(slope @ smooth, wanted(fine, 1), rtol=1e-4, atol=1e-6)


def test_the_penalty_is_that_of_the_seeds_left_out_one_by_one() -> None:
    x, rng = np.linspace(0, 1, 15) ** 1.3 * 10, np.random.default_rng(1)
    values = special.expit(x - 4)[:, None] + 0.3 * rng.normal(size=(15, 6))
    matrix = stiffness(x)
    penalties = scaling.PENALTIES / np.linalg.eigvalsh(matrix)[-1] * 15**4
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
    found = scaling.step(x, values, np.full((1, 6), 1 / 6), 1)
    np.testing.assert_allclose(np.ravel(found), [fine[top], fine[right] - fine[left]])
    # Over falling x the same is the mirror image.
    mirror = scaling.step(-x[::-1], values[::-1], np.full((1, 6), 1 / 6), -1)
    np.testing.assert_allclose(np.ravel(mirror), [-fine[top], fine[right] - fine[left]])


def test_steps_go_the_way_of_most_and_points_without_values_are_left_out() -> None:
    x = np.arange(0.0, 13)
    falls = special.expit(5 - x)
    values = np.stack([falls, falls, 1 - falls])[..., None].repeat(3, 2)
    values[1, -1, 2] = np.nan
    places, _, _ = scaling.steps(x, values, np.full((1, 3), 1 / 3))
    np.testing.assert_allclose(places[0, :2], 5, atol=0.1)
    assert np.isnan(places[0, 2])


def test_halves_of_the_seeds_have_sum_1_and_half_of_them() -> None:
    drawn = laws.weights(5, 40)
    assert drawn.shape == (41, 5)
    np.testing.assert_allclose(drawn[0], 1 / 5)
    np.testing.assert_allclose(np.sort(drawn[1:], 1), [[0, 0, 1 / 3, 1 / 3, 1 / 3]] * 40)
    assert len(np.unique(drawn[1:], axis=0)) > 5
    np.testing.assert_array_equal(drawn, laws.weights(5, 40))


def test_curves_cross_nearest_to_the_larger_size() -> None:
    x = np.linspace(0, 3, 7)
    zigzag = np.interp(x, [0, 1, 2, 3], [1.0, -1, 1, -1])
    curves = np.stack([0 * x, zigzag, zigzag + 9])[None]
    found = laws.crossings(x, curves, np.array([[0.4, 2.4, 1.4]]))
    np.testing.assert_allclose(found, [[2.5, np.nan]])
    # Equal up to 1, from where they part.
    part = np.maximum(x - 1, 0)
    found = laws.crossings(x, np.stack([0 * x, part])[None], np.array([[0.0, 0.0]]))
    np.testing.assert_allclose(found, [[1]])


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
    assert (found.exponent.value, found.prefactor) == pytest.approx((-0.5, np.exp(4)))
    # The sum of squares, 0.06, over one degree of freedom and the variance of x.
    assert found.exponent.error == pytest.approx(np.sqrt(0.06 / 2))
    tilted = logs + 0.4 * np.log(SIZES)
    found = laws.power(SIZES, np.exp([logs, tilted]), 5, 0.01)
    student = stats.t.isf(0.01, 4) / stats.norm.isf(0.01)
    assert found.exponent == pytest.approx((-0.5, 0.4 * HALF * student))
    gap = np.array([[1.0, np.nan, 4]])
    two = laws.power(SIZES, gap.repeat(2, 0), 5)
    assert two.exponent == pytest.approx((np.log(2), laws.LEAST_ERROR))
    assert np.isnan(laws.power(SIZES, np.array([[np.nan, np.nan, 4]]), 5).exponent).all()


def test_errors_of_a_limit_are_those_of_its_halves() -> None:
    sizes, at = np.array([2.0, 4, 8, 16]), laws.APPROACH[[30, 33]]
    moved = 0.5 - 2 * sizes ** -at[0], 0.7 - 2 * sizes ** -at[1]
    found = laws.limit(sizes, np.array(moved), 9.0, 5)
    assert found.place == pytest.approx((0.5, 0.2 * HALF))
    assert (*found.drift, found.amplitude) == pytest.approx((0, 0, -2))
    assert found.exponent == pytest.approx((at[0], (at[1] - at[0]) * HALF))
    places = np.array([1 + 1.5 * np.log(sizes), 1.1 + 1.8 * np.log(sizes)])
    drift = laws.limit(sizes, places, 0.5, 5)
    assert (drift.place.error, drift.drift.error) == pytest.approx((0.1 * HALF, 0.3 * HALF))
    assert np.isnan(laws.limit(sizes[:2], places[:, :2], 0.5, 5).place).all()
    # As far as it is wide, which is not further.
    assert laws.limit(sizes, places, float(np.ptp(places[0])), 5).drift.value == 0
    # A half that keeps moving is not what all seeds do.
    other = laws.limit(sizes, np.array([moved[0], places[1]]), 0.5, 5)
    assert other.place.value == pytest.approx(0.5)


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
    assert (found.x_c.value, found.inverse_nu.value) == pytest.approx((0.9, 0.5), abs=0.02)
    # What the minimum is found to.
    assert found.x_c.error == pytest.approx(0.05 * HALF, rel=0.2)
    assert laws.collapse(*given[:3], np.array([0.9, np.nan, np.nan]), given[4], 5) is None
    assert laws.collapse(*given[:3], np.array([0.9, np.nan, 0.9]), given[4], 5) is not None
    # The points 0.8, 0.9 and 1 are within 0.1 of 0.9, and two of them within 0.09 of 0.95.
    coarse = np.round(x[::2], 3) + 0 * sizes[:, None]
    narrow = coarse, sizes, curves[:, :, ::2], np.full(3, 0.9)
    assert laws.collapse(*narrow, np.full(3, 0.1 + 1e-9), 5) is not None
    assert laws.collapse(*narrow, np.full(3, 0.099), 5) is None


def test_widths_that_the_points_resolve_make_the_laws() -> None:
    """Points 1 apart up to 20, then 2: a width of 3 is resolved before, of 6 behind, and of 4.5
    halfway between the middles of the intervals that differ."""
    x = np.append(np.arange(0.0, 21), np.arange(22.0, 41, 2))
    sizes = np.array([2.0, 4, 8, 16, 32, 64])
    places = np.array([5.0, 6, 8, 20.25, 30, 31])[None].repeat(2, 0)
    widths = np.array([[12.0, 8, 3, 4.5, 6, 5.9], [14, 9, 5, 4.4, 7, 8]])
    steps = scaling.resolved(x, places, widths)
    used, larger = slice(0, 5), slice(2, 5)
    want = np.array([[*widths[0, :5], np.nan], [14, 9, 5, np.nan, 7, np.nan]])
    np.testing.assert_array_equal(steps.widths, want)
    width, late, _, why = scaling.verdict_on(sizes, steps, 5, 0.05)
    for law, part in ((width, used), (late, larger)):
        slope, intercept = np.polyfit(np.log(sizes[part]), np.log(widths[0, part]), 1)
        assert (law.exponent.value, law.prefactor) == pytest.approx((slope, np.exp(intercept)))
    assert why.endswith("1 of 6 steps are too narrow for the points")
    # Of exact laws, the error is that of a half of the seeds, at half the level.
    exact = np.array([40 * sizes**-0.3, 40 * sizes**-0.5])
    steps = scaling.resolved(x, 0 * places + 5, exact)
    width, late, _, _ = scaling.verdict_on(sizes, steps, 5, 0.05)
    student = stats.t.isf(0.025, 4) / stats.norm.isf(0.025)
    for law in (width, late):
        assert law.exponent == pytest.approx((-0.3, 0.2 * HALF * student))


def test_curves_that_move_with_the_size_collapse_about_where_they_are() -> None:
    """expit of 5 (x - 0.4 ln L) L^0.2, above 2: the origin, which is not scaled."""
    x, sizes = np.linspace(-1, 3, 61), np.exp(np.arange(5.0))
    logs = np.log(sizes)[:, None]
    curve = special.expit(5 * (x - 0.4 * logs) * np.exp(0.2 * logs))
    values = 2 + curve[..., None].repeat(4, 2)
    found = scaling.scaling(x, sizes, values, origin=2.0, draws=2)
    assert found.place.drift.value == pytest.approx(0.4, rel=0.03)
    assert found.collapse is not None
    fit = [each.value for each in found.collapse[:3]]
    assert fit == pytest.approx([0, 0.2, 0], abs=0.03)
    assert found.collapse.misfit < 0.1
    # Seeds that agree have the cumulant of one number, and no susceptibility.
    np.testing.assert_allclose(found.moments.binder, 2 / 3)
    assert np.isnan(found.peak.exponent.value)
    np.testing.assert_allclose(found.moments.mean, 2 + curve)
