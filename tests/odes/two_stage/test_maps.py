"""Loss, observables and noise of the two stages: against sampled prompts and grids in NumPy."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from scipy.special import erf, ndtr

from dynsim.problem.build import narrowed
from dynsim.problem.train import problem_in
from dynsim.two_stage.model import PQ, data_loss, outputs
from dynsim.two_stage.task import Prompts, sample_prompts
from odes.two_stage import field, loss, thresholds
from odes.two_stage.loss import ReducedState, auc_Q, losses, total
from tests.systems.two_stage import DENSITY, NORMAL, RULE, folded, on_grids

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(("m", "s"), [(0.3, 1.7), (-2.0, 0.4), (1e-4, 1.0)])
def test_folded_normal_and_its_derivatives(m, s):
    density = scipy.stats.norm(m, s).pdf
    want = scipy.integrate.quad(lambda x: abs(x) * density(x), -12, 12, points=[0, m])[0]
    np.testing.assert_allclose(loss.G(m, s), want, rtol=1e-10)
    # For small m the difference of two G would have no correct digit left.
    series = m**2 / (s * math.sqrt(2 * math.pi)) if m == 1e-4 else want - s * math.sqrt(2 / math.pi)
    np.testing.assert_allclose(loss.D(m, s), series, rtol=2e-9)
    D, step = lambda m, s: loss.G(m, s) - loss.G(0.0, s), 1e-5
    by_m, by_s = jax.grad(loss.D, (0, 1))(m, s)
    difference = (D(m + step, s) - D(m - step, s)) / (2 * step)
    np.testing.assert_allclose(by_m, difference, rtol=1e-5, atol=1e-9)
    difference = (D(m, s + step) - D(m, s - step)) / (2 * step)
    np.testing.assert_allclose(by_s, difference, rtol=1e-5, atol=1e-9)
    # Without noise.
    np.testing.assert_allclose([loss.G(m, 0.0), loss.D(m, 0.0)], abs(m), rtol=1e-10)
    slopes = jax.grad(loss.D, (0, 1))(abs(m), 0.0)
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(slopes[0], 1, rtol=1e-12)


def test_floor_of_the_specialised_loss():
    task = Prompts(8, 65, r=2.0)
    evaluate = jax.jit(functools.partial(losses, finite_length=False))
    states = jnp.asarray(10 ** np.random.default_rng(0).uniform(-4, 2, (50, 7)))
    found = jax.jit(jax.vmap(lambda state: evaluate(ReducedState(*state), task)))(states)
    assert (found.K2_pos >= math.log(2)).all()
    assert (found.K2 >= loss.JENSEN_FLOOR).all()
    # It is the greatest lower bound: weights along zeta alone come as near as one likes.
    best = evaluate(ReducedState(0.0, 100.0, *(5 * (0.0,))), task)
    np.testing.assert_allclose(best.K2, loss.JENSEN_FLOOR, rtol=1e-6)


def drawn(state, d, key):
    """Isotropic Gaussian weights whose projection is `state`."""
    W, V = jax.random.normal(key, (2, d, d))
    scaled = lambda block, square: block * jnp.sqrt(square / jnp.mean(block**2))
    W = W.at[0, 0].set(state.a).at[0, 1:].set(scaled(W[0, 1:], state.v_h))
    V = V.at[0, 0].set(state.b).at[0, 1:].set(scaled(V[0, 1:], state.v_e))
    V = V.at[1:, 0].set(scaled(V[1:, 0], state.v_u))
    V = V.at[1:, 1:].set(scaled(V[1:, 1:], state.v_M))
    return PQ(W.at[1:].set(scaled(W[1:], state.v_W)), V)


GROUPS, NUM = 10, 320


def sampled(task, state):
    """(GROUPS, 10): loss, its derivatives along the state, AUC and whether the weights project
    on the state; by weights drawn anew for each group."""

    def one(key):
        weight_key, data_key = jax.random.split(key)
        params = drawn(state, task.d, weight_key)
        batch = sample_prompts(task, data_key, NUM, "float64")
        loss, slope = jax.value_and_grad(data_loss)(params, task.coupling, batch)
        product = jax.tree.map(jnp.multiply, params, slope)
        blocks = (product.W[0, 1:], product.W[1:], product.V[0, 1:], product.V[1:, 0])
        along = [jnp.sum(block) for block in (*blocks, product.V[1:, 1:])]
        score, y = outputs(params, batch).Q, batch.labels[:, -1]
        above = (score[:, None] > score[None]) & (y[:, None] > y[None])
        auc = jnp.sum(above) / (jnp.sum(y > 0) * jnp.sum(y < 0))
        there = ReducedState.from_weights(params.W, params.V)
        off = sum(
            jnp.abs(x - z) for x, z in zip(*map(jax.tree.leaves, (there, state)), strict=True)
        )
        return jnp.stack([loss, slope.W[0, 0], slope.V[0, 0], *along, auc, off])

    return jax.lax.map(one, jax.random.split(jax.random.key(3), GROUPS))


@jax.jit
def predicted(task, state):
    """What `sampled` should find, for the length of `task` and for the infinite one."""

    def of(finite_length):
        loss, slope = jax.value_and_grad(total)(state, task, finite_length=finite_length)
        v, by = jax.tree.leaves(state), jax.tree.leaves(slope)
        along = [2 * x * g for x, g in zip(v[2:], by[2:], strict=True)]
        auc = auc_Q(state, task, finite_length=finite_length)
        return jnp.stack([loss, *by[:2], *along, auc])

    return of(True), of(False)


@pytest.mark.more
def test_loss_and_gradient_are_those_of_sampled_prompts(optimised):
    task = problem_in(Prompts(24, 65, r=1.8, coupling=1.0), "float64")
    state = narrowed(ReducedState(0.9, 1.2, 0.01, 0.02, 0.01, 0.01, 0.01), "float64")
    # As users compile it: it runs for longer than it compiles.
    found = np.asarray(jax.jit(sampled, compiler_options=optimised)(task, state))
    assert np.abs(found[:, -1]).max() < 1e-12
    mean = found.mean(axis=0)[:-1]
    error = found.std(axis=0)[:-1] / math.sqrt(len(found) - 1)
    finite, infinite = map(np.asarray, predicted(task, state))

    def excess(want):
        # The theory itself is off by 1/d and 1/L: 0.5 % of loss and AUC, 4 % of a derivative.
        allowed = 3.5 * error + np.r_[0.005, 7 * [0.04], 0.005] * np.abs(want) + 2e-4
        return np.abs(mean - want) / allowed

    assert (excess(finite) < 1).all()
    assert excess(infinite).max() > 2


COUPLED = Prompts(12, 33, r=2.0, gamma0=0.8, s1=1.1, s2=0.9, coupling=0.3)
NUMBERS = np.array([0.3, -0.6, 0.03, 0.02, 0.04, 0.015, 0.01])
ON_P, POS, NEG = on_grids(COUPLED, NUMBERS)
KAPPA = 1 - 1 / 33


@jax.jit
def recorded(state):
    """All observables, and the mean squares of losses."""
    model = field.checked_model(COUPLED, True, RULE)
    found = losses(state, COUPLED, **model.numerics)
    snapshot = field.Snapshot(state, COUPLED, found, model)
    squares = losses(state, COUPLED, power=2, **model.numerics)
    return {name: of(snapshot) for name, of in field.OBSERVABLES.items()}, squares


def test_scores_of_tokens_vary_as_their_margins_where_w_has_no_noise():
    """Margins gamma0 + s1 |g| have the variance s1^2 (1 - 2/pi)."""
    P, _ = loss.outputs(ReducedState(0.8, 0.6, 0.03, 0.0, 0.04, 0.015, 0.01), COUPLED, True, RULE)
    ratio = 1.1 * math.sqrt(1 - 2 / math.pi) / (0.8 + 1.1 * math.sqrt(2 / math.pi))
    np.testing.assert_allclose(P.s, ratio * np.abs(P.m), rtol=1e-6)


def test_observables_are_those_of_the_equations():
    found, squares = recorded(ReducedState(*NUMBERS))
    K1, pos, neg = (each.mean_of(np.logaddexp) for each in (ON_P, POS, NEG))
    J = 0.0
    for q in (POS, NEG):
        # Half of the tokens of the context are of the class of Q's signal.
        of_Q = (folded(0 * q.m, q.s) + folded(q.m, q.s)) / 2
        covariance = KAPPA / 33 * folded(ON_P.m, ON_P.s)[..., None] * of_Q / 4
        variance = ON_P.variance[..., None] + q.variance + 2 * covariance
        for f, share in zip(NORMAL[::2], DENSITY[::2] / DENSITY[::2].sum(), strict=True):
            score = ON_P.mean[..., None] + q.mean + np.sqrt(variance) * f
            J += share * np.einsum("gh,e,ghe->", ON_P.weight, q.weight, np.logaddexp(0, -score)) / 2
    gap = POS.mean[:, None] + NEG.mean
    auc = DENSITY @ ndtr(gap / np.sqrt(POS.variance[:, None] + NEG.variance)) @ DENSITY
    a, b, h, W, e, u, M = NUMBERS
    rest_W, rest_V = 11 * h + 12 * 11 * W, 11 * e + 11 * u + 121 * M
    want = {
        "K1": K1,
        "K2": (pos + neg) / 2,
        "K2_pos": pos,
        "K2_neg": neg,
        "J": J,
        "loss": 0.7 * (K1 + (pos + neg) / 2) + 0.3 * J,
        "auc_Q": auc,
        "W_norm": np.sqrt(a**2 + rest_W),
        "V_norm": np.sqrt(b**2 + rest_V),
        "W_trace": a,
        "V_trace": b,
        "V_trace_abs": -b,
        "V_rms": np.sqrt(rest_V / 143),
        "state": NUMBERS,
    }
    assert found.keys() == want.keys()
    for name, value in want.items():
        # The grid of |g| errs by 2e-4 of what moves.
        np.testing.assert_allclose(found[name], value, rtol=2e-4, err_msg=name)
    # What the outputs share counts.
    assert abs(J / (K1 + (pos + neg) / 2) - 1) > 0.05
    of_squares = [each.mean_of(lambda *x: np.logaddexp(*x) ** 2) for each in (ON_P, POS, NEG)]
    got = squares.K1, squares.K2_pos, squares.K2_neg
    np.testing.assert_allclose(got, of_squares, rtol=5e-4)


def test_the_variance_of_the_gradient_is_that_of_the_equations():
    """Margins and their slopes are jointly normal; slopes of mean and deviation by differences."""
    task = dataclasses.replace(COUPLED, coupling=0.0)
    pbar = 0.8 + 1.1 * np.sqrt(2 / np.pi)
    p2 = 0.8**2 + 2 * 0.8 * 1.1 * np.sqrt(2 / np.pi) + 1.1**2
    p = (0.8 + 1.1 * np.linspace(0, 6, 81))[:, None]
    of_a = KAPPA / 33 * p**2 * (p2 / 2 - pbar**2 / 4)
    of_b = KAPPA / 33 * 2.0**4 * (1 / 4 - erf(NEG.m / NEG.s / 2**0.5) ** 2 / 16)
    want = []
    for place, output, variance, share in ((0, 0, of_a, 1.0), (1, 2, of_b, 0.5)):
        step = 1e-5 * np.eye(7)[place]
        up, down = (on_grids(COUPLED, NUMBERS + sign * step)[output] for sign in (1, -1))
        now = on_grids(COUPLED, NUMBERS)[output]
        by_mean = (up.mean - down.mean)[..., None] / 2e-5
        by_std = (np.sqrt(up.variance) - np.sqrt(down.variance))[..., None] / 2e-5
        margin = now.mean[..., None] + np.sqrt(now.variance)[..., None] * NORMAL
        gate, along = 1 / (1 + np.exp(margin)), by_mean + by_std * NORMAL
        square = gate**2 * (along**2 + variance[..., None] - by_std**2)
        # Of the share of queries that have a gradient.
        mean = share * np.sum(now.weight * ((gate * along) @ DENSITY))
        want.append(share * np.sum(now.weight * (square @ DENSITY)) - mean**2)
    found = thresholds.gradient_variance(ReducedState(*NUMBERS), task, rule=RULE)
    # Trapezoids over |g| have an error of the square of their width, 0.1 % of p^2 here.
    np.testing.assert_allclose(found, want, rtol=2e-3)
