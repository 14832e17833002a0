"""The reduction at finite length and batch: against all count vectors, enumerated, the full layer,
and the law of counts."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multinomial

import dynsim
from dynsim.yz import finite_length as full
from odes import spread, symmetric
from odes.symmetric import finite_length, reduction
from odes.symmetric.state import Attention, Decoder, State, SymmetricTask, zero_state

LENGTH = 41
TASK = symmetric.symmetric_profiles([0.3, 0.2], [0.5], K=3, M=5)


def late():
    """Late in training each class is right by logits of about six: the loss is 0.01, of which T
    infinite has 0.7."""
    own, other, rest = jnp.array([[4.5, 3.8], [-1.5, -1.1], [-0.8, -0.8]])
    return State(
        Decoder(own, other, rest, jnp.array([0.4]), jnp.array([-0.5])),
        Attention(jnp.array([0.4, 0.2]), jnp.array([-0.4])),
    )


def every_sequence(L=LENGTH - 1):
    """All counts of the three tokens of a class, and their probabilities."""
    counts = np.array([(i, j, L - i - j) for i, j in itertools.product(range(L + 1), repeat=2)])
    counts = counts[counts[:, 2] >= 0]
    return counts, multinomial.pmf(counts, L, [0.3, 0.2, 0.5])


def losses(state, counts):
    """Loss of each sequence of class 0, from all five outputs, in NumPy."""
    w = counts * np.exp([*state.Z.distinct, *state.Z.common])
    f = w / np.linalg.norm(w, axis=1, keepdims=True)
    Y = np.zeros((3, 5))
    Y[:2] = np.stack([state.Y.own, *2 * [state.Y.other], *2 * [state.Y.rest]], axis=1)
    Y[2] = [*3 * [state.Y.common_next[0]], *2 * [state.Y.common_rest[0]]]
    y = f @ Y
    return np.log(np.sum(np.exp(y), axis=1)) - y[:, 0]


@pytest.mark.usefixtures("x64")
def test_the_loss_is_that_of_all_sequences_where_the_first_order_fails():
    laws = finite_length.FIRST_ORDER, finite_length.TAILS
    found = jax.jit(lambda L: jnp.stack([law.loss(TASK, late(), L) for law in laws]))
    errors = []
    for L in (LENGTH - 1, 160, 320):
        counts, weight = every_sequence(L)
        errors.append(np.asarray(found(float(L))) / (weight @ losses(late(), counts)) - 1)
    # Measured 7 % without the tilt, 0.6 % with it.
    assert abs(errors[0][0]) > 0.05
    assert abs(errors[0][1]) < 0.015
    # Both are of second order in 1/L; the next order changes it by 0.04.
    np.testing.assert_allclose(np.log2(errors[1] / errors[2]), 2, atol=0.06)


@pytest.mark.usefixtures("x64")
def test_the_covariance_is_that_of_all_sequences():
    counts, weight = every_sequence()
    state, step, rng = late(), 1e-5, np.random.default_rng(0)
    sample = finite_length.sequences(TASK, LENGTH)
    along, slopes = [], []
    moved = jax.jit(
        lambda to: jax.jvp(lambda s: finite_length.losses(TASK, s, sample), (state,), (to,))
    )
    for _ in range(3):
        to = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), state)
        along.append(moved(to)[1])
        ends = [jax.tree.map(lambda x, d, e=e: x + e * d, state, to) for e in (step, -step)]
        slopes.append((losses(ends[0], counts) - losses(ends[1], counts)) / (2 * step))
    centred = np.array(slopes) - (np.array(slopes) @ weight)[:, None]
    want = centred @ (weight[:, None] * centred.T)
    # 4096 sequences, evenly spread, miss 3 % of the variance of this loss, which is in its tail.
    scale = np.sqrt(np.outer(want.diagonal(), want.diagonal()))
    np.testing.assert_allclose(
        finite_length.covariance(jnp.stack(along)) / scale, want / scale, atol=0.06
    )


CONTEXT = 40.0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("task", "merged"),
    # The last has no other classes, and one other output.
    [
        (dynsim.SynMedium(2).build(), False),
        (dynsim.SynMedium(2).build(), True),
        pytest.param(
            dynsim.sequence_classes([[0.4, 0.6]], [0], [1]), False, marks=pytest.mark.full
        ),
    ],
)
def test_loss_and_gradient_are_those_of_the_full_layer(task, merged):
    placed = symmetric.with_full_task(task, merged=merged).astype("float64")
    rng = np.random.default_rng(0)
    size = {True: placed.reduced.p.size, False: placed.reduced.rho.size}
    draw = lambda of_p: jnp.asarray(rng.normal(size=size[of_p]))
    decoder = Decoder(draw(True), draw(True), draw(True), draw(False), draw(False))
    state = State(decoder, Attention(draw(True), draw(False)))
    context = jnp.asarray(CONTEXT)
    weights = jax.jit(lambda state: placed.weights(state))
    want = jax.jit(full.expand)(weights(state), placed.full, context)
    loss = jnp.sum(placed.full.prior * want.losses)
    reduced = jax.jit(lambda *now: (finite_length.loss(*now), finite_length.gradient(*now)))(
        placed.reduced, state, context
    )
    np.testing.assert_allclose(reduced[0], loss, rtol=1e-12)
    got = weights(reduced[1])
    np.testing.assert_allclose(got.Y, want.gradient.Y, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(got.Z, want.gradient.Z, rtol=1e-9, atol=1e-15)


def test_a_run_diverges_above_ten_times_the_loss_of_guessing():
    """Which is 16.1. Decay beyond its edge turns all weights round in each step, and doubles
    them: the loss is 12 after two steps, and 42 after four."""
    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 0])
    rule, reduced = dynsim.sgd(16.0, 0.1, decay=0.15625), symmetric.symmetric_task(task)
    for solve, of in ((symmetric.spread, reduced), (spread.solve, task)):
        found = solve(of, rule, [0, 2, 4], batch=4, length=9, record=["loss"])
        assert 11 < found["loss"][1] < 10 * math.log(5) < found["loss"][2]
        assert (found.status, found.first_bad_step) == (dynsim.Status.DIVERGED, 4)
    found = symmetric.descend(reduced, rule, steps=2, times=[2], record=["loss"])
    assert 11 < found["loss"][0] < 10 * math.log(5)
    assert found.status == dynsim.Status.OK


@pytest.mark.parametrize("kind", ["momentum", pytest.param("adam", marks=pytest.mark.full)])
@pytest.mark.more
def test_spread_is_that_of_the_full_layer(kind):
    own, common = [0.15, 0.15, 0.2], [0.25, 0.25, 0]
    task = dynsim.sequence_classes([own + 3 * [0] + common, 3 * [0] + own + common], [8, 8])
    rule = dynsim.sgd(0.5, 0.7, momentum=0.8) if kind == "momentum" else dynsim.adam(0.02, 0.03)
    # As short as sequences may be, where L and T differ most.
    settings = {"batch": 16, "length": 6, "record": ["loss", "entropy"]}
    want = spread.solve(task, rule, [0, 4, 12], **settings)
    reduced = symmetric.merged(symmetric.symmetric_task(task))
    np.testing.assert_array_equal(np.r_[reduced.p_copies, reduced.rho_copies], [2, 1, 2])
    got = symmetric.spread(reduced, rule, [0, 4, 12], **settings)
    # Far above the rounding that is allowed below.
    assert (want.std["entropy"][1:] > 1e-4).all()
    for name in settings["record"]:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-10)
    np.testing.assert_allclose(got.covariance, want.covariance, rtol=1e-8, atol=1e-20)


K, BATCH, TOKENS, FOLLOWED = 6, 40.0, 7.0, 2
# Kinds of one and of two tokens; sums of probabilities over all tokens are 1.
KINDS = SymmetricTask(
    *(np.array([0.2, 0.1]), np.array([0.15, 0.3]), K, 9, 3),
    *(np.array([1.0, 2.0]), np.array([2.0, 1.0])),
)


@pytest.mark.usefixtures("x64")
def test_the_noise_is_that_of_counts_in_two_of_six_classes():
    """B sequences fall into the classes at random, and B / K of L tokens each into the tokens."""
    batches = finite_length.Batches(jax.random.key(3), jnp.asarray(BATCH))

    @jax.jit
    def drawn(steps):
        one = lambda k: finite_length.draw_noise(KINDS, batches, jnp.asarray(TOKENS), FOLLOWED, k)
        return jax.vmap(lambda k: jnp.concatenate([jnp.ravel(x) for x in one(k)]))(steps)

    found = np.asarray(drawn(jnp.arange(40_000)))
    want = np.zeros((10, 10))
    want[:2, :2] = K * np.eye(2) / BATCH - 1 / BATCH
    tokens = BATCH * TOKENS / K * np.array([0.2, 0.2, 0.3, 0.3])
    want[2:, 2:] = np.diag(np.repeat(1 / tokens, FOLLOWED))
    scale = np.sqrt(np.outer(want.diagonal(), want.diagonal()))
    # Five standard errors, which are those of a variance where two numbers are the same one.
    allowed = 5 * np.sqrt((scale**2 + want**2) / len(found))
    assert (np.abs(np.cov(found.T) - want) < allowed).all()
    # Steps are independent.
    assert (np.abs(found[1:].T @ found[:-1]) < 5 * scale * np.sqrt(len(found))).all()
    still = finite_length.draw_noise(KINDS, batches, None, FOLLOWED, jnp.int32(0))
    assert not np.any(still.distinct)
    assert not np.any(still.common)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("length", [TOKENS, None])
@pytest.mark.more
def test_a_batch_gives_the_gradient_of_its_counts(length):
    """Of classes in states of their own, by differences of the probabilities of their tokens."""
    rng, h = np.random.default_rng(0), 1e-6
    task = symmetric.SymmetricTask(KINDS.p, KINDS.rho, K, 9, 3)
    shapes = jax.tree.map(lambda x: (*x.shape, FOLLOWED), zero_state(task, "float64"))
    states = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape)),
        shapes,
        is_leaf=lambda x: type(x) is tuple,
    )
    context = None if length is None else jnp.asarray(length)
    given = finite_length.Draw(*(jnp.asarray(rng.normal(size=s)) for s in ((2,), (2, 2), (2, 2))))
    with jax.numpy_rank_promotion("allow"):
        loss, found = jax.jit(finite_length.noisy_loss_and_gradient)(
            task.astype("float64"), states, context, given
        )
    unmoved = jax.jit(lambda state: finite_length.gradient(task, state, context))
    losses = []
    for n in range(FOLLOWED):
        state, own, counts = jax.tree.map(lambda x, n=n: x[..., n], (states, found, given))

        def of_counts(s, state=state, counts=counts):
            p, rho = task.p * (1 + s * counts.distinct), task.rho * (1 + s * counts.common)
            other = dataclasses.replace(task, p=p, rho=rho)
            leaves = jax.tree.leaves(reduction.gradient(other, state))
            return np.concatenate([np.ravel(x) for x in leaves])

        leaves = jax.tree.leaves(unmoved(state))
        want = np.concatenate([np.ravel(x) for x in leaves])
        if length is not None:
            want = want + (of_counts(h) - of_counts(-h)) / (2 * h)
        losses.append(finite_length.loss(task, state, context))
        got = np.concatenate([np.ravel(x) for x in jax.tree.leaves(own)])
        # Rounding of 1e-16 over 1e-6.
        np.testing.assert_allclose(got, (1 + counts.count) * want, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-12)
