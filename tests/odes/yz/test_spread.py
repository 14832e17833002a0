"""The predicted spread over seeds: closed forms, all batches, all sequences, runs; arguments."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import softmax
from scipy.stats import binom

import dynsim
from dynsim.yz import model as yz
from dynsim.yz.finite_length import expand
from odes import symmetric
from odes.yz import gradient_noise, spread
from odes.yz.gradient_noise import variance
from tests.systems import sequences

pytestmark = pytest.mark.usefixtures("x64")

# Two classes of two tokens each, of which they share token 0; the query is token 3.
TASK = dynsim.sequence_classes([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0]], query=[3, 3], prior=[0.4, 0.6])
P, PRIOR = np.asarray(TASK.probs), np.asarray(TASK.prior)
LABELS = np.eye(4)[np.asarray(TASK.next_token)]
ETA_Y, ETA_Z = 1.0, 0.7
RULE, TIMES = dynsim.sgd(ETA_Y, ETA_Z, momentum=0.5), (0, 1, 3)
RECORD = ["z", {"logits": lambda task, snapshot: snapshot.logits.ravel()}]


def drift(**settings):
    """What noise adds to the mean of observables, and the standard error by the draws."""
    run = functools.partial(spread.drift, TASK, RULE, TIMES, record=RECORD, draws=2000)
    found = [run(key=jax.random.key(k), **settings).observables for k in range(16)]
    together = {name: np.stack([each[name] for each in found]) for name in found[0]}
    error = {name: x.std(0, ddof=1) / np.sqrt(len(found)) for name, x in together.items()}
    return {name: x.mean(0) for name, x in together.items()}, error


def limit(first, second, third):
    """Limit of a function of B that is a series in 1/B, from its values at B, 2 B and 4 B."""
    return (first - 6 * second + 8 * third) / 3


def trained(init, shares, rule=RULE, per=0.0):
    """(R, 12) logits of both classes and of attention after descent at T infinite, in NumPy, with
    the shares (S, R, K) that the classes have of each batch; by momentum, or by RMSProp with `per`
    times the variance of the gradient of a sequence in the average of squares."""
    Y, Z, v_y, v_z = init.Y, init.Z, 0, 0

    def forward(Y, Z):
        c = P * np.exp(Z)[..., None, :]
        f = c / np.linalg.norm(c, axis=-1, keepdims=True)
        return f, f @ Y

    for share in shares:
        f, y = forward(Y, np.reshape(Z, (-1, 4)))
        residual = LABELS - softmax(y, axis=-1)
        g = residual @ np.swapaxes(Y, -1, -2)
        # Of both classes (R, 2, ...): the mean over the batch, and half of their difference.
        both_y = f[..., None] * residual[..., None, :]
        both_z = f * (g - f * (f * g).sum(-1, keepdims=True))
        of_y = (share[:, :, None, None] * both_y).sum(1)
        of_z = (share[:, :, None] * both_z).sum(1)
        if rule is RULE:
            v_y, v_z = 0.5 * v_y + of_y, 0.5 * v_z + of_z
            Y, Z = Y + ETA_Y * v_y, Z + ETA_Z * v_z
            continue
        noise, b2 = per * PRIOR.prod(), float(rule.b2)
        v_y = b2 * v_y + (1 - b2) * (of_y**2 + noise * np.diff(both_y, axis=1)[:, 0] ** 2)
        v_z = b2 * v_z + (1 - b2) * (of_z**2 + noise * np.diff(both_z, axis=1)[:, 0] ** 2)
        Y = Y + ETA_Y * of_y / (np.sqrt(v_y) + float(rule.eps))
        Z = Z + ETA_Z * of_z / (np.sqrt(v_z) + float(rule.eps))
    return np.concatenate([forward(Y, Z)[1].reshape(len(Z), -1), Z], axis=1)


@pytest.mark.more
def test_moments_are_those_of_all_batches():
    rng = np.random.default_rng(1)
    init = dynsim.YZ(rng.normal(size=(4, 4)), rng.normal(size=(1, 4)))
    quiet = trained(init, np.broadcast_to(PRIOR, (3, 1, 2)))[0]

    def moments(B):
        """B times what noise adds to the mean, and B times the covariance."""
        drawn = np.stack(np.meshgrid(*3 * [np.arange(B + 1)])).reshape(3, -1)
        weight = binom.pmf(drawn, B, PRIOR[0]).prod(0)
        values = trained(init, np.stack([drawn, B - drawn], axis=2) / B)
        mean = weight @ values
        return B * (mean - quiet), B * (values - mean).T @ (weight[:, None] * (values - mean))

    # The limit of large B, of which sizes up to 32 leave terms of third order.
    moved, noise = (limit(*x) for x in zip(*map(moments, (8, 16, 32)), strict=True))
    given = {"batch": 1, "length": math.inf, "init": init, "record": RECORD}
    found = spread.solve(TASK, RULE, TIMES, **given)
    np.testing.assert_allclose(found["logits"][2], quiet[:8], rtol=1e-13)
    scale = np.sqrt(noise.diagonal())
    # Measured 1.6e-4, where two sizes leave 2e-3. Both classes have one query.
    missed = np.abs(found.covariance[2][:12, :12] - noise) / (np.outer(scale, scale) + 1e-12)
    assert missed.max() < 5e-4
    # At huge T, to share a program with other lengths.
    found, error = drift(batch=1, length=1e12, init=init)
    for name, want in (("logits", moved[:8]), ("z", np.tile(moved[8:], (2, 1)))):
        assert (error[name][2] < 0.03 * np.abs(moved).max()).all()
        np.testing.assert_array_less(np.abs(found[name][2] - want), 4.5 * error[name][2] + 1e-9)


@pytest.mark.parametrize("drift_alone", [False, True])
@pytest.mark.more
def test_rmsprop_divides_by_the_noise_of_all_batches_once(drift_alone):
    """In the path or in the drift: B times what both add to the mean, at large B."""
    rng = np.random.default_rng(1)
    init = dynsim.YZ(rng.normal(size=(4, 4)), rng.normal(size=(1, 4)))
    rule = dynsim.rmsprop({"Y": ETA_Y, "Z": ETA_Z}, b2=0.6, eps=1.0)
    path = lambda shares, per=0.0: trained(init, shares, rule, per)
    steady = np.broadcast_to(PRIOR, (2, 1, 2))
    quiet = path(steady)[0]

    def moved(B):
        drawn = np.stack(np.meshgrid(*2 * [np.arange(B + 1)])).reshape(2, -1)
        weight = binom.pmf(drawn, B, PRIOR[0]).prod(0)
        return B * (weight @ path(np.stack([drawn, B - drawn], axis=2) / B) - quiet)

    want = limit(*map(moved, (16, 32, 64)))
    B, before = 1e6, quiet
    if drift_alone:
        want, before = want - B * (path(steady, 1 / B)[0] - quiet), 0
    theory = spread.drift if drift_alone else spread.solve
    asked = {"batch": B, "squares": True, "draws": 4000, "init": init, "record": RECORD}
    found = theory(TASK, rule, (2,), key=jax.random.key(0), **asked)
    got = B * (np.concatenate([found["logits"][0], found["z"][0, 0]]) - before)
    # The draws leave 2 % of the drift, sizes up to 64 as much; the path has half of the whole.
    np.testing.assert_allclose(got, want, rtol=0.08, atol=5e-4)


PLACES = [sequences.weights(seed) for seed in (0, 1, 2)]
"""Weights, and two directions of them."""


def over_all_sequences(total):
    """(2,) mean and (2, 2) covariance of the slopes along both directions, over all sequences of a
    length, of classes of unequal prior with supports of different sizes."""
    params, *directions = PLACES
    mean, square = np.zeros(2), np.zeros((2, 2))
    for n, prior in enumerate(np.asarray(sequences.TASK.prior)):
        counts, weight = sequences.enumerated(n, total)
        slopes = np.array([sequences.slopes_of(params, n, counts, to) for to in directions])
        mean = mean + prior * slopes @ weight
        square = square + prior * slopes @ (weight[:, None] * slopes.T)
    return mean, square - np.outer(mean, mean)


@pytest.mark.more
def test_noise_is_that_of_all_sequences():
    task = sequences.TASK.astype("float64")
    params, *directions = PLACES
    exact = lambda total: over_all_sequences(total)[1]

    @jax.jit
    def predicted(total):
        context = jnp.asarray(total, float)
        slopes = lambda along: jax.jvp(lambda q: expand(q, task, context), (params,), (along,))[1]
        along = jax.tree.map(lambda *x: jnp.stack(x), *directions)
        return gradient_noise.covariance(task, context, jax.vmap(slopes)(along))

    # C = a + b/L + c/L^2 + ..., of which theory has a and b.
    start = np.asarray(predicted(math.inf))
    slope = lambda cov: limit(*(total * (cov(total) - start) for total in (64, 128, 256)))
    # Measured: 5e-3 at most, an eighth of what it is at half the lengths.
    np.testing.assert_allclose(slope(predicted), slope(exact), rtol=0, atol=0.01)
    assert np.abs(slope(exact)).min() > 0.3
    # Drawn noise of a batch of 4, to the error of the covariance of Gaussian draws.
    drawn = gradient_noise.draw(task, jnp.asarray(5.0), jnp.asarray(4.0))
    keys = jax.random.split(jax.random.key(0), 20_000)
    found = jax.jit(jax.vmap(lambda key: ravel_pytree(drawn(params, key))[0]))(keys)
    along = np.stack([ravel_pytree(each)[0] for each in directions])
    want = np.asarray(predicted(5.0)) / 4
    error = np.sqrt((np.outer(want.diagonal(), want.diagonal()) + want**2) / len(keys))
    np.testing.assert_array_less(np.abs(np.cov(along @ found.T) - want), 4 * error)
    # Of which finite length makes some.
    assert (np.abs(want - start / 4) > 10 * error).all()


def test_a_sample_has_the_noise_of_all_sequences_and_their_mean_gradient():
    task = sequences.TASK.astype("float64")
    params, *directions = jax.tree.map(jnp.asarray, PLACES)
    law = gradient_noise.sampled_law(task, gradient_noise.evenly_spread(task, 21))
    (mean, want), (gradient, _) = over_all_sequences(20), jax.jit(law.derive)(params)
    got = [float(ravel_pytree(gradient)[0] @ ravel_pytree(along)[0]) for along in directions]
    # 4096 sequences, evenly spread: measured 3e-5 and 4e-4. First order in 1/L is off by 2 %.
    np.testing.assert_allclose(got, mean, rtol=3e-4)
    of_losses = jax.jit(lambda along: jax.jvp(lambda q: law.derive(q)[1], (params,), (along,))[1])
    found = law.covariance(jnp.stack([of_losses(along) for along in directions]))
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-3 * np.abs(want).max())


@pytest.mark.more
def test_with_tails_it_is_that_of_the_symmetric_reduction():
    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], query=[0, 0])
    rule, asked = dynsim.sgd(5.0, 1.0), {"batch": 8, "length": 33, "record": ["loss"]}
    found = spread.solve(task, rule, [30], tails=True, **asked)
    reduced = symmetric.spread(symmetric.symmetric_task(task), rule, [30], tails=True, **asked)
    # Both average over 4096 sequences, in another order of the tokens: measured 5e-5 and 2e-3.
    np.testing.assert_allclose(found["loss"], reduced["loss"], rtol=5e-4)
    np.testing.assert_allclose(found.std["loss"], reduced.std["loss"], rtol=0.02)


@pytest.mark.parametrize("residual", [pytest.param(False, marks=pytest.mark.full), True])
def test_the_variance_of_each_entry_is_that_of_all_sequences(residual):
    params, task = sequences.weights(residual=residual), sequences.TASK
    loss_of = lambda params, n, counts: yz.loss(
        params, task, yz.Examples(jnp.array([n]), counts[None])
    )
    gradient = jax.jit(jax.vmap(jax.grad(loss_of), in_axes=(None, None, 0)), static_argnums=1)
    flat = lambda tree, *shape: np.concatenate(
        [np.reshape(x, (*shape, -1)) for x in jax.tree.leaves(tree)], -1
    )

    def exact(total):
        """Over all sequences with so many contextual tokens."""
        first, second = 0.0, 0.0
        for n, prior in enumerate(np.asarray(task.prior)):
            counts, share = sequences.enumerated(n, total)
            rows = flat(gradient(params, n, jnp.asarray(counts)), len(counts))
            first = first + prior * share @ rows
            second = second + prior * share @ rows**2
        return second - first**2

    found = [flat(jax.jit(variance)(params, task, each)) for each in (None, jnp.array(1e6))]
    # What 1/L multiplies, from three lengths, with an error of third order.
    want = limit(*(L * (exact(L) - found[0]) for L in (60, 120, 240)))
    got = 1e6 * (found[1] - found[0])
    np.testing.assert_allclose(got, want, rtol=0, atol=0.01 * np.abs(want).max())
