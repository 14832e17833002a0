"""The loss of finite T: against its definition, against enumeration, and where it is refused."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import finite_length, sampling
from dynsim.yz import model as yz

# Queries of two classes and of one, unequal priors, supports of different sizes, unused tokens.
TASK = dynsim.sequence_classes(
    np.pad([[0.5, 0.3, 0.2, 0, 0], [0.2, 0, 0, 0.8, 0], [0.3, 0, 0.25, 0, 0.45]], ((0, 0), (0, 3))),
    query=[0, 0, 1],
    prior=[0.5, 0.3, 0.2],
)


def weights(residual: bool = False) -> yz.YZ:
    rng = np.random.default_rng(0)
    return yz.YZ(rng.normal(size=(8, 8)), rng.normal(size=(2, 8)), residual)


def losses_of(params: yz.YZ, n: int, counts: np.ndarray) -> np.ndarray:
    """Loss of class n for each row of counts, in NumPy as the paper writes the model."""
    w = counts * np.exp(params.Z[int(TASK.query_index[n])])
    f = w / np.linalg.norm(w, axis=1, keepdims=True)
    logits = f @ params.Y
    return np.log(np.exp(logits).sum(1)) - logits[:, int(TASK.next_token[n])]


def enumerated(n: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    """All count vectors of class n with their multinomial probabilities."""
    p = np.asarray(TASK.probs)[n]
    tokens = np.flatnonzero(p)
    found = [
        (*first, total - sum(first))
        for first in itertools.product(range(total + 1), repeat=tokens.size - 1)
        if sum(first) <= total
    ]
    counts = np.zeros((len(found), TASK.M))
    counts[:, tokens] = found
    log = np.array([math.lgamma(total + 1) - sum(math.lgamma(x + 1) for x in row) for row in found])
    return counts, np.exp(log + counts[:, tokens] @ np.log(p[tokens]))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("residual", "most_rows"),
    [
        pytest.param(False, 4, marks=pytest.mark.full),
        (False, 0),
        pytest.param(True, 4, marks=pytest.mark.full),
    ],
)
def test_losses_gradient_and_slope_are_those_of_the_full_hessian(
    residual: bool, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows of Y gathered for each class, all of them for all, and by differentiation. The task has
    # tokens that no class holds, so that it is worth while to gather.
    monkeypatch.setattr(finite_length, "MOST_ROWS", most_rows)
    task, context = TASK.astype("float64"), jnp.asarray(7.0)
    params = jax.tree.map(jnp.asarray, weights(residual))

    def by_definition(params: yz.YZ) -> jax.Array:
        losses = finite_length.by_counts(params, task)
        hessian = jax.hessian(losses)(task.probs)
        own = hessian[jnp.arange(3), jnp.arange(3), :, jnp.arange(3)]
        p = task.probs
        sigma = jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]
        # Tokens that a class does not have never occur; attention leaves them out.
        return losses(p) + jnp.sum(sigma * own, axis=(1, 2)) / (2 * context)

    def mean(params: yz.YZ) -> tuple[jax.Array, jax.Array]:
        losses = by_definition(params)
        return jnp.sum(task.prior * losses), losses

    got = jax.jit(lambda params: finite_length.expand(params, task, context))(params)
    (_, losses), want = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
    np.testing.assert_allclose(got.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(got.gradient.Y, want.Y, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(got.gradient.Z, want.Z, rtol=1e-10, atol=1e-14)
    # Central differences of the losses, good to the step squared.
    at = jax.jit(finite_length.by_counts(params, task))
    for n, token in ((0, 1), (2, 4)):
        step = np.zeros(task.probs.shape)
        step[n, token] = 1e-6
        around = [at(task.probs + s * step)[n] for s in (1, -1)]
        slope = (around[0] - around[1]) / 2e-6
        np.testing.assert_allclose(got.slope[n, token], slope, rtol=1e-7)
    assert np.all(np.asarray(got.slope)[np.asarray(task.probs) == 0] == 0)


@pytest.mark.full  # the full Hessian stays
@pytest.mark.usefixtures("x64")
def test_the_remainder_is_of_second_order() -> None:
    params, task = jax.tree.map(jnp.asarray, weights()), TASK.astype("float64")
    missed = []
    for total in (32, 64, 128):
        pairs = [enumerated(n, total) for n in range(3)]
        exact = [w @ losses_of(weights(), n, c) for n, (c, w) in enumerate(pairs)]
        found = [
            np.asarray(finite_length.expand(params, task, context).losses)
            for context in (None, jnp.asarray(float(total)))
        ]
        missed.append([np.abs(losses - exact).max() for losses in found])
    slopes = np.log2(np.array(missed[:-1]) / np.array(missed[1:]))
    # The next order makes them differ from 1 and 2 by something of order 1/L.
    np.testing.assert_allclose(slopes[-1], [1, 2], atol=0.1)


@pytest.mark.parametrize("total", [1, 2])
def test_sampled_sequences_have_the_enumerated_losses(total: int) -> None:
    params = weights()
    with jax.enable_x64(True):
        drawn = sampling.sample_counts(TASK, jax.random.key(0), 20_000, total + 1)
    classes, counts = np.asarray(drawn.classes), np.asarray(drawn.counts, np.float64)
    for n in range(3):
        mine = losses_of(params, n, counts[classes == n])
        rows, weight = enumerated(n, total)
        exact = weight @ losses_of(params, n, rows)
        # Five standard errors.
        assert abs(mine.mean() - exact) < 5 * mine.std() / math.sqrt(mine.size)


def test_lengths_without_an_expansion_are_refused() -> None:
    task = dynsim.syn_small()
    # 1 / sum p^2 = 17.3 effective tokens need as many contextual ones.
    message = r"length = 18: .* 1 / sum P\(l\|n\)\^2 = 17.3 here: length >= 19"
    with pytest.raises(ValueError, match=message):
        dynsim.simulate(task, dynsim.sgd(1.0, 1.0), steps=1, length=18, batch=math.inf)
    dynsim.simulate(task, dynsim.sgd(1.0, 1.0), steps=1, length=19, batch=math.inf)
