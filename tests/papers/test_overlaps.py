"""Overlaps of on-line learning: averages over inputs, and the formulas of the papers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import dynsim
from papers import biehl_schwarze, phase_retrieval, saad_solla
from tests.papers.made import training


def test_the_equations_of_the_committee_are_averages_over_inputs():
    """Of 200 000 inputs, by NumPy: every entry within four standard errors."""
    Q, R = np.array([[0.5, 0.1], [0.1, 0.3]]), np.array([[0.3, -0.1], [0.2, 0.25]])
    C = np.block([[Q, R], [R.T, np.eye(2)]])
    h = np.random.default_rng(0).multivariate_normal(np.zeros(4), C, 200_000)
    g = special.erf(h / math.sqrt(2))
    miss = g[:, 2:].sum(1) - g[:, :2].sum(1)
    delta = math.sqrt(2 / math.pi) * np.exp(-(h[:, :2] ** 2) / 2) * miss[:, None]
    force, noise = delta[:, :, None] * h[:, None], delta[:, :, None] * delta[:, None]
    state, problem = {"Q": jnp.asarray(Q), "R": jnp.asarray(R)}, saad_solla.Committee(N=100)
    single, whole = (
        jax.jit(lambda s, b=batch: saad_solla.field(0.0, s, training(problem, 1.0, b)))(state)
        for batch in (1, math.inf)
    )
    sums = force[:, :, :2] + force[:, :, :2].transpose(0, 2, 1)
    for found, sample in (
        (whole["Q"], sums),
        (whole["R"], force[:, :, 2:]),
        ((single["Q"] - whole["Q"]) / 100, noise),
        (saad_solla.generalisation(state), miss**2 / 2),
    ):
        error = sample.std(0) / math.sqrt(len(sample))
        assert (np.abs(found - sample.mean(0)) < 4 * error).all()


@pytest.mark.more
def test_the_committee_rests_on_the_plateau_of_the_paper():
    """All units alike with Q = 1/(2 K - 1) and R = sqrt(Q/K), at a small rate."""
    problem, rule = saad_solla.Committee(N=400, K=3), dynsim.sgd(0.2 / 400)
    start = 0.01 * jax.random.normal(jax.random.key(1), (3, 400)) / 20
    options = {"init": start, "record": ["Q", "R", "loss"], "batch": 1}
    found = saad_solla.OVERLAPS.solve(problem, rule, [0.0, 40_000.0], **options)
    Q, R = found["Q"][-1], found["R"][-1]
    # The noise of a rate of 0.2 shifts the plateau by some per cent.
    np.testing.assert_allclose(Q, 1 / 5, rtol=0.06)
    np.testing.assert_allclose(R, math.sqrt(1 / 15), rtol=0.06)


@pytest.mark.parametrize(
    ("K", "known"), [(2, 2.30683), (3, 1.62067), pytest.param(4, 1.24939, marks=pytest.mark.full)]
)
def test_the_largest_rate_of_the_committee_is_that_of_its_deviations(K, known):
    """Above it the overlaps of the deviations grow; the cited rate drops those between units."""
    problem, upper = saad_solla.Committee(N=1000, K=K), np.triu_indices(K)

    def step(x, eta):
        # Q is symmetric: only half of it are variables.
        half = jnp.zeros((K, K)).at[upper].set(x[: len(upper[0])])
        state = {"Q": jnp.triu(half, 1).T + half, "R": x[len(upper[0]) :].reshape(K, K)}
        found = saad_solla.field(0.0, state, training(problem, eta / 1000))
        return jnp.concatenate([found["Q"][upper], found["R"].ravel()])

    teacher = np.concatenate([np.eye(K)[upper], np.eye(K).ravel()])
    found = largest_rate(step, teacher, 3.0)
    assert found == pytest.approx(known, abs=6e-6)
    cited = math.sqrt(3) * math.pi / (K + 3 / math.sqrt(5) - 1)
    assert 1.002 < cited / found < 1.01
    # As on the card.
    x = 2 * math.sqrt(2) + 2 / math.sqrt(3) * (K - 2)
    A = np.array([[2 / math.sqrt(3), K - 1], [1, 2 / math.sqrt(3) + K - 2]])
    last = 8 / 3 + 8 / math.sqrt(3) * (K - 2) + (K - 2) * (K - 3)
    M = np.array([[4 / math.sqrt(5) + 4 / 3 * (K - 1), (K - 1) * x], [x, last]])
    roots = np.linalg.eigvals(np.linalg.solve(M, 2 * A)).real
    assert math.pi * roots.min() == pytest.approx(found, rel=1e-6)


def largest_rate(field, teacher, upper):
    """The rate above which the derivative of `field` at the teacher has an eigenvalue with
    a positive real part."""
    slope = jax.jit(jax.jacfwd(field))
    with jax.enable_x64(True):
        growth = lambda eta: np.linalg.eigvals(np.asarray(slope(teacher, eta))).real.max()
        return float(optimize.brentq(growth, 1e-3, upper, xtol=1e-9))


def test_a_unit_is_a_committee_of_one():
    """Its equations are written out; those of the committee are sums of integrals."""
    unit, committee = biehl_schwarze.Unit(N=100), saad_solla.Committee(N=100, K=1)
    matrix = lambda x: jnp.full((1, 1), x)
    of_unit = jax.jit(lambda state: biehl_schwarze.field(0.0, state, training(unit, 0.02)))
    of_committee = jax.jit(lambda state: saad_solla.field(0.0, state, training(committee, 0.02)))
    for R, Q in ((0.3, 0.5), (0.7, 1.2)):
        found = of_unit({"R": jnp.asarray(R), "Q": jnp.asarray(Q)})
        state = {"Q": matrix(Q), "R": matrix(R)}
        other = of_committee(state)
        for name in "RQ":
            np.testing.assert_allclose(found[name], other[name][0, 0], rtol=2e-5)
        error = biehl_schwarze.generalisation(R, Q)
        np.testing.assert_allclose(error, saad_solla.generalisation(state), rtol=2e-5)


def test_noise_of_labels_lengthens_a_unit():
    """By eta^2 sigma^2 times the mean of g'(h)^2, which NumPy integrates on a grid."""
    Q, sigma, N = 0.8, 0.3, 100
    h = np.linspace(-12, 12, 4001)
    slope = 2 / math.pi * np.exp(-(h**2))
    mean = np.trapezoid(slope * np.exp(-(h**2) / (2 * Q)) / math.sqrt(2 * math.pi * Q), h)
    state = {"R": jnp.asarray(0.4), "Q": jnp.asarray(Q)}
    with_noise, without = (
        biehl_schwarze.field(0.0, state, training(biehl_schwarze.Unit(N=N, sigma=s), 0.1))["Q"]
        for s in (sigma, 0.0)
    )
    np.testing.assert_allclose(with_noise - without, 0.1**2 * N * sigma**2 * mean, rtol=1e-4)


def test_the_largest_rate_of_a_unit():
    def field(x, eta):
        found = biehl_schwarze.field(
            0.0, {"R": x[0], "Q": x[1]}, training(biehl_schwarze.Unit(N=1), eta)
        )
        return jnp.stack([found["R"], found["Q"]])

    found = largest_rate(field, np.ones(2), 10)
    assert found == pytest.approx(math.sqrt(15) * math.pi / 3, rel=1e-6)


def test_the_equations_of_phase_retrieval_are_averages_over_inputs():
    q, m = 0.6, 0.3
    h = np.random.default_rng(0).multivariate_normal([0, 0], [[q, m], [m, 1]], 500_000)
    miss = h[:, 0] ** 2 - h[:, 1] ** 2
    delta, state = miss * h[:, 0], {"m": jnp.asarray(m), "q": jnp.asarray(q)}
    problem = phase_retrieval.PhaseRetrieval(N=100)
    single, whole = (
        phase_retrieval.field(0.0, state, training(problem, 1.0, b)) for b in (1, math.inf)
    )
    for found, sample in (
        (whole["m"], -delta * h[:, 1]),
        (whole["q"], -2 * delta * h[:, 0]),
        ((single["q"] - whole["q"]) / 100, delta**2),
        (phase_retrieval.generalisation(m, q), miss**2 / 4),
    ):
        assert abs(found - sample.mean()) < 4 * sample.std() / math.sqrt(len(sample))


def test_without_an_overlap_weights_rest_below_a_rate_and_grow_above():
    """The rate (sqrt(10) - 1) / 6, where the two lengths at which they rest meet."""
    largest = (math.sqrt(10) - 1) / 6
    problem = phase_retrieval.PhaseRetrieval(N=1000)
    q = jnp.linspace(0.01, 3, 3001)

    def slowest(gamma):
        state = {"m": jnp.zeros_like(q), "q": q}
        return float(phase_retrieval.field(0.0, state, training(problem, gamma / 1000))["q"].min())

    assert slowest(0.99 * largest) < 0 < slowest(1.01 * largest)


@pytest.mark.parametrize(("gamma", "sign"), [(0.32, -1), (0.345, 1)])
def test_the_teacher_of_phase_retrieval_is_stable_below_a_third(gamma, sign):
    """What is orthogonal to it changes by -4 gamma (1 - 3 gamma) of itself in N steps."""
    problem = phase_retrieval.PhaseRetrieval(N=1000)
    m, P = 1.0, 1e-5

    def rates(m, q):
        state = {"m": jnp.asarray(m), "q": jnp.asarray(q)}
        return phase_retrieval.field(0.0, state, training(problem, gamma / 1000))

    with jax.enable_x64(True):
        found = rates(m, m**2 + P)
        change = 1000 * float(found["q"] - 2 * m * found["m"]) / P
    assert change == pytest.approx(-4 * gamma * (1 - 3 * gamma), rel=1e-2)
    assert np.sign(change) == sign
