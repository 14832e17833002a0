"""The noise of batches on the reduced numbers: that of counts, and gradients of other counts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from odes import symmetric
from odes.symmetric import finite_length, reduction
from odes.symmetric.state import SymmetricTask, zero_state

K, BATCH, LENGTH, FOLLOWED = 6, 40.0, 7.0, 2
# Kinds of one and of two tokens; sums of probabilities over all tokens are 1.
TASK = SymmetricTask(
    *(np.array([0.2, 0.1]), np.array([0.15, 0.3]), K, 9, 3),
    *(np.array([1.0, 2.0]), np.array([2.0, 1.0])),
)


@pytest.mark.usefixtures("x64")
def test_the_noise_is_that_of_counts_in_two_of_six_classes() -> None:
    """B sequences fall into the classes at random, and B / K of L tokens each into the tokens."""
    batches = finite_length.Batches(jax.random.key(3), jnp.asarray(BATCH))

    @jax.jit
    def drawn(steps: jax.Array) -> jax.Array:
        one = lambda k: finite_length.drawn_noise(TASK, batches, jnp.asarray(LENGTH), FOLLOWED, k)
        return jax.vmap(lambda k: jnp.concatenate([jnp.ravel(x) for x in one(k)]))(steps)

    found = np.asarray(drawn(jnp.arange(40_000)))
    want = np.zeros((10, 10))
    want[:2, :2] = K * np.eye(2) / BATCH - 1 / BATCH
    tokens = BATCH * LENGTH / K * np.array([0.2, 0.2, 0.3, 0.3])
    want[2:, 2:] = np.diag(np.repeat(1 / tokens, FOLLOWED))
    scale = np.sqrt(np.outer(want.diagonal(), want.diagonal()))
    # Five standard errors, which are those of a variance where two numbers are the same one.
    allowed = 5 * np.sqrt((scale**2 + want**2) / len(found))
    assert (np.abs(np.cov(found.T) - want) < allowed).all()
    # Steps are independent.
    assert (np.abs(found[1:].T @ found[:-1]) < 5 * scale * np.sqrt(len(found))).all()
    still = finite_length.drawn_noise(TASK, batches, None, FOLLOWED, jnp.int32(0))
    assert not np.any(still.distinct)
    assert not np.any(still.common)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("length", [LENGTH, None])
@pytest.mark.more
def test_a_batch_gives_the_gradient_of_its_counts(length: float | None) -> None:
    """Of classes in states of their own, by differences of the probabilities of their tokens."""
    rng, h = np.random.default_rng(0), 1e-6
    task = symmetric.SymmetricTask(TASK.p, TASK.rho, K, 9, 3)
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

        def of_counts(
            s: float, state: object = state, counts: finite_length.Draw = counts
        ) -> np.ndarray:
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
