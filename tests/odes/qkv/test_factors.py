"""The flow of the factors: against descent on them, its invariants, its limits."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import QKV
from dynsim.qkv import model as embedded
from dynsim.qkv.model import Embedded
from dynsim.yz import finite_length
from dynsim.yz import model as yz
from odes import qkv as factors
from odes.yz import population

TASK = dynsim.SynSmall().build()


def on_task(width, **settings):
    return QKV(TASK, math.inf, width=width, **settings)


# Embeddings that overlap, as U U^T = I hides most of what stands in the equations.
TIED = on_task(20, head_width=5, scale=1.5, embedding="gaussian")
UNTIED = on_task(
    20, heads=2, head_width=5, scale=1.5, embedding="gaussian", tied=False, residual=True
)
solve = factors.FACTORS.solve
# One record and two times in most tests, which then share compiled programs.
RECORD = ("loss", "speed", "z_top_distinct")
CASES = {"tied": TIED, "untied-2-heads-residual": UNTIED}


def start(problem):
    with jax.enable_x64(True):
        return eqx.filter_jit(problem.init)(jax.random.key(0))


def distance(got, want):
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in ((got.Y, want.Y), (got.Z, want.Z))]
    return np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if "residual" in c else [pytest.mark.full]) for c in CASES]
)
@pytest.mark.more
def test_the_factors_move_as_the_weights_do_and_y_and_z_as_derived(case):
    init = start(CASES[case])
    examples, d = yz.population(TASK), init.width
    of_weights = jax.jit(jax.grad(embedded.loss))(init, TASK, examples)
    U, U_q = init.U, init.U[TASK.queries]
    C, C_qq = U @ U.T, U_q @ U_q.T
    transpose = lambda x: jnp.swapaxes(x, 1, 2)
    A, Q, K = U @ transpose(init.W_V), U_q @ init.W_Q, U @ init.W_K
    problem = factors.Problem(TASK, C, C_qq, jnp.asarray(d**-0.5), None)
    tied = init.D is None
    state = factors.Factors((A @ U.T,) if tied else (A, init.D), (Q, K))
    got = jax.jit(lambda s: factors.gradient(problem, s, residual=init.residual))(state)
    dA = U @ transpose(of_weights.W_V)
    decoder = (dA @ U.T,) if tied else (dA, of_weights.D)
    want = factors.Factors(decoder, (U_q @ of_weights.W_Q, U @ of_weights.W_K))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13)

    def by_layer(layer):
        logits = sum(
            yz.forward(yz.YZ(layer.Y[h], layer.Z[h], init.residual), TASK, examples)
            for h in range(init.heads)
        )
        return jnp.mean(yz.cross_entropy(logits, TASK.next_token)[0])

    G = jax.jit(jax.grad(by_layer))(embedded.heads(init, TASK))
    dZ = (got.Z[0] @ transpose(K) + Q @ transpose(got.Z[1])) / np.sqrt(d)
    printed = (C_qq @ G.Z @ K @ transpose(K) + Q @ transpose(Q) @ G.Z @ C) / d
    np.testing.assert_allclose(dZ, printed, rtol=1e-9, atol=1e-14)
    if tied:
        dY, printed = got.Y[0], C @ G.Y @ C
    else:
        D, total = init.D, jnp.sum(transpose(A) @ G.Y, axis=0)
        dY, printed = got.Y[0] @ D.T + A @ got.Y[1].T, C @ G.Y @ D @ D.T + A @ total
    np.testing.assert_allclose(dY, printed, rtol=1e-9, atol=1e-14)


@pytest.mark.full("test_the_factors_move_as_the_weights_do_and_y_and_z_as_derived")
@pytest.mark.usefixtures("x64")
def test_at_finite_length_the_factors_follow_the_expansion():
    """With U = I and a tied decoder Y' is G_Y, which `expand` has written out and not by
    differentiation; Q' and K' follow by the chain rule."""
    init, context = start(on_task(TASK.M, scale=1.5, embedding="identity")), jnp.asarray(20.0)
    heads, scale = embedded.heads(init, TASK), jnp.asarray(TASK.M**-0.5)
    state = factors.Factors((heads.Y,), (init.W_Q[:, TASK.queries], init.W_K))
    problem = factors.Problem(TASK, jnp.eye(TASK.M), jnp.eye(TASK.num_queries), scale, context)
    got = jax.jit(lambda state: factors.gradient(problem, state))(state)
    layer = yz.YZ(heads.Y[0], heads.Z[0])
    G = jax.jit(lambda layer: finite_length.expand(layer, TASK, context).gradient)(layer)
    Q, K = (x[0] for x in state.Z)
    for a, b in ((got.Y[0], G.Y), (got.Z[0], scale * G.Z @ K), (got.Z[1], scale * G.Z.T @ Q)):
        np.testing.assert_allclose(a[0], b, rtol=1e-9, atol=1e-13)


def layered(k):
    """Q = 0, K K^T = k^2 I, a tied decoder and random Y; and the Y/Z layer that it is."""
    rng, M = np.random.default_rng(1), TASK.M
    U, R = (np.linalg.qr(rng.normal(size=(M, M)))[0] for _ in range(2))
    Y = rng.uniform(-1, 1, (M, M)) / np.sqrt(M)
    W_V = (U.T @ Y.T @ U)[None]
    start = Embedded(U, np.zeros((1, M, M)), k * R[None], W_V)
    return start, yz.YZ(Y, np.zeros((TASK.num_queries, M)))


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize(
    "rule",
    [dynsim.sgd, pytest.param(functools.partial(dynsim.sgd, momentum=0.9), marks=pytest.mark.full)],
)
def test_with_keys_frozen_at_identity_it_is_the_plain_flow(rule):
    init, layer = layered(np.sqrt(TASK.M))
    times = np.array([0.0, 40.0])
    eta = (0.5, 0.5) if rule is dynsim.sgd else (0.05, 0.05)
    want = population.solve(TASK, rule(*eta), times, init=layer, record=RECORD)
    held = on_task(TASK.M, frozen=("W_K",))
    got = solve(held, rule(*eta), times, init=init, record=RECORD)
    assert (distance(jax.tree.map(lambda x: x[0], got.params), want.params) < 1e-6).all()
    for name, values in want.observables.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-7, err_msg=name)
    if rule is dynsim.sgd:
        # With the keys trained as well it is another flow.
        free = solve(on_task(TASK.M), rule(*eta), times, init=init, record=RECORD)
        assert distance(jax.tree.map(lambda x: x[0], free.params), want.params)[1] > 1e-3


@pytest.mark.usefixtures("quick_theory")
def test_large_keys_bring_the_plain_flow_back_at_fourth_order():
    errors = []
    for k in (8.0, 16.0):
        init, layer = layered(k)
        times = np.array([0.0, 40.0])
        want = population.solve(TASK, dynsim.sgd(0.5, 0.5), times, init=layer, record=RECORD)
        optimizer = dynsim.sgd(0.5, 0.5 * TASK.M / k**2)
        got = solve(on_task(TASK.M), optimizer, times, init=init, record=RECORD)
        errors.append(distance(jax.tree.map(lambda x: x[0], got.params), want.params)[1])
    np.testing.assert_allclose(np.log2(np.array(errors)[:-1] / np.array(errors)[1:]), 4, atol=0.3)
