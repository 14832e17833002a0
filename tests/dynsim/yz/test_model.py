"""The model against an independent NumPy one, and Lemma 1 against automatic differentiation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import dynsim
from dynsim.yz import model as yz
from dynsim.yz import observables, sampling
from dynsim.yz.observables import MEASURED
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


def test_a_single_distinct_token_has_no_entropy() -> None:
    task = dynsim.Syn(8, 4, num_common=5, num_distinct=1).build()
    measured = jax.jit(lambda params: observables.entropy(task, observables.measure(task, params)))
    scattered = jax.random.normal(jax.random.key(0), (task.num_queries, task.M)) * 3
    # Its share is 1 but for rounding, of which 1e-9 nat remained.
    assert measured(dataclasses.replace(yz.init_zero(task, "float32"), Z=scattered)) == 0


# Class 0 has two distinct tokens, class 1 one, class 2 none, class 3 no common one, and token 7 is
# in no class; unequal priors; the most probable token of a kind is not the first of its kind.
PROBS = np.array(
    [
        [0.1, 0.2, 0.25, 0.45, 0, 0, 0, 0],
        [0.3, 0.4, 0, 0, 0.3, 0, 0, 0],
        [0.45, 0.55, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0.6, 0.4, 0],
    ]
)
PRIOR, ROWS, NEXT = np.array([0.4, 0.1, 0.3, 0.2]), [1, 0, 1, 0], [3, 1, 6, 0]
UNEQUAL = dynsim.sequence_classes(PROBS, [7, 4, 7, 4], NEXT, PRIOR)
FEWER = dynsim.sequence_classes(PROBS[[0, 1, 3]], [7, 4, 4], [3, 1, 0])
DISTINCT, COMMON = [[2, 3], [4], [], [5, 6]], [[0, 1], [0, 1], [0, 1], []]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("residual", [False, True])
def test_observables_are_those_of_numpy(residual: bool) -> None:
    rng = np.random.default_rng(2)
    Y, Z = 2 * rng.normal(size=(8, 8)), rng.normal(size=(2, 8))
    # Classes 0 and 3 predict their next tokens, the others do not.
    Y[2:4, 3], Y[5:7, 0] = 20, 20
    z, nan = Z[ROWS], np.nan
    c = PROBS * np.exp(z)
    c /= c.sum(1, keepdims=True)
    f = c / np.linalg.norm(c, axis=1, keepdims=True)
    queries = np.eye(8)[[7, 4, 7, 4]]
    size = np.linalg.norm(f + queries, axis=1, keepdims=True)
    h = (f + queries) / size if residual else f
    logits = h @ Y
    g = (np.eye(8)[NEXT] - softmax(logits, axis=1)) @ Y.T
    if residual:
        g = (g - h * (h * g).sum(1, keepdims=True)) / size
    own = [softmax(np.log(c[n, d])) for n, d in enumerate(DISTINCT) if d]
    speed = (f * g).sum(1)
    drive = f * (g - f * speed[:, None])
    top = lambda kind: [z[n, t[np.argmax(PROBS[n, t])]] if t else nan for n, t in enumerate(kind)]
    gain = [drive[n, d].sum() / (f[n, d] ** 2).sum() if d else nan for n, d in enumerate(DISTINCT)]
    hit = logits.argmax(1) == NEXT
    assert hit.tolist() == [True, False, False, True]
    above = np.concatenate([c[n, d] for n, d in enumerate(DISTINCT)])
    want = {
        "loss": -PRIOR @ log_softmax(logits, axis=1)[range(4), NEXT],
        "accuracy": PRIOR @ hit,
        # Class 2 has no distinct token to have an entropy.
        "entropy": nan,
        "z_top_distinct": top(DISTINCT),
        "z_top_common": top(COMMON),
        "speed": speed,
        "xi": gain,
        "overlap": f @ f.T,
        "attention": c,
        "normalised_attention": f,
        "z": z,
        "recall": [(above > 10 ** (k / 20) / 8).mean() for k in range(-40, 21)],
    }

    @jax.jit
    def observed(task: dynsim.SequenceClasses, Y: jax.Array, Z: jax.Array) -> dict[str, jax.Array]:
        s = observables.measure(task, dynsim.YZ(Y, Z, residual))
        found = {name: function(task, s) for name, function in MEASURED.functions.items()}
        # The entropy of the classes that have distinct tokens: 0 and 1 have common ones as before.
        part = jax.tree.map(lambda leaf: leaf[jnp.array([0, 1, 3])], s)
        return {**found, "some": observables.entropy(FEWER, part)}

    found = observed(UNEQUAL, Y, Z)
    want["some"] = np.mean([-(p * np.log(p)).sum() for p in own])
    assert {*found} == {*want}
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


def test_entropy_can_be_differentiated_where_a_token_has_no_attention() -> None:
    """Exponentials of -200 vanish in float32; of the others, shares s have -s (log s + entropy)."""
    task = dynsim.sequence_classes([[0.2, 0.3, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]], [0, 1])

    def measured(z: jax.Array) -> jax.Array:
        Z = jnp.zeros((2, 4)).at[0, :3].set(z)
        return observables.entropy(task, observables.measure(task, dynsim.YZ(jnp.zeros((4, 4)), Z)))

    found, slope = jax.jit(jax.value_and_grad(measured))(jnp.array([0.4, -0.3, -200.0]))
    share = softmax(np.log([0.2, 0.3]) + np.array([0.4, -0.3]))
    entropy = -(share * np.log(share)).sum()
    # The mean over two classes, of which the second has one token.
    assert float(found) == pytest.approx(entropy / 2, rel=1e-5)
    want = [*(-share * (np.log(share) + entropy) / 2), 0]
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-7)


def test_before_the_first_step_every_class_counts_as_wrong() -> None:
    """All logits are equal then, and the largest is not strictly so."""
    measured = jax.jit(
        lambda Y: observables.accuracy(
            UNEQUAL, observables.measure(UNEQUAL, dynsim.YZ(Y, jnp.zeros((2, 8))))
        )
    )
    assert float(measured(jnp.zeros((8, 8)))) == 0


def test_attention_at_a_threshold_does_not_exceed_it() -> None:
    """Of four distinct tokens among eight, each has two eighths at zero weights."""
    task = dynsim.sequence_classes(np.eye(2).repeat(4, axis=1) / 4, [0, 1])
    found = observables.recall_at([1.9, 2.0])(
        task, observables.measure(task, dynsim.YZ(jnp.zeros((8, 8)), jnp.zeros((2, 8))))
    )
    np.testing.assert_array_equal(found, [1, 0])
