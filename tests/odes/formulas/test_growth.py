"""Theorems 3 and 4: identities of the closed forms, SciPy's integration, the limit of Eq. 10."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import dynsim
from odes import decoder, growth, joma
from odes.yz import theorem4 as single_common

RECORD = ("z", "B", "xi", "speed", "attention")
TIMES = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])


def one_common(num_queries, classes_per_query):
    return dynsim.Syn(num_queries, classes_per_query, num_common=1, num_distinct=3).build()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("convention", ["sgd", "paper"])
@pytest.mark.parametrize("q", [1, 5])
def test_the_bound_is_the_integral_of_xi(convention, q):
    eta_y, eta_z, K, M, c0 = 0.7, 0.3, 5, 40, growth.c0(1.5, 5)
    bound = lambda t: growth.bound(
        t, eta_y, eta_z, K, M, c0=c0, convention=convention, classes_per_query=q
    )
    assert bound(0.0) == 0
    weight = {"sgd": 1 / 5, "paper": 1.0}[convention]
    integral = lambda t: decoder.gamma_integral(t / K, eta_y, M, K)
    read = jax.jit(lambda t: (bound(t), jax.grad(bound)(t), jax.grad(integral)(t)))
    gamma = jax.jit(lambda t: decoder.gamma(t / K, eta_y, M))
    for t in (0.1, 3.0, 40.0, 1e4):
        (grown, by_t, slope), rate = read(t), gamma(t)
        xi = rate * np.exp(-4 * q * grown) / c0
        np.testing.assert_allclose(by_t, weight * eta_z * xi, rtol=1e-12)
        np.testing.assert_allclose(slope, rate, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_printed_bound_lacks_a_constant():
    t, c0 = np.array([0.0, 2.0, 500.0]), 16 / 3
    exact = growth.bound(t, 0.5, 0.2, 3, 30, c0=c0, convention="paper")
    printed = growth.bound(t, 0.5, 0.2, 3, 30, c0=c0, convention="paper", printed=True)
    np.testing.assert_allclose(printed - exact, np.log(c0) / 4, rtol=1e-14)
    # Eq. 129 as it stands in the paper.
    h = decoder.h(t / 3, 0.5, 30)
    want = np.log(c0 + 2 * (0.2 / 0.5) * 3 * 29**2 * h**2) / 4
    np.testing.assert_allclose(printed, want, rtol=1e-14)


@pytest.mark.usefixtures("x64")
def test_one_gain_fixes_all_distinct_tokens():
    f = np.array([0.6, 0.45, 0.1, 0.6])

    # Theorem 3's hypothesis for a class of distinct tokens alone, f renormalised all along.
    def field(t, z):
        c = f * np.exp(z)
        return (c / np.linalg.norm(c)) ** 2

    z = solve_ivp(field, (0, 3), np.zeros(4), rtol=1e-11, atol=1e-12).y[:, -1]
    np.testing.assert_allclose(growth.other_logit(z[0], f / f[0]), z, rtol=1e-8)
    now = f * np.exp(z)
    kept = ((f[0] / f[1]) ** 2 - 1) * growth.growth_factor(z[0], 0.0)
    np.testing.assert_allclose((now[0] / now[1]) ** 2 - 1, kept, rtol=1e-8)
    lower, upper = growth.growth_factor_bounds(f[0] / np.linalg.norm(f), 3.0)
    assert lower < growth.growth_factor(z[0], 0.0) < upper == np.exp(6.0)
    assert float(lower) == pytest.approx(np.exp(6 * 0.36 / (f @ f)), rel=1e-12)
    assert float(growth.growth_factor(1.7, 0.4)) == pytest.approx(np.exp(2.6), rel=1e-12)
    assert float(growth.c0(1.7, 5)) == pytest.approx(1.7**4 / 5, rel=1e-12)
    # Far into the snap, where 1 - ratio^2 (1 - e^{-2 gain}) cancels unless written with expm1.
    ratio = np.array([1.0, 1 - 1e-15, 0.8, 0.0])
    late = np.array([500.0, -np.log(2e-15) / 2, -np.log(0.36) / 2, 0.0])
    # 1 - 1e-15 is itself off by one part in ten.
    np.testing.assert_allclose(growth.other_logit(500.0, ratio), late, rtol=4e-3)
    np.testing.assert_allclose(growth.other_logit(1e-12, 0.5), 2.5e-13, rtol=1e-6)
    slope = jax.vmap(jax.grad(growth.other_logit, (0, 1)), (None, 0))
    assert all(np.isfinite(part).all() for part in slope(2.0, ratio))


@pytest.mark.parametrize("shape", [(1, 4), pytest.param((4, 1), marks=pytest.mark.full)])
@pytest.mark.parametrize("convention", ["sgd", pytest.param("paper", marks=pytest.mark.full)])
def test_theorem_4_is_its_flow(shape, convention):
    task, eta_y, eta_z = one_common(*shape), 0.8, 0.5
    run = single_common.solve(
        task, dynsim.sgd(eta_y, eta_z), TIMES, record=RECORD, convention=convention
    )
    p = np.asarray(task.probs)[0][np.asarray(task.probs)[0] > 0]
    rho_0 = np.linalg.norm(p) / p[0]
    w, q = {"sgd": 1 / 4, "paper": 1.0}[convention], shape[1]

    def field(t, state):
        """z_c, the three distinct z_l, B; gamma by its definition from h, which runs along."""
        z, h = state[:4], state[5]
        gamma = (task.M - 1) ** 2 * h / (task.M - 1 + np.exp(task.M * h))
        xi = 4 / rho_0**4 * gamma * np.exp(4 * z[0])
        f = p * np.exp(z)
        f = f / np.linalg.norm(f)
        dh = eta_y / 4 / (task.M - 1 + np.exp(task.M * h))
        gains = w * eta_z * xi * f[1:] ** 2
        return np.r_[-q * w * eta_z * xi, gains, w * eta_z * xi, dh]

    want = solve_ivp(
        field, (0, 1000), np.zeros(6), t_eval=TIMES, rtol=1e-10, atol=1e-12, method="DOP853"
    ).y
    z = np.asarray(run["z"])[:, 0][:, np.asarray(task.probs)[0] > 0]
    # Both solvers' tolerances; the closed forms add nothing.
    np.testing.assert_allclose(z.T, want[:4], rtol=2e-7, atol=1e-9)
    np.testing.assert_allclose(np.asarray(run["B"])[:, 0], want[4], rtol=1e-7, atol=1e-10)
    gamma = decoder.gamma(TIMES / 4, eta_y, task.M)
    np.testing.assert_allclose(np.asarray(run["speed"])[:, 0], gamma, rtol=1e-5)
    xi = 4 / rho_0**4 * np.asarray(gamma) * np.exp(4 * want[0])
    np.testing.assert_allclose(np.asarray(run["xi"])[:, 3], xi, rtol=1e-5)
    assert z[-1, 0] < -0.2 < 0.02 < z[-1, 3]


def test_the_start_and_unequal_classes_enter_the_normaliser(jax_precision):
    probs = np.array([[0.5, 0.5, 0.0, 0.0], [0.5, 0.0, 0.2, 0.3]])
    task = dynsim.sequence_classes(probs, [2, 3])
    Z = np.zeros((2, 4))
    Z[0, 0] = np.log(2.0)
    squares = [4 * 0.25 / (4 * 0.25 + 0.25), 0.25 / (0.25 + 0.04 + 0.09)]
    found = single_common.normaliser(task.astype("float32"), jnp.asarray(Z, "float32"))
    np.testing.assert_allclose(found, np.mean(squares) ** -0.5, rtol=1e-6)


OF_ONE = one_common(1, 2), dynsim.sgd(0.8, 0.5), TIMES[:3]
V = np.array([0.5, -0.3]), np.array([[1.0, 0.2]]), np.array([0.7]), 0.4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("function", "usual"),
    [
        (
            lambda **o: growth.bound(5.0, 0.7, 0.3, 5, 40, c0=2.0, **o),
            {"convention": "sgd", "classes_per_query": 1, "printed": False},
        ),
        (lambda **o: decoder.gamma_integral(2.0, 0.7, 30.0, **o), {"K": 1}),
        (
            lambda **o: joma.mixture.velocity(*V, **o),
            {"residual": np.zeros(1), "activation": "relu"},
        ),
        (
            lambda **o: joma.toy.under_softmax(TIMES[:2], *V[:1], V[0] / 2, **o)[0],
            {"temperature": 1.0},
        ),
        (
            lambda **o: single_common.solve(*OF_ONE, record="z", **o)["z"],
            {"convention": "sgd"},
        ),
    ],
)
def test_what_is_left_out_has_the_documented_value(function, usual):
    np.testing.assert_array_equal(function(), function(**usual))
