"""Spread over seeds and noise of minibatches: closed forms, and prompts one by one in NumPy."""

import dataclasses

import jax
import numpy as np
import pytest

from dynsim.two_stage.noisy_sgd import noisy_sgd
from dynsim.two_stage.task import prompts
from odes.two_stage.loss import Rule
from odes.two_stage.minibatch import gradient_variance
from odes.two_stage.spread import solve_seed
from odes.two_stage.state import ReducedState, block_sizes

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.full  # derivatives of long programs
def test_spread_where_the_loss_is_a_weight_decay() -> None:
    """Without P, for hardly any zeta and small outputs the loss is log 2 + Var/8 of N_V, the same
    pull c = s2^4 kappa / 8L on every entry: of v_M, of the signal of an entry and of the mean of
    squared losses there are closed forms at rest, and W is noise alone."""
    d, decay, num_test = 6, 0.4, 50
    task = prompts(d, 5, gamma0=0.0, s1=0.0, s2=3.0, r=1e-6)
    optimizer = noisy_sgd(0.05, 0.05, decay, tau=1e-3)
    optimizer = dataclasses.replace(optimizer, span_1=0.5, span_2=10.0)
    end = [0, 210.0]
    run = lambda key: solve_seed(
        task,
        optimizer,
        end,
        key,
        num_test=num_test,
        rule=Rule(1, 1, 4, 4),
        num_steps=200,
        record=("K2", "V_trace", "W_trace", "W_norm", "state"),
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), 800))
    assert found.ok.all()
    state = np.asarray(found["state"])
    sizes = np.array(jax.tree.leaves(block_sizes(d)))
    c = 3.0**4 * task.kappa / (8 * 5)
    noise = 0.05 * optimizer.noise**2
    # A block is a chi squared of its size at the start and at rest; a and b are single weights.
    v, v_free = noise / (2 * (c + decay)), noise / (2 * decay)
    few = 4 * (2 / 800) ** 0.5 + 0.05
    np.testing.assert_allclose(state[:, 0, 2:].mean(0), optimizer.init**2, rtol=0.05)
    spread = state[:, 0, 2:].var(0) / optimizer.init**4
    np.testing.assert_allclose(spread, 2 / sizes[2:], rtol=3 * few)
    for place, rest in ((3, v_free), (6, v)):
        np.testing.assert_allclose(state[:, 1, place].mean(), rest, rtol=few)
        # Euler's steps see c as larger.
        np.testing.assert_allclose(state[:, 1, place].var(), 2 * rest**2 / sizes[place], rtol=0.3)
    # The signal of the noise: x = -c v / (c + 2 lambda), s = -c x / lambda.
    square = c**2 * v / ((c + 2 * decay) * decay)
    np.testing.assert_allclose(found["V_trace"][:, 1].var(), (d - 1) * square, rtol=2 * few)
    assert np.abs(found["W_trace"]).max() < 1e-4
    # l has the variance of the output over 4, which is 4 (K2 - log 2) + O(output^4).
    var = task.kappa / task.length * 3.0**4 * (d - 1) ** 2 * v / 2
    np.testing.assert_allclose(found["K2"][:, 1].var(), var / 4 / num_test, rtol=2 * few)


def test_variance_of_the_gradient_against_tokens_one_by_one() -> None:
    """Queries of the reduction, and each token of their contexts by its score."""
    task = prompts(32, 129)
    a, b, v = 0.7, 0.9, 0.015
    d, r, L = 32, task.r, task.length
    rng = np.random.default_rng(3)
    gradients = []
    for _ in range(40):
        shape = (1000, L - 1)
        g, h, e = rng.normal(size=(3, 1000, 1))
        labels, sides = rng.choice([-1.0, 1.0], size=(2, *shape))
        p, p_i = 1 + np.abs(g), 1 + np.abs(rng.normal(size=shape))
        w = a * p + np.sqrt((d - 1) * v) * h
        across = np.sqrt((d - 1) * v * (p**2 + d - 1)) * rng.normal(size=shape)
        on_P = labels * p_i, w, across, p
        v_0 = b * r + np.sqrt((d - 1) * v) * e
        across = np.sqrt((d - 1) * v * (r**2 + d - 1)) * rng.normal(size=shape)
        on_Q = np.where(labels > 0, 0, r * sides), v_0, across, r
        row = []
        # Of queries with y = 1 in P, and y = -1 in Q, of which nothing else has any gradient.
        for y, (along, score, rest, of_query) in ((1, on_P), (-1, on_Q)):
            scores = along * score + rest
            margin = y * (labels * np.maximum(scores, 0)).sum(1) / L
            slope = y * (labels * (scores > 0) * along * of_query).sum(1) / L
            row.append(-slope / (1 + np.exp(margin)))
        gradients.append(row)
    of_P, of_Q = np.concatenate(gradients, axis=1)
    found = gradient_variance(ReducedState(a, b, *(5 * (v,))), task)
    # 1 % of sampling, and O(1/L).
    np.testing.assert_allclose(found.a, of_P.var(), rtol=0.05)
    np.testing.assert_allclose(found.b, np.r_[of_Q, 0 * of_Q].var(), rtol=0.05)
    # What a batch of 128 adds to the noise of the default preset at the start.
    rule = noisy_sgd()
    start = gradient_variance(ReducedState.nominal(rule), task)
    np.testing.assert_allclose(start.a / (128 * rule.noise**2), 0.134, atol=0.002)
    assert start.b < 0.01 * start.a
