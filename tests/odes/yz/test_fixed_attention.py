"""Decoder at fixed attention, in closed form and in steps; Theorem 1 at finite M."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import observables
from odes import coefficients, decoder
from odes.decoder import h_star
from odes.yz import eq10 as attention
from odes.yz import fixed_attention, population
from tests.systems.layers import simulate

# Three classes without a token in common, of unequal prior: the plain update is Lemma 3's.
APART = dynsim.sequence_classes(
    np.kron(np.eye(3), [[0.2, 0.3, 0.5]]), [0, 0, 1], prior=[0.2, 0.3, 0.5]
)


def h_by_hand(eta, M, visits, mu=0.0):
    found, velocity = [0.0], 0.0
    for _ in range(visits):
        velocity = mu * velocity + 1 / ((M - 1) + math.exp(M * found[-1]))
        found.append(found[-1] + eta * velocity)
    return np.array(found)


@pytest.mark.usefixtures("x64")
def test_the_drift_of_eq_10_is_written_out_for_two_queries():
    """g_n = gamma_n (F F^T)^-1 F, and xi_n = gamma_n ((F F^T)^-1_nn - 1), by NumPy."""
    rng = np.random.default_rng(0)
    f = rng.random((3, 5))
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    speed, weight = rng.random((2, 3))
    found = attention.drift(APART, jnp.asarray(f), jnp.asarray(speed), jnp.asarray(weight))
    inverse = np.linalg.inv(f @ f.T)
    np.testing.assert_allclose(found.B, weight * speed * (np.diag(inverse) - 1), rtol=1e-10)
    g = speed[:, None] * inverse @ f
    own = weight[:, None] * f * (g - np.sum(f * g, 1, keepdims=True) * f)
    np.testing.assert_allclose(found.Z, [own[0] + own[1], own[2]], rtol=1e-10)
    pairs = [f[0] @ f[1], f[0] @ f[2], f[1] @ f[2]]
    np.testing.assert_allclose(attention.mean_overlap(jnp.asarray(f)), np.mean(pairs), rtol=1e-12)
    assert attention.mean_overlap(jnp.ones((1, 1))) == 0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_lemma_5_is_its_recursion_for_every_rate_at_once(mu):
    rates = np.array([0.1, 2.0])
    found = jax.jit(h_star, static_argnums=2)(rates, 50, 80, mu)
    assert found.shape == (81, 2)
    for i, rate in enumerate(rates):
        # e^{-Mh} against e^{Mh}, 80 times: rounding alone.
        np.testing.assert_allclose(found[:, i], h_by_hand(rate, 50, 80, mu), rtol=1e-13)


def test_a_first_step_of_any_size_is_finite(jax_precision):
    value, slope = jax.value_and_grad(lambda eta: h_star(eta, 50, 3)[-1])(1e5)
    # The first step, eta / M, saturates the softmax, so the others add nothing.
    np.testing.assert_allclose([value, slope], [1e5 / 50, 1 / 50], rtol=1e-6)
    assert decoder.speed(value, 50) == 0


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(dynsim.sgd(3.0, 0.0), marks=pytest.mark.full),
        dynsim.sgd(1.0, 0.0, momentum=0.8),
    ],
    ids=["sgd", "momentum"],
)
def test_discrete_decoder_is_descent_where_classes_share_nothing(optimizer):
    times = np.array([0, 1, 2, 5, 20, 60])
    record = ("loss", "speed", "accuracy", "attention")
    found = fixed_attention.solve(APART, optimizer, times, decoder="discrete", record=record)
    options = {"length": math.inf, "batch": math.inf, "dtype": "float64", "record": record}
    want = simulate(APART, optimizer, steps=60, times=times, **options)
    # Both are exact, so sixty steps of rounding are all that can differ.
    for name in ("loss", "accuracy", "attention"):
        np.testing.assert_allclose(found[name], want[name], rtol=1e-12, err_msg=name)
    # Theorem 1's gamma leaves out q1 = 1 + 1/(M-1) = M/(M-1) of Eq. 86.
    np.testing.assert_allclose(found["speed"] * 9 / 8, want["speed"], rtol=1e-12)
    assert (found.status, found.first_bad_step) == (dynsim.Status.OK, -1)


@pytest.mark.usefixtures("x64")
def test_a_rate_that_is_not_finite_is_a_status():
    run = lambda eta: fixed_attention.solve(
        APART, dynsim.sgd(eta, 1.0), [0.0, 1.0, 2.5], record="loss"
    )
    result = jax.vmap(run)(jnp.array([1.0, jnp.nan]))
    np.testing.assert_array_equal(result.status, [dynsim.Status.OK, dynsim.Status.DIVERGED])
    np.testing.assert_array_equal(result.first_bad_step, [-1, 0])


def random_layer(K, M):
    """Overlapping classes, random logits, unequal h."""
    rng = np.random.default_rng(K)
    task = dynsim.sequence_classes(rng.dirichlet(np.ones(M), K), np.arange(K) % 2)
    return task, jnp.asarray(rng.normal(size=(2, M))), jnp.asarray(rng.uniform(0.01, 0.2, K))


@pytest.mark.usefixtures("x64")
def test_finite_m_is_the_layer_with_the_decoder_of_the_theory():
    task, Z, h = random_layer(5, 12)
    c = np.asarray(task.probs) * np.exp(np.asarray(Z)[np.asarray(task.query_index)])
    F = c / np.linalg.norm(c, axis=1, keepdims=True)
    W = np.zeros((5, 12))
    for n in range(5):
        zeta = 12 / 11 * (np.arange(12) == n) - 1 / 11
        W[n] = 11 * h[n] * zeta
    Y = F.T @ np.linalg.inv(F @ F.T) @ W
    want = jax.jit(observables.measure)(task, dynsim.YZ(jnp.asarray(Y), Z))
    found = jax.jit(functools.partial(population.predict, finite_m=True))(task, Z, h)
    # The Gram matrix of five random classes has a condition number near 10^2.
    for name in ("z", "c", "f", "logits", "g"):
        got = np.asarray(getattr(found, name))
        np.testing.assert_allclose(got, getattr(want, name), rtol=1e-11, atol=1e-12, err_msg=name)

    speed = population.speed(task, h, finite_m=True)
    gamma = decoder.speed(h, 12)
    np.testing.assert_allclose(coefficients.own_speed(speed), gamma * 12 / 11, rtol=1e-14)
    # q0 and q1 as the paper prints them, for equal h.
    equal = jnp.full(5, 0.1)
    C = coefficients.mixing(found.f, coefficients.finite_m_speed(equal, 12))
    E = np.eye(5) - np.linalg.inv(F @ F.T)
    q1, q0, g0 = 1 + 1 / 11, -12 / 121, float(decoder.speed(0.1, 12))
    for n in range(5):
        for k in range(5):
            others = sum(E[j, k] for j in range(5) if j != n)
            iota, beta = q1 * (1 - E[n, n]) - q0 * others, q1 * E[k, n] - q0 * (1 - others)
            np.testing.assert_allclose(C[n, k], g0 * (iota if n == k else -beta), rtol=1e-10)
    xi = coefficients.xi(found.f, coefficients.finite_m_speed(equal, 12))
    np.testing.assert_allclose(xi, np.diagonal(C) - q1 * g0, rtol=1e-10)


def test_large_vocabularies_do_not_overflow_32_bits(jax_precision):
    # References in float64 NumPy and SciPy; (M - 1)^2 = 10^12 is beyond a 32-bit integer.
    M, h = 10**6, 1e-6
    np.testing.assert_allclose(decoder.speed(h, M), 0.9999962817256, rtol=1e-6)
    np.testing.assert_allclose(decoder.stages(2.0, 4, M).peak_gamma, 10.467247038, rtol=1e-6)
    integral = decoder.gamma_integral(10.0, 1.0, M, 4)
    np.testing.assert_allclose(integral, 2 * ((M - 1) * float(decoder.h(10.0, 1.0, M))) ** 2, 1e-6)
