"""Modes, factors, memories and lazy training: theories against SciPy and closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special

import dynsim
from odes.batch_noise import size_of
from papers import cabannes, factorisation, gromov, kumar, saxe
from tests.papers.made import training


def test_modes_are_learned_at_the_times_of_saxe():
    """tau = ln[u_f (s - u_0) / (u_0 (s - u_f))] / (2 s), for two layers."""
    problem, eta = saxe.DeepLinear(), 0.01
    for k, s in enumerate(2.0 ** -np.arange(4)):
        u0, uf = problem.u0, 0.8 * s
        tau = math.log(uf * (s - u0) / (u0 * (s - uf))) / (2 * s)
        found = saxe.MODES.solve(problem, dynsim.sgd(eta), [0.0, tau / eta], record="learned")
        np.testing.assert_allclose(found["learned"][-1, k], uf, rtol=1e-3)


def test_factors_obey_their_flow():
    problem = factorisation.Factorisation(alpha=1e-3)
    U = np.asarray(problem.init(jax.random.key(3)), float)
    M = np.diag(1 - np.arange(4) / 4)

    def flow(t, y):
        U = y.reshape(4, 4)
        return ((M - U @ U.T) @ U).ravel()

    at = integrate.solve_ivp(flow, (0, 12), U.ravel(), rtol=1e-10, atol=1e-13).y[:, -1]
    with jax.enable_x64(True):
        found = jax.jit(lambda U: factorisation.riccati(problem, U, 12.0))(U)
    W = at.reshape(4, 4) @ at.reshape(4, 4).T
    np.testing.assert_allclose(found["learned"], np.diag(W), rtol=1e-7)
    np.testing.assert_allclose(found["loss"], ((W - M) ** 2).sum() / 4, rtol=1e-7)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_rank_takes_the_logarithm_of_the_start(k):
    """d tau / d ln(1/alpha) = 1 / (2 s), of the time at which half of an eigenvalue is learned."""
    s, key = 1 - k / 4, jax.random.key(3)

    def half(alpha):
        problem = factorisation.Factorisation(alpha=alpha)
        U = jnp.asarray(problem.init(key), float)
        learned = jax.jit(lambda t: factorisation.riccati(problem, U, t)["learned"][k])
        return float(optimize.brentq(lambda t: float(learned(t)) - s / 2, 0, 100, xtol=1e-6))

    with jax.enable_x64(True):
        slope = (half(1e-10) - half(1e-7)) / math.log(1e3)
    # Corrections vanish with alpha to a power.
    assert slope == pytest.approx(1 / (2 * s), rel=2e-3)


def test_weights_are_counted_whatever_axes_the_numbers_have():
    for u0 in (0.1, np.array([0.1]), np.geomspace(0.01, 0.1, 3)[:, None]):
        assert size_of(saxe.DeepLinear(u0=u0)) == 2 * 4 * 4


def test_margins_are_those_of_the_flow_of_all_weights():
    problem, C = cabannes.Memories(), 5
    p = 1 / np.arange(1, C + 1)
    p /= p.sum()

    def flow(t, y):
        z = y.reshape(C, C)
        return (p[:, None] * (np.eye(C) - special.softmax(z, axis=1))).ravel()

    z = integrate.solve_ivp(flow, (0, 500), np.zeros(C * C), rtol=1e-9, atol=1e-12).y[:, -1]
    z = z.reshape(C, C)
    margin = np.diag(z) - np.where(np.eye(C), -np.inf, z).max(1)
    found = jax.jit(lambda tau: cabannes.by_token(problem, None, tau))(500.0)
    np.testing.assert_allclose(found["margin"], margin, rtol=1e-5)
    loss = -p @ np.diag(special.log_softmax(z, axis=1))
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-4)


def test_a_rare_token_needs_longer_in_proportion():
    """Margins depend on p tau alone, and grow by one when tau grows by e."""
    at = jax.jit(lambda tau: cabannes.by_token(cabannes.Memories(), None, tau)["margin"])
    np.testing.assert_allclose(at(5e3)[-1], at(1e3)[0], rtol=1e-5)
    np.testing.assert_allclose(at(math.e * 1e7) - at(1e7), 1, rtol=1e-4)


def test_overlapping_embeddings_have_no_margins_of_their_own():
    why = cabannes.MARGINS.inapplicable(training(cabannes.Memories(dimension=3), 1.0))
    assert why is not None
    assert "dimension" in why


def test_averages_over_units_are_those_of_the_flow_of_all_weights():
    """Of SciPy, with the gradient of a network of which each unit is written out."""
    problem, rate = kumar.LazyToRich(D=4, width=6, examples=30, alpha=2.0), 1.0
    start = problem.init(jax.random.key(1))
    x, w = (np.asarray(a, float) for a in (problem.inputs(), start))
    y, alpha, eps = x[:, 0] ** 2 / 2, problem.alpha, problem.epsilon

    def miss(w, x, y):
        h = x @ w.T
        return y - alpha * (h + eps * h**2 / 2).mean(1)

    def flow(t, flat):
        w = flat.reshape(6, 4)
        push = miss(w, x, y)[:, None] * (1 + eps * (x @ w.T)) / (alpha * 6 * 30)
        return rate * (push.T @ x).ravel()

    w = integrate.solve_ivp(flow, (0, 100), w.ravel(), rtol=1e-9, atol=1e-11).y[:, -1].reshape(6, 4)
    options = {"init": start, "record": ["train", "test", "alignment"]}
    found = kumar.AVERAGES.solve(problem, dynsim.sgd(rate), [0.0, 100.0], **options)
    np.testing.assert_allclose(found["train"][-1], np.mean(miss(w, x, y) ** 2) / 2, rtol=1e-3)
    share = (w[:, 0] ** 2).sum() / (w**2).sum()
    np.testing.assert_allclose(found["alignment"][-1], share, rtol=1e-4)
    new = np.random.default_rng(0).normal(size=(200_000, 4))
    sample = miss(w, new, new[:, 0] ** 2 / 2) ** 2 / 2
    error = sample.std() / math.sqrt(len(sample))
    assert abs(found["test"][-1] - sample.mean()) < 4 * error


@pytest.mark.parametrize(("p", "width"), [(23, 128), pytest.param(97, 500, marks=pytest.mark.full)])
def test_analytic_weights_add(p, width):
    problem = gromov.ModularAddition(p=p, width=width)
    weights = gromov.analytic(training(problem, 1.0), None)
    table = np.asarray(jax.jit(problem.table)(weights)[0])
    n = np.arange(p)
    assert (table.argmax(2) == (n[:, None] + n) % p).all()
    found = jax.jit(lambda weights: gromov.measured(problem, weights))(weights)
    np.testing.assert_allclose([found["purity"], found["phases"]], 1, rtol=1e-3)


def test_purity_is_a_share_of_power_and_phases_add_on_average():
    """Unit 1 has the frequency 1 in U, three times as large as the frequency 2 in V, and no phase;
    unit 2 has one frequency, in W a quarter of a turn late."""
    problem = gromov.ModularAddition(p=7, width=2)
    turn = 2 * np.pi * np.arange(7) / 7
    one, two, late = np.cos(turn), np.cos(2 * turn), np.cos(turn - np.pi / 3)
    weights = {"U": [3 * one, one], "V": [two, one], "W": [one, late]}
    measured = jax.jit(lambda weights: gromov.measured(problem, weights))
    found = measured({n: np.array(w) for n, w in weights.items()})
    np.testing.assert_allclose(found["purity"], (9 + 2) / (9 + 1 + 2), rtol=1e-5)
    np.testing.assert_allclose(found["phases"], np.cos(np.pi / 3), rtol=1e-5)


@pytest.mark.full("test_analytic_weights_add")
def test_addition_is_grokked_with_weight_decay_only():
    problem, names = gromov.ModularAddition(), [*gromov.NAMES]
    decayed, free = (
        dynsim.train(
            problem,
            dynsim.adamw(0.01, decay=decay),
            jax.random.key(0),
            steps=1500,
            batch=math.inf,
            times=[100, 1500],
            record=names,
        )
        for decay in (1.0, 0.0)
    )
    for run in (decayed, free):
        assert run["train_accuracy"].min() > 0.99
        assert run["test_accuracy"][0] < 0.3
    assert decayed["test_accuracy"][-1] > 0.99
    assert decayed["purity"][-1] > 0.9
    assert free["test_accuracy"][-1] < 0.3
