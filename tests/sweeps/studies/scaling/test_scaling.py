"""Finite-size scaling of systems whose answer is known."""

import numpy as np
import pytest
from scipy import special

from sweeps.studies.scaling import Scaling, Verdict, decide, laws, scaling, step
from sweeps.studies.scaling.laws import Estimate, Power

LOGISTIC = 2 * np.log(3 + np.sqrt(8))
"""Width at half height of the slope of 1 / (1 + exp(-x)), which is 1 / (4 cosh(x/2)^2)."""
QUARTER = special.gamma(0.25)
CRITICAL = 1 - QUARTER**4 / (24 * np.pi**2)
"""Binder cumulant at the critical point of the mean field, whose density is exp(-m^4)."""


def curie_weiss(sizes: tuple[int, ...], x: np.ndarray, seeds: int) -> np.ndarray:
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


def thresholds(sizes: np.ndarray, x: np.ndarray, width: np.ndarray, seeds: int = 48) -> np.ndarray:
    """1 for a seed beyond its own threshold, else 0: logistic steps at 0 of a width for each
    size."""
    drawn = np.random.default_rng(1).logistic(size=(len(sizes), 1, seeds))
    return (x[:, None] > drawn * width[:, None, None] / LOGISTIC).astype(float)


def even(number: int) -> np.ndarray:
    return np.full((1, number), 1 / number)


@pytest.mark.parametrize("seeds", [4, 64])
def test_error_of_a_mean_is_that_of_the_textbook(seeds: int) -> None:
    values = np.random.default_rng(2).normal(size=(1, 300, seeds))
    drawn = laws.moments(values, np.ones(1), laws.weights(seeds, 200)).mean
    textbook = values.std(-1, ddof=1) / np.sqrt(seeds)
    ratio = laws.error(drawn, seeds) / textbook
    assert ratio.mean() == pytest.approx(1, rel=0.05)


def test_halves_are_smoothed_as_if_they_were_all_seeds() -> None:
    x, drawn = np.linspace(-4, 4, 33), laws.weights(7, 5)
    values = thresholds(np.ones(1), x, np.array([3.0]), seeds=7)[0]
    found = step(x, values, drawn, 1)
    for i, weights in enumerate(drawn[1:], 1):
        kept = values[:, weights > 0]
        assert kept.shape[1] == 4
        alone = step(x, kept, even(4), 1)
        np.testing.assert_allclose([each[i] for each in found], np.concatenate(alone))


def test_moments_of_halves_are_those_of_their_seeds() -> None:
    values, size, origin = np.random.default_rng(0).gamma(2, size=(1, 3, 7)), np.array([5.0]), 0.5
    drawn = laws.weights(7, 4)
    found = laws.moments(values, size, drawn, origin)
    for i, weights in enumerate(drawn):
        kept = values[0][:, weights > 0]
        q = kept - origin
        binder = 1 - (q**4).mean(-1) / (3 * (q**2).mean(-1) ** 2)
        wanted = kept.mean(-1), 5 * kept.var(-1, ddof=1), binder
        np.testing.assert_allclose([each[i, 0] for each in found], wanted, rtol=1e-12)


def test_an_error_needs_half_of_the_draws() -> None:
    """Of 3 seeds, of which each draw has 2: their distance is that of a mean over the root of 2."""
    known = np.full((6, 3), 2.0)
    known[0] = 1
    known[4:, 1] = known[3:, 2] = np.nan
    known[1, 0] = 1
    found = laws.error(known, 3)
    np.testing.assert_allclose(found, np.sqrt(2 * np.array([4 / 5, 1, np.nan])))


@pytest.mark.parametrize("sign", [1, -1])
def test_step_of_a_logistic_curve(sign: int) -> None:
    # Points that are not evenly spaced, as those of whole numbers.
    x = np.sinh(np.linspace(-2.5, 2.5, 40))
    values = special.expit(sign * (x - 0.3) / 0.4)[:, None].repeat(3, 1)
    found = step(x, values, even(3), sign)
    (place,), (width,) = found
    assert place == pytest.approx(0.3, abs=0.03)
    assert width == pytest.approx(0.4 * LOGISTIC, rel=0.03)
    assert np.isnan(step(x, values, even(3), -sign)).all()


def test_the_width_is_that_of_the_mean_though_seeds_scatter() -> None:
    x = np.linspace(-4, 4, 41)
    widths = np.full(60, 2.0)
    values = thresholds(widths, x, widths, seeds=30)
    found = [step(x, each, even(30), 1)[1][0] for each in values]
    # Smoothing widens what scatters a little.
    assert np.median(found) == pytest.approx(2, rel=0.25)


def test_a_step_at_the_end_or_of_few_points_is_not_measured() -> None:
    x = np.linspace(0, 1, 20)
    beyond = special.expit((x - 0.98) / 0.1)[:, None].repeat(2, 1)
    assert np.isnan(step(x, beyond, even(2), 1)).all()
    inside = special.expit((x - 0.5) / 0.1)[:, None].repeat(2, 1)
    assert np.isfinite(step(x, inside, even(2), 1)).all()
    assert np.isnan(step(x[::3], inside[::3], even(2), 1)).all()


def test_a_step_that_keeps_moving_has_no_limit() -> None:
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
def test_curves_that_scale_exactly_collapse(inverse_nu: float, beta_nu: float) -> None:
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


def ising_model(samples: int) -> Scaling:
    sizes, x = (64, 128, 256, 512, 1024), np.linspace(-0.5, 0.4, 37)
    return scaling(x, np.array(sizes), curie_weiss(sizes, x, samples), draws=20)


def test_the_mean_field_ising_model_has_a_transition() -> None:
    ising = ising_model(1000)
    assert ising.verdict is Verdict.TRANSITION
    # 1/nu = 1/2 for the number of spins; a size this small has corrections of a tenth.
    assert -ising.width.exponent.value == pytest.approx(0.5, abs=0.15)
    assert ising.peak.exponent.value == pytest.approx(0.5, abs=0.1)
    assert ising.collapse is not None
    assert ising.collapse.x_c.value == pytest.approx(0, abs=0.03)
    assert ising.collapse.inverse_nu.value == pytest.approx(0.5, abs=0.1)
    assert ising.collapse.beta_nu.value == pytest.approx(0.25, abs=0.1)


def test_binder_cumulants_of_the_mean_field_cross_at_the_critical_point() -> None:
    ising = ising_model(256)
    assert (np.abs(ising.crossings.value) < 4 * ising.crossings.error).all()
    assert ising.crossings.error[-1] < 0.02
    at = np.argmin(np.abs(np.linspace(-0.5, 0.4, 37)))
    near = np.abs(ising.moments.binder[1:, at] - CRITICAL) / ising.errors.binder[1:, at]
    assert near.max() < 4


@pytest.mark.full("test_the_mean_field_ising_model_has_a_transition")
def test_exponents_of_the_mean_field_from_large_sizes() -> None:
    sizes = (1024, 2048, 4096, 8192, 16384)
    x = np.linspace(-0.18, 0.12, 61)
    found = scaling(x, np.array(sizes), curie_weiss(sizes, x, 1000), draws=20)
    assert found.verdict is Verdict.TRANSITION
    assert -found.width.exponent.value == pytest.approx(0.5, abs=0.08)
    assert found.peak.exponent.value == pytest.approx(0.5, abs=0.05)
    assert found.place.place.value == pytest.approx(0, abs=0.05)
    assert found.collapse is not None
    assert found.collapse.x_c.value == pytest.approx(0, abs=0.005)
    assert found.collapse.inverse_nu.value == pytest.approx(0.5, abs=0.03)
    assert found.collapse.beta_nu.value == pytest.approx(0.25, abs=0.04)


SIZES = np.array([8.0, 16, 32, 64, 128])
X = np.linspace(-6, 6, 49)


@pytest.mark.more
def test_a_step_of_fixed_width_is_a_crossover() -> None:
    found = scaling(X, SIZES, 0.1 * thresholds(SIZES, X, 3.0 + 0 * SIZES), draws=20)
    assert found.verdict is Verdict.CROSSOVER
    assert "it levels off, a > 0.25 is excluded" in found.why
    assert abs(found.width.exponent.value) < 3 * found.width.exponent.error
    # Of seeds that are 0 or 0.1 the variance at the middle is 0.01 / 4, whatever the size.
    assert found.peak.exponent.value == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(np.nanmax(found.moments.susceptibility, 1), SIZES / 400, rtol=0.05)


def test_a_step_that_narrows_is_a_transition_until_it_is_finer_than_the_points() -> None:
    widths = 5 * (SIZES / 8) ** -0.5
    # A single seed of each half says nothing about how much to smooth.
    two = scaling(X, SIZES, thresholds(SIZES, X, widths, seeds=2), draws=4)
    assert (two.verdict, np.isnan(two.width.exponent.error)) == (Verdict.UNDECIDED, True)
    found = scaling(X, SIZES, thresholds(SIZES, X, widths), draws=20)
    assert found.verdict is Verdict.TRANSITION
    assert -found.width.exponent.value == pytest.approx(0.5, abs=2 * found.width.exponent.error)
    # By 48 seeds a width is known to about a fifth, and the sizes differ by a factor of 16.
    assert found.width.exponent.error < 0.2
    coarse = X[::5]
    found = scaling(coarse, SIZES, thresholds(SIZES, coarse, widths), draws=20)
    assert found.verdict is Verdict.UNDECIDED
    assert "too narrow for the points" in found.why


def test_points_without_a_value_are_left_out() -> None:
    values = thresholds(SIZES, X, 3.0 + 0 * SIZES)
    values[:, -4:, 0] = np.nan
    found = scaling(X, SIZES, values, draws=2)
    whole = scaling(X[:-4], SIZES, values[:, :-4], draws=2)
    np.testing.assert_array_equal(found.widths.value, whole.widths.value)
    assert np.isnan(found.moments.mean[:, -4:]).all()
    assert found.verdict is whole.verdict


def law(exponent: float, error: float) -> Power:
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
def test_verdicts(all_sizes: Power, larger: Power, verdict: str) -> None:
    assert decide(np.array([4.0, 8, 16, 32, 64]), all_sizes, larger)[0] == verdict


@pytest.mark.parametrize(
    ("level", "verdict"), [(0.025, "transition"), (0.007, "transition"), (0.006, "undecided")]
)
def test_the_level_is_that_of_a_normal_exponent(level: float, verdict: str) -> None:
    """2.5 errors above 0, of probability 0.0062."""
    sizes, width = np.array([4.0, 8, 16, 32, 64]), law(-0.5, 0.2)
    found, why = decide(sizes, width, width, level)
    assert found == verdict
    assert f"at a level of {100 * level:g} %" in why


def test_few_sizes_or_similar_ones_make_no_crossover() -> None:
    level, falling = law(-0.02, 0.05), law(-0.4, 0.05)
    assert decide(np.array([4.0, 16, 64]), falling, level)[0] is Verdict.UNDECIDED
    # A fall by 2 would need an exponent of 1 here, but one of 1/2 is not excluded.
    similar = np.array([8.0, 9, 11, 14, 16])
    assert decide(similar, law(0.0, 0.2), level)[0] is Verdict.CROSSOVER
    assert decide(similar, law(0.0, 0.2), law(0.0, 0.2))[0] is Verdict.UNDECIDED
    # Over six decades a fall by 2 is an exponent of 0.05.
    assert decide(np.geomspace(1, 1e6, 5), law(0.0, 0.05), law(0.0, 0.05))[0] is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.ones((5, 49))}, r"values: shape \(5, 49\): must be"),
        ({"x": X.round()}, "x: must be 8 or more finite numbers that increase"),
        ({"sizes": SIZES[:2], "values": np.ones((2, 49, 2))}, "sizes: must be 3 or more"),
        ({"level": 0.5}, r"level = 0.5: must be finite and in \(0, 0.5\)"),
        ({"draws": 1}, "draws = 1: must be an integer >= 2"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    given = {"x": X, "sizes": SIZES, "values": np.ones((5, 49, 2))} | change
    with pytest.raises(ValueError, match=message):
        scaling(**given)


def test_the_fewest_points_and_sizes_are_enough() -> None:
    values = special.expit(np.arange(8) - 3.5)[:, None].repeat(2, 1)
    found = scaling(np.arange(8.0), SIZES[:3], values[None].repeat(3, 0), draws=2, level=0.49)
    # By symmetry.
    np.testing.assert_allclose(found.places.value, 3.5, atol=1e-6)
    assert found.width.exponent.value == pytest.approx(0, abs=1e-9)
    assert "known for" not in found.why
