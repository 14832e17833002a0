"""Errors at finite length, and gradients of single prompts: against drawn tokens, one by one."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import expit

from dynsim import Prompts
from dynsim.precision import precision
from dynsim.two_stage.model import PQ, data_loss
from dynsim.two_stage.task import sample_prompts
from odes.two_stage import finite_length
from odes.two_stage.loss import ReducedState, losses

LENGTHS = (9, 33)
TASK = Prompts(4, 7, gamma0=0.8, s1=0.6, r=1.4)


@pytest.mark.parametrize("loss", ["K1", "K2"])
@pytest.mark.more
def test_errors_are_those_of_mean_losses_of_drawn_contexts(
    loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without terms of mean zero, up to the sampling error of these; and with them, of the contexts
    that were drawn, to rounding."""
    samples, d, drawn, sample = 4_000, 5, [], finite_length.sample_outputs
    noted = lambda *given: drawn.append(sample(*given)) or drawn[-1]
    monkeypatch.setattr(finite_length, "sample_outputs", noted)
    task = Prompts(d, 7, gamma0=0.8, s1=0.6, r=1.4, s2=0.7)
    U = ReducedState(2.0, 1.5, *np.full(5, 0.3)).sample(d, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    found = finite_length.loss_errors(task, U, loss, LENGTHS, samples, rng)
    contexts = np.concatenate(drawn).reshape(len(LENGTHS), samples)
    query = sample_prompts(dataclasses.replace(task, length=2), jax.random.key(0), samples)
    component, x, matrix = ("P", query.P, U.W) if loss == "K1" else ("Q", query.Q, U.V)
    y = np.asarray(query.labels[:, -1], float)
    score = np.asarray(x[:, -1], float) @ np.asarray(matrix).T
    across = (0.6 if loss == "K1" else 0.7) * np.linalg.norm(score[:, 1:], axis=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    W, V = (np.asarray(each, float) for each in (U.W, U.V))
    blocks = W[0, 1:], W[1:], V[0, 1:], V[1:, 0], V[1:, 1:]
    state = ReducedState(W[0, 0], V[0, 0], *((block**2).mean() for block in blocks))
    for place, length in enumerate(LENGTHS):
        here = dataclasses.replace(task, length=length)
        mean, sd = finite_length.output_moments(here, score[:, 0], across, component)
        shift = contexts[place] - mean
        true, infinite = (np.logaddexp(0, -y * each) for each in (contexts[place], mean))
        each = np.logaddexp(0, -y[:, None] * (mean[:, None] + sd[:, None] * nodes))
        gaussian = each @ weights / weights.sum()
        # The loss to second order in the output, about its mean, less the mean of that.
        slope, curvature = -y * expit(-y * mean), expit(mean) * expit(-mean)
        terms = slope * shift + curvature * (shift**2 - sd**2) / 2
        exact = (true - terms).mean()
        got = np.array([each[place] for each in found])
        # float32 queries.
        want = infinite.mean() / exact - 1, gaussian.mean() / exact - 1
        np.testing.assert_allclose(got[:2], want, rtol=1e-4, atol=1e-7)
        error = (gaussian - true + terms).std() / samples**0.5 / exact
        np.testing.assert_allclose(got[3], error, rtol=1e-4)
        with precision("float64"):
            known = (losses(state, here, finite_length=each) for each in (True, False))
            finite, without = (float(getattr(each, loss)) for each in known)
        np.testing.assert_allclose(got[2], want[0] + (finite - without) / exact, rtol=1e-3)
        # Four standard errors of the terms, whose mean is zero.
        assert abs(terms.mean()) < 4 * terms.std() / samples**0.5
        assert error < 0.3 * true.std() / samples**0.5 / exact


@pytest.mark.parametrize("component", ["P", "Q"])
def test_outputs_have_the_moments_of_their_tokens(component: Any) -> None:
    """Six tokens of seven places, drawn one by one, and drawn contexts."""
    num, score, across, rng = 200_000, np.array([0.7]), np.array([0.5]), np.random.default_rng(0)
    label, side = rng.choice([-1.0, 1.0], size=(2, num))
    margin, noise = rng.normal(size=(2, num))
    signal = label * (0.8 + 0.6 * abs(margin))
    signal = signal if component == "P" else np.where(label > 0, 0, 1.4 * side)
    token = label * np.maximum(signal * score + across * noise, 0)
    mean, deviation = finite_length.output_moments(TASK, score, across, component)
    # Four standard errors of the mean, and of the deviation at a kurtosis of 5.
    np.testing.assert_allclose(mean, 6 / 7 * token.mean(), atol=4 * token.std() / num**0.5)
    np.testing.assert_allclose(deviation, np.sqrt(6 * token.var()) / 7, rtol=0.01)
    many = (np.repeat(each, num) for each in (score, across))
    found = finite_length.sample_outputs(TASK, *many, component, rng)
    np.testing.assert_allclose(found.mean(), mean, atol=4 * found.std() / num**0.5)
    np.testing.assert_allclose(found.std(), deviation, rtol=4 / num**0.5)


def test_sampled_weights_have_the_numbers_of_their_state() -> None:
    d, numbers = 400, np.array([1.3, -0.7, *np.arange(3, 8) / 20])
    U = ReducedState(*numbers).sample(d, np.random.default_rng(0))
    found = jax.tree.leaves(ReducedState.from_weights(U.W, U.V))
    # Four standard errors of a mean of d - 1 squares.
    np.testing.assert_allclose(found, numbers, rtol=4 * math.sqrt(2 / (d - 1)))


def test_variances_of_gradients_are_those_of_single_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same prompts, one by one, in chunks of four; of nine prompts those of whole chunks."""
    monkeypatch.setattr(finite_length, "CHUNK", 4)
    task, rng = Prompts(3, 5), np.random.default_rng(0)
    U = PQ(*rng.normal(size=(2, 3, 3)).astype(np.float32))
    gradient = jax.jit(jax.grad(lambda U, one: data_loss(U, task.coupling, one)))
    each = []
    for key in jax.random.split(jax.random.key(1), 2):
        drawn = sample_prompts(task, key, 4)
        for i in range(4):
            one = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], drawn)
            each.append(np.stack([*map(np.asarray, jax.tree.leaves(gradient(U, one)))]))
    W, V = np.var(each, axis=0)
    want = [W[0, 0], V[0, 0], W[0, 1:].mean(), W[1:].mean()]
    want += [V[0, 1:].mean(), V[1:, 0].mean(), V[1:, 1:].mean()]
    # float32 gradients of one, and many squared.
    found = jax.tree.leaves(finite_length.gradient_variances(task, U, 9))
    np.testing.assert_allclose(found, want, rtol=1e-4)
