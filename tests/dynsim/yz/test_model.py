"""The model against an independent NumPy one, and Lemma 1 against automatic differentiation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import model as yz
from dynsim.yz import observables, sampling
from tests.systems.layers import initial_weights

TASK = dynsim.SynMedium(3).build()
# Compiled once for all tests, and in one piece instead of operation by operation.
LOSS, FORWARD = jax.jit(yz.loss), jax.jit(yz.forward)
GRADIENT, WRITTEN_OUT = jax.jit(jax.grad(yz.loss)), jax.jit(yz.loss_and_grad)
SAMPLE = jax.jit(sampling.sample_counts, static_argnums=(2, 3, 4))


def numpy_logits(
    Y: np.ndarray, z: np.ndarray, tokens: np.ndarray, residual: bool = False
) -> np.ndarray:
    """Section 2 of the paper, position by position, for one query's row z of Z."""
    *context, query = tokens
    weights = [np.exp(z[token]) for token in context]
    a = np.zeros(len(Y))
    for token, weight in zip(context, weights, strict=True):
        a[token] += weight / sum(weights)
    f = a / np.sqrt(np.sum(a**2))
    if residual:
        f[query] += 1
        f /= np.sqrt(np.sum(f**2))
    return Y.T @ f


def random_weights(seed: int, scale: float = 1.0, residual: bool = False) -> yz.YZ:
    rng = np.random.default_rng(seed)
    shapes = (TASK.M, TASK.M), (TASK.num_queries, TASK.M)
    return yz.YZ(*(jnp.asarray(scale * rng.normal(size=shape)) for shape in shapes), residual)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("residual", [False, True])
def test_forward_and_loss_match_numpy_at_token_and_at_count_level(residual: bool) -> None:
    params = random_weights(0, residual=residual)
    classes, tokens = sampling.sample_tokens(TASK, jax.random.key(0), 16, 20)
    examples = SAMPLE(TASK, jax.random.key(0), 16, 20, "float64")
    rows = np.asarray(TASK.query_index)[classes]
    want = np.stack(
        [
            numpy_logits(np.asarray(params.Y), np.asarray(params.Z)[row], np.asarray(x), residual)
            for row, x in zip(rows, tokens, strict=True)
        ]
    )
    at_tokens = jax.jit(jax.vmap(lambda x: yz.forward_tokens(params, TASK, x)))(tokens)
    np.testing.assert_allclose(at_tokens, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(FORWARD(params, TASK, examples), want, rtol=1e-12, atol=1e-12)

    labels = np.asarray(TASK.next_token)[classes]
    log_alpha = want - np.log(np.exp(want).sum(1, keepdims=True))
    cross_entropy = -log_alpha[np.arange(16), labels].mean()
    np.testing.assert_allclose(LOSS(params, TASK, examples), cross_entropy, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("source", ["batch", "population"])
@pytest.mark.parametrize(("scale", "residual"), [(0.1, False), (3.0, False), (3.0, True)])
@pytest.mark.more
def test_lemma_1_is_the_gradient(source: str, scale: float, residual: bool) -> None:
    params = random_weights(1, scale, residual)
    examples = yz.population(TASK)
    if source == "batch":
        examples = SAMPLE(TASK, jax.random.key(1), 32, 40, "float64")
    # Unequal weights, as unequal priors make them in the population.
    weight = np.random.default_rng(2).random(examples.classes.size)
    examples = yz.Examples(examples.classes, examples.counts, jnp.asarray(weight / weight.sum()))
    value, written_out = WRITTEN_OUT(params, TASK, examples)
    np.testing.assert_allclose(value, LOSS(params, TASK, examples), rtol=1e-13)
    by_autodiff = GRADIENT(params, TASK, examples)
    for got, want in zip(jax.tree.leaves(written_out), jax.tree.leaves(by_autodiff), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * float(jnp.abs(want).max()))


@pytest.mark.usefixtures("x64")
def test_gradients_leave_row_sums_alone() -> None:
    examples = SAMPLE(TASK, jax.random.key(2), 32, 40, "float64")
    _, grads = WRITTEN_OUT(random_weights(2), TASK, examples)
    np.testing.assert_allclose(grads.Y.sum(1), 0, atol=1e-15)
    np.testing.assert_allclose(grads.Z.sum(1), 0, atol=1e-15)


def test_an_absent_token_gets_no_attention_however_large_its_logit() -> None:
    z, counts = jnp.array([[1e4, 0.0, -1e4]]), jnp.array([[0.0, 2.0, 2.0]])
    np.testing.assert_allclose(yz.attend(z, counts), [[0, 1, 0]])
    # Nor do exponentials overflow: those of 101, 99 and 100, the tokens of the sequence.
    weight = np.array([1.0, 3.0, 2.0]) * np.exp([1.0, -1.0, 0.0])
    found = yz.attend(jnp.array([[101.0, 99.0, 100.0]]), jnp.array([[1.0, 3.0, 2.0]]))
    np.testing.assert_allclose(found, weight[None] / weight.sum(), rtol=1e-6)
    assert np.isfinite(jax.grad(lambda z: yz.attend(z, counts)[0, 1])(z)).all()


def test_small_losses_and_residuals_keep_their_digits_in_float32() -> None:
    logits = np.array([[20.0, 1.0, 0.0], [-30.0, 5.0, 0.0]])
    loss, residual = yz.cross_entropy(jnp.asarray(logits, jnp.float32), jnp.array([0, 0]))
    others = np.exp(logits[:, 1:] - logits[:, :1])
    want = np.log1p(others.sum(1))
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    np.testing.assert_allclose(residual[:, 0], -np.expm1(-want), rtol=1e-6)
    np.testing.assert_allclose(residual[:, 1:], -others * np.exp(-want)[:, None], rtol=3e-6)


def test_uniform_start_has_the_stated_bound_and_law() -> None:
    task = dynsim.SynMedium(10).build()
    start = initial_weights(task, "uniform", jax.random.key(5))
    scaled = np.r_[start.Y.ravel(), start.Z.ravel()] * np.sqrt(task.M)
    assert np.abs(scaled).max() <= 1
    # Standard deviations of the mean and of the variance of n uniform numbers on [-1, 1].
    n = scaled.size
    assert abs(scaled.mean()) < 6 * np.sqrt(1 / 3 / n)
    assert abs(scaled.var() - 1 / 3) < 6 * np.sqrt(4 / 45 / n)


def test_two_distinct_tokens_have_the_entropy_of_their_shares() -> None:
    task = dynsim.Syn(2, 2, num_common=3, num_distinct=2).build()
    measured = jax.jit(lambda params: observables.entropy(task, observables.measure(task, params)))
    Z = jax.random.normal(jax.random.key(0), (task.num_queries, task.M))
    share = np.exp(np.asarray(Z)[task.query_index]) * np.where(task.distinct(), task.probs, 0)
    share /= share.sum(1, keepdims=True)
    want = -np.sum(share * np.log(np.where(share > 0, share, 1)), axis=1).mean()
    found = measured(dataclasses.replace(yz.init_zero(task, "float32"), Z=Z))
    assert found == pytest.approx(want, rel=1e-5)


def test_a_single_distinct_token_has_no_entropy() -> None:
    task = dynsim.Syn(8, 4, num_common=5, num_distinct=1).build()
    measured = jax.jit(lambda params: observables.entropy(task, observables.measure(task, params)))
    scattered = jax.random.normal(jax.random.key(0), (task.num_queries, task.M)) * 3
    # Its share is 1 but for rounding, of which 1e-9 nat remained.
    assert measured(dataclasses.replace(yz.init_zero(task, "float32"), Z=scattered)) == 0
