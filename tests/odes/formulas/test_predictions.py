"""Theorems 2 and 3 as predictions: exact on Eq. 10, able to fail elsewhere."""

import itertools
import math

import jax
import numpy as np
import pytest

import dynsim
from odes import predictions
from odes.yz import eq10 as attention
from tests.systems.layers import initial_weights

pytestmark = pytest.mark.usefixtures("quick_theory")

TIMES = np.unique(np.r_[dynsim.log_times(400, 24), 9.99, 10.01])
RECORD = ("z", "B", "xi", "speed")
SYMMETRIC = dynsim.Syn(2, 2, num_common=3, num_distinct=4).build()


def irregular():
    """The tokens of SYMMETRIC with random probabilities, priors and one query for three."""
    rng = np.random.default_rng(3)
    probs = np.where(np.asarray(SYMMETRIC.probs) > 0, rng.uniform(0.2, 1, SYMMETRIC.probs.shape), 0)
    return dynsim.sequence_classes(
        probs / probs.sum(1, keepdims=True), [19, 19, 19, 20], prior=[0.1, 0.2, 0.3, 0.4]
    )


IRREGULAR = irregular()


def solve(task=SYMMETRIC, eta=1.0, **options):
    eta_z = options.pop("eta_z", 0.3)
    result = attention.solve(task, dynsim.sgd(eta, eta_z), TIMES, record=RECORD, **options)
    assert result.status == dynsim.Status.OK
    return {**result.observables, "times": TIMES}


@pytest.mark.parametrize("task", [SYMMETRIC, IRREGULAR], ids=["symmetric", "irregular"])
def test_theorem_3_holds_exactly_on_the_flow_of_eq_10(task):
    for init in (None, initial_weights(task, "uniform", jax.random.key(1))):
        run = solve(task, init=init)
        z, B = np.asarray(run["z"]), np.asarray(run["B"])
        # The solver keeps z to rtol 1e-8 per step; the law itself is an identity.
        assert predictions.relative_gain_error(task, z).max() < 1e-7
        assert np.abs(z[-1] - z[0]).max() > 0.3
        margins = predictions.sandwich(task, z, B)
        assert margins.holds(1e-9)
        # Neither bound is empty: both margins open up, and a B far too small breaks the upper
        # one, a B far too large the lower one.
        assert margins.above_lower[-1].min() > 1e-3
        assert margins.below_upper[-1].min() > 1e-3
        assert not predictions.sandwich(task, z, B / 20).holds(1e-3)
        assert not predictions.sandwich(task, z, 20 * B).holds(1e-3)
    assert predictions.relative_gain_error(task, np.full((2, *z.shape[1:]), 2e3)).max() == 0
    # B is the integral of xi. Solver error 1e-8 of B over a difference of 0.02.
    xi, at = np.asarray(run["xi"]), int(np.flatnonzero(TIMES == 10)[0])
    slope = (B[at + 1] - B[at - 1]) / 0.02
    np.testing.assert_allclose(slope, 0.3 * np.asarray(task.prior) * xi[at], rtol=1e-5)
    assert not B[0].any()
    summed = predictions.bound_from_xi(TIMES, xi, 0.3, task.prior)
    # Trapezoids between 24 logarithmic times.
    np.testing.assert_allclose(summed[-1], B[-1], rtol=0.02)


def test_bounds_from_xi_are_trapezoids():
    off = []
    for t in (np.linspace(0, 1, num) for num in (11, 21)):
        found = predictions.bound_from_xi(t, np.exp(t)[:, None], 2.0, [0.5])
        off.append(found[-1, 0] - np.expm1(1))
    np.testing.assert_allclose(off[0] / off[1], 4, rtol=0.01)


def test_margins_and_errors_are_those_of_each_pair_of_tokens():
    """Of any logits, from any start, one class and token after the other; the last class has no
    distinct token."""
    probs = np.array(
        [
            [0.2, 0.1, 0.4, 0.3, 0, 0, 0],
            [0.3, 0.1, 0, 0, 0.35, 0.25, 0],
            [0.1, 0.6, 0, 0, 0, 0, 0.3],
            [0.5, 0.5, 0, 0, 0, 0, 0],
        ]
    )
    task, rng = dynsim.sequence_classes(probs, [0, 0, 1, 1]), np.random.default_rng(2)
    z, B = rng.normal(size=(3, 4, 7)), np.cumsum(rng.uniform(size=(3, 4)), axis=0)
    lower, upper, error = np.full((3, 3, 4), np.nan)
    shares = {1: [], -1: []}
    signs = predictions.sign_of_drift(task)
    for n, own in enumerate([[2, 3], [4, 5], [6]]):
        f = probs[n] * np.exp(z[:, n])
        f /= np.linalg.norm(f, axis=1, keepdims=True)
        first = own[int(np.argmax(f[0, own]))]
        for t in range(3):
            gain, grown = z[t, n, first] - z[0, n, first], B[t, n] - B[0, n]
            lower[t, n], upper[t, n] = gain - f[0, first] ** 2 * grown, grown - gain
            start, ratio = ((f[k, first] / f[k, own]) ** 2 for k in (0, t))
            error[t, n] = np.abs(ratio / (1 + (start - 1) * np.exp(2 * gain)) - 1).max()
    found = predictions.sandwich(task, z, B)
    np.testing.assert_allclose(found, [lower, upper], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        predictions.relative_gain_error(task, z), error, rtol=1e-9, atol=1e-14
    )
    for n, token in zip(*np.nonzero(signs), strict=True):
        shares[signs[n, token]] += [signs[n, token] * step > 0 for step in np.diff(z[:, n, token])]
    # Only if there are several common tokens is nothing claimed about them.
    assert not shares[-1]
    distinct, common, both = predictions.agreement(task, [0, 1, 5], z)
    assert distinct == both == np.mean(shares[1])
    assert np.isnan(common)
    assert 0 < distinct < 1


def test_conventions_differ_by_the_prior():
    sgd, paper = solve(), solve(eta_z=0.3 / 4, convention="paper")
    for name in ("z", "B"):
        np.testing.assert_allclose(paper[name], sgd[name], rtol=1e-7, atol=1e-9)


def test_remark_1_is_a_slower_decoder():
    f = np.asarray(SYMMETRIC.probs) / np.linalg.norm(SYMMETRIC.probs, axis=1, keepdims=True)
    rho = f[0] @ f[1]
    assert 0.2 < rho < 0.8
    found, want = solve(remark_1=True), solve(eta=1 - rho)
    for name in RECORD:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_signs_follow_the_theorems_assumptions():
    signs = lambda probs, query, **options: predictions.sign_of_drift(
        dynsim.sequence_classes(probs, query, **options)
    ).tolist()
    # Theorem 2: one common token, 1. Class 2 has no distinct token of its own, but its query has.
    single = [[0.5, 0.5, 0, 0], [0, 0.4, 0.6, 0], [0, 1, 0, 0]]
    assert signs(single, [0, 1, 1]) == [[1, -1, 0, 0], [0, -1, 1, 0], [0, -1, 0, 0]]
    # Alone with its query, nothing pays for it.
    assert signs(single, [0, 1, 2])[2] == [0, 0, 0, 0]
    # A class that shares nothing has xi = 0: its distinct tokens stay.
    apart = [[0.5, 0.5, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 0.5, 0.5]]
    assert signs(apart, [0, 1, 2]) == [[1, -1, 0, 0, 0], [0, -1, 1, 0, 0], [0] * 5]
    # Corollary 2: two common tokens, covered only while the task is symmetric.
    common = np.tile([0.2, 0.3], (2, 1))
    assert signs(np.c_[common, [[0.5, 0], [0, 0.5]]], [0, 1]) == [[-1, -1, 1, 0], [-1, -1, 0, 1]]
    assert signs(np.c_[common[:, ::-1], [[0.5, 0], [0, 0.5]]], [0, 0])[0] == [-1, -1, 1, 0]
    uneven = np.c_[[[0.2, 0.3], [0.3, 0.2]], [[0.5, 0], [0, 0.5]]]
    assert signs(uneven, [0, 1]) == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert signs(np.c_[common, [[0.5, 0], [0, 0.5]]], [0, 1], prior=[0.4, 0.6])[0] == [0, 0, 1, 0]
    three = np.c_[np.tile([0.2, 0.3], (3, 1)), np.eye(3) / 2]
    assert signs(three, [0, 1, 2])[0] == [-1, -1, 1, 0, 0]
    # A query has two classes, the other one has one; one distinct token is less probable.
    assert signs(three, [0, 0, 1])[0] == [0, 0, 1, 0, 0]
    three[2, [0, 4]] = 0.3, 0.4
    assert signs(three, [0, 1, 2])[0] == [0, 0, 1, 0, 0]


def test_peaks_are_those_of_parabolas_in_log_time():
    """Of t^p exp(-t/tau) at t = p tau: in ln t its third derivative over the second is 1, so that a
    parabola through points d apart misses the peak by at most about d^2/4. A Gaussian is exact."""
    for power, spacing in itertools.product((1, 2.5), (0.05, 0.1, 0.2)):
        t = np.exp(np.arange(0, 7, spacing))
        found = predictions.peak_time(t, t**power * np.exp(-t / 20))
        assert found == pytest.approx(20 * power, rel=spacing**2 / 4)
    t = np.array([0, 1, 2, 9, 11, 40, np.nan])  # 0 has no logarithm, NaN pads
    values = 3 * np.exp(-(np.log(t / 7.7, where=t > 0, out=np.zeros(7)) ** 2))
    assert predictions.peak_time(t, values) == pytest.approx(7.7, rel=1e-12)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [3, 2, 1], [1, np.nan, 1], [-1, 2, 1], [0, 0, 0], [0, 2, 1], [1, 2, 0], [2, 2, 2]],
)
def test_a_peak_outside_the_records_is_nan(values):
    assert np.isnan(predictions.peak_time(np.array([1, 2, 4]), np.array(values)))
    assert np.isnan(predictions.peak_time(np.array([0]), np.array([1])))


def test_the_drift_at_the_start_is_the_first_motion():
    """The first step moves Y alone and the second one Z, by eta_Y eta_Z times the drift."""
    probs = np.random.default_rng(0).dirichlet(np.ones(6), 3)
    task, rate = dynsim.sequence_classes(probs, query=[0, 0, 1], prior=[0.5, 0.3, 0.2]), 1e-4
    options = {"steps": 2, "batch": math.inf, "times": [2], "record": ["z"], "dtype": "float64"}
    layer, rule = dynsim.Layer(task, math.inf), dynsim.sgd(rate, rate)
    moved = dynsim.train(layer, rule, jax.random.key(0), **options)["z"][0] / rate**2
    np.testing.assert_allclose(moved, predictions.drift_at_start(task), rtol=2e-3, atol=1e-8)
