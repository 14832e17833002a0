"""Maps and loss of the two-stage theory: against sampled prompts and the layer itself."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from dynsim.problem.base import narrowed
from dynsim.problem.train import problem_in
from dynsim.two_stage.model import PQ, attend, data_loss, outputs
from dynsim.two_stage.task import Prompts, sample_prompts
from odes.two_stage import loss
from odes.two_stage.loss import ReducedState, Rule, auc_Q, block_sizes, losses, total

pytestmark = pytest.mark.usefixtures("x64")

STATE = ReducedState(1.3, 0.9, 0.02, 0.011, 0.03, 0.05, 0.004)


@pytest.mark.parametrize(("m", "s"), [(0.3, 1.7), (-2.0, 0.4), (1e-4, 1.0), (2.0, 0.0)])
@pytest.mark.more
def test_folded_normal_and_its_derivatives(m: float, s: float) -> None:
    if s:
        density = scipy.stats.norm(m, s).pdf
        want = scipy.integrate.quad(lambda x: abs(x) * density(x), -12, 12, points=[0, m])[0]
    else:
        want = abs(m)
    np.testing.assert_allclose(loss.G(m, s), want, rtol=1e-10)
    # For small m the difference of two G would have no correct digit left.
    series = m**2 / (s * math.sqrt(2 * math.pi)) if m == 1e-4 else want - s * math.sqrt(2 / math.pi)
    np.testing.assert_allclose(loss.D(m, s), series, rtol=2e-9)
    by_m, by_s = jax.grad(loss.D, (0, 1))(m, s)
    assert np.isfinite([by_m, by_s]).all()
    if s:
        step = 1e-5
        for got, shift in ((by_m, (step, 0)), (by_s, (0, step))):
            up = loss.G(m + shift[0], s + shift[1]) - loss.G(0.0, s + shift[1])
            down = loss.G(m - shift[0], s - shift[1]) - loss.G(0.0, s - shift[1])
            np.testing.assert_allclose(got, (up - down) / (2 * step), rtol=1e-5, atol=1e-9)
    else:
        np.testing.assert_allclose(by_m, 1, rtol=1e-12)


def population_P(W: jax.Array, x_L: jax.Array, task: Prompts) -> jax.Array:
    return (x_L @ W[0]) * (0.5 * task.kappa * task.mean_margin)


def population_Q(V: jax.Array, x_L: jax.Array, task: Prompts) -> jax.Array:
    v = x_L @ V.T
    across = jnp.sqrt(jnp.sum(v[:, 1:] ** 2, axis=1))
    return -0.25 * task.kappa * loss.D(task.r * v[:, 0], task.s2 * across)


@pytest.mark.more
def test_population_maps_are_those_of_long_prompts() -> None:
    task = Prompts(16, 8000, r=1.4, gamma0=0.7, s1=0.8, s2=0.9)
    weight_key, key = jax.random.split(jax.random.key(1))
    W, V = jax.random.normal(weight_key, (2, 16, 16), "float32")
    # Little noise in V, which would hide what Q makes of its signal.
    W, V = W.at[0, 0].set(10), (0.3 * V).at[0, 0].set(5)
    batch = jax.jit(lambda key: sample_prompts(task, key, 12))(key)
    apply = jax.jit(attend)
    got_P, got_Q = apply(W, batch.P, batch.labels), apply(V, batch.Q, batch.labels)
    want_P = jax.jit(population_P)(W, batch.P[:, -1], task)
    want_Q = jax.jit(population_Q)(V, batch.Q[:, -1], task)
    assert np.abs(want_P).max() > 2
    assert np.abs(want_Q).max() > 0.3

    def mean_square(U: np.ndarray, query: np.ndarray, along: float, spread: float) -> np.ndarray:
        """Half of E (x_i^T U x_L)^2, which is what half of the tokens contribute."""
        u = query @ U.T
        return (along * u[:, 0] ** 2 + spread**2 * np.sum(u[:, 1:] ** 2, axis=1)) / 2

    got_P, got_Q, want_P, want_Q = map(np.asarray, (got_P, got_Q, want_P, want_Q))
    W, V, queries_P, queries_Q = map(np.asarray, (W, V, batch.P, batch.Q))
    along_P, along_Q = float(task.mean_square_margin), float(task.r) ** 2 / 2
    # In standard errors of a mean over L tokens; the worst relative to the maps is 6 %.
    square_P = mean_square(W, queries_P[:, -1], along_P, float(task.s1))
    square_Q = mean_square(V, queries_Q[:, -1], along_Q, float(task.s2))
    off_P = (got_P - want_P) / np.sqrt((square_P - want_P**2) / task.length)
    off_Q = (got_Q - want_Q) / np.sqrt((square_Q - want_Q**2) / task.length)
    for off in (off_P, off_Q):
        assert np.abs(off).max() < 3.5
        assert 0.5 < np.std(off) < 1.6


@pytest.mark.more
def test_floor_of_the_specialised_loss() -> None:
    task = Prompts(8, 65, r=2.0)
    sample = jax.jit(lambda key: sample_prompts(task, key, 500, "float64").Q[:, -1])
    query, map_Q = sample(jax.random.key(1)), jax.jit(population_Q)
    for scale in (0.1, 1.0, 10.0):
        V = scale * jax.random.normal(jax.random.key(2), (8, 8))
        assert (map_Q(V, query, task) <= 0).all()
    evaluate = jax.jit(functools.partial(losses, finite_length=False))
    rng = np.random.default_rng(0)
    states = jnp.asarray(10 ** rng.uniform(-4, 2, (50, 7)))
    found = jax.jit(jax.vmap(lambda state: evaluate(ReducedState(*state), task)))(states)
    assert (found.K2_pos >= math.log(2)).all()
    assert (found.K2 >= loss.JENSEN_FLOOR).all()
    # It is the greatest lower bound: weights along zeta alone come as near as one likes.
    best = evaluate(ReducedState(0.0, 100.0, 0.0, 0.0, 0.0, 0.0, 0.0), task)
    np.testing.assert_allclose(best.K2, loss.JENSEN_FLOOR, rtol=1e-6)


def drawn(state: ReducedState, d: int, key: jax.Array) -> PQ:
    """Isotropic Gaussian weights whose projection is `state`."""
    W, V = jax.random.normal(key, (2, d, d))

    def scaled(block: jax.Array, square: float) -> jax.Array:
        return block * jnp.sqrt(square / jnp.mean(block**2))

    W = W.at[0, 0].set(state.a).at[0, 1:].set(scaled(W[0, 1:], state.v_h))
    W = W.at[1:].set(scaled(W[1:], state.v_W))
    V = V.at[0, 0].set(state.b).at[0, 1:].set(scaled(V[0, 1:], state.v_e))
    V = V.at[1:, 0].set(scaled(V[1:, 0], state.v_u))
    return PQ(W, V.at[1:, 1:].set(scaled(V[1:, 1:], state.v_M)))


GROUPS, NUM = 10, 320


def sampled(task: Prompts, state: ReducedState) -> jax.Array:
    """(GROUPS, 10): loss, its derivatives along the state, AUC and whether the weights project
    on the state; by weights drawn anew for each group."""

    def one(key: jax.Array) -> jax.Array:
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


@pytest.fixture(scope="module")
def sample(optimised: dict[str, int | bool | str]) -> Callable[..., jax.Array]:
    """`sampled` as users compile it: it runs for longer than it compiles."""
    return jax.jit(sampled, compiler_options=optimised)


@jax.jit
def predicted(task: Prompts, state: ReducedState) -> tuple[jax.Array, jax.Array]:
    """What `sampled` should find, for the length of `task` and for the infinite one."""

    def of(finite_length: bool) -> jax.Array:
        loss, slope = jax.value_and_grad(total)(state, task, finite_length=finite_length)
        v, by = jax.tree.leaves(state), jax.tree.leaves(slope)
        along = [2 * x * g for x, g in zip(v[2:], by[2:], strict=True)]
        auc = auc_Q(state, task, finite_length=finite_length)
        return jnp.stack([loss, *by[:2], *along, auc])

    return of(True), of(False)


@pytest.mark.parametrize(
    ("coupling", "state"),
    [
        pytest.param(
            0.0, ReducedState(1.0, 0.5, 0.06, 0.06, 0.06, 0.06, 0.06), marks=pytest.mark.full
        ),
        (1.0, ReducedState(0.9, 1.2, 0.01, 0.02, 0.01, 0.01, 0.01)),
    ],
    ids=["noisy-c=0", "learned-c=1"],
)
@pytest.mark.more
def test_loss_and_gradient_are_those_of_sampled_prompts(
    coupling: float, state: ReducedState, sample: Callable[..., jax.Array]
) -> None:
    task = problem_in(Prompts(24, 65, r=1.8, coupling=coupling), "float64")
    state = narrowed(state, "float64")
    found = np.asarray(sample(task, state))
    assert np.abs(found[:, -1]).max() < 1e-12
    mean = found.mean(axis=0)[:-1]
    error = found.std(axis=0)[:-1] / math.sqrt(len(found) - 1)
    finite, infinite = map(np.asarray, predicted(task, state))

    def excess(want: np.ndarray) -> np.ndarray:
        # The theory itself is off by 1/d and 1/L: 0.5 % of loss and AUC, 4 % of a derivative.
        allowed = 3.5 * error + np.r_[0.005, 7 * [0.04], 0.005] * np.abs(want) + 2e-4
        return np.abs(mean - want) / allowed

    assert (excess(finite) < 1).all()
    assert excess(infinite).max() > 2


def test_outputs_are_those_of_their_tokens() -> None:
    """Mean and variance over contexts at each node, and those of the score of one token: of P, a
    margin of mean pbar and variance s1^2 (1 - 2/pi) times w, and what is across; of Q, +-zeta at
    half of the tokens."""
    task, rule = Prompts(8, 33, r=1.8, gamma0=0.7, s1=1.2, s2=0.9), Rule(3, 2, 3, 2)
    found = jax.jit(lambda state, length: loss.outputs(state, task, length, rule), static_argnums=1)
    P, (pos, neg) = found(STATE, True)
    g, h, e = loss.half_normal_nodes(3)[0][:, None], *(loss.normal_nodes(n)[0] for n in (2, 3))
    kappa, half = 32 / 33, 2 / math.pi
    pbar, p2 = 0.7 + 1.2 * half**0.5, 0.7**2 + 2 * 0.7 * 1.2 * half**0.5 + 1.2**2
    p = 0.7 + 1.2 * g
    w = 1.3 * p + 1.2 * np.sqrt(7 * 0.02) * h
    across = 1.2**2 * 7 * 0.011 * (p**2 + 1.2**2 * 7)
    # The ReLU passes one of x and -x, with the same product of label and score.
    square, mean = (p2 * w**2 + across) / 2, pbar * w / 2
    want = kappa * mean, kappa / 33 * (square - mean**2), pbar * w
    for got, value in zip(P[:3], want, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-9)
    np.testing.assert_allclose(P.s, np.sqrt(across + 1.2**2 * (1 - half) * w**2), rtol=1e-9)
    for y, q, b, u in ((1, pos, 0.0, 0.0), (-1, neg, 0.9, 0.05)):
        m = 1.8 * (b * 1.8 + 0.9 * np.sqrt(7 * 0.03) * e)
        s = math.sqrt(0.9**4 * 49 * 0.004 + 0.9**2 * 7 * 1.8**2 * u)
        ratio = m / s / math.sqrt(2)
        raised = s * half**0.5 * np.expm1(-(ratio**2)) + m * scipy.special.erf(ratio)
        # ReLUs of N(m, s^2), N(-m, s^2) and twice N(0, s^2), the latter at positive tokens.
        variance = (s**2 + m**2 / 2) / 2 - (raised / 4) ** 2
        want = -y * kappa * raised / 4, kappa / 33 * variance, m, s
        for got, value in zip(q, want, strict=True):
            # What is added under roots, 1e-12.
            np.testing.assert_allclose(got, value, rtol=1e-9)
    P, Q = found(STATE, False)
    for each in (P, *Q):
        np.testing.assert_array_equal(each.variance, 0)


@pytest.mark.parametrize("y", [1, -1])
def test_outputs_covary_as_the_tokens_that_they_share(y: int) -> None:
    """A token adds its label times its ReLU to both outputs: its moments by enumeration of what it
    can be, for each query. Tokens of class y have the score of P, others its opposite; only the
    negative ones have one of Q, of either sign."""
    task, rule = Prompts(8, 33), Rule(2, 2, 2, 2)
    P, Q = jax.jit(lambda state: loss.outputs(state, task, True, rule))(STATE)
    q = Q[0] if y == 1 else Q[1]
    x = np.linspace(-9, 9, 20001)
    density = scipy.stats.norm.pdf(x) * (x[1] - x[0])
    relu = lambda m, s: density @ np.maximum(m + s * x, 0)
    got = np.asarray(jax.jit(loss._covariance)(P, q, task))
    P, q = jax.tree.map(np.asarray, (P, q))
    for g, h, e in np.ndindex(*got.shape):
        both, of_P, of_Q = [], [], []
        for same in (1, -1):
            for zeta in (1, -1):
                by_P = relu(same * P.m[g, h], P.s[g, h])
                by_Q = relu(zeta * q.m[e] * (same * y == -1), float(q.s))
                both.append(by_P * by_Q)
                of_P.append(same * by_P)
                of_Q.append(same * by_Q)
        want = (np.mean(both) - np.mean(of_P) * np.mean(of_Q)) * task.kappa / task.length
        # The grid's error at the kink of the ReLU.
        assert got[g, h, e] == pytest.approx(want, rel=1e-5)


def test_sign_of_b_does_not_matter() -> None:
    task = Prompts(coupling=0.4)
    compiled = jax.jit(losses)
    there, back = (
        compiled(STATE, task),
        compiled(ReducedState(1.3, -0.9, *list(vars(STATE).values())[2:]), task),
    )
    np.testing.assert_allclose(there, back, rtol=1e-13)


def test_doubling_the_nodes_changes_nothing_visible() -> None:
    task = Prompts(coupling=0.4)
    coarse = jax.jit(losses)(STATE, task)
    fine = jax.jit(functools.partial(losses, rule=Rule(24, 12, 16, 12)))(STATE, task)
    np.testing.assert_allclose(coarse, fine, rtol=2e-4)
    assert np.abs(np.subtract(coarse, fine)).max() > 0


def test_total_weighs_the_losses() -> None:
    apart, joint, half = (Prompts(coupling=c) for c in (0.0, 1.0, 0.5))
    compiled = jax.jit(total, static_argnames="coupled")
    found = jax.jit(losses)(STATE, apart)
    alone = float(found.K1 + found.K2)
    np.testing.assert_allclose(compiled(STATE, apart, coupled=False), alone, rtol=1e-14)
    np.testing.assert_allclose(compiled(STATE, apart), alone, rtol=1e-14)
    np.testing.assert_allclose(compiled(STATE, joint), found.J, rtol=1e-14)
    np.testing.assert_allclose(compiled(STATE, half), (alone + found.J) / 2, rtol=1e-14)
    np.testing.assert_allclose(found.K2, (found.K2_pos + found.K2_neg) / 2, rtol=1e-15)


@pytest.mark.more
def test_blocks_cover_the_weights() -> None:
    assert sum(jax.tree.leaves(block_sizes(5))) == 2 * 25
