"""The layer in ordinary parameters: against NumPy, and against the layer in Y and Z."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dynsim
from dynsim import QKV
from dynsim.qkv import model as embedded
from dynsim.qkv.model import Embedded
from dynsim.yz import model as yz
from dynsim.yz import observables, sampling

SMALL = dynsim.SynSmall().build()


def initial(problem: QKV, key: jax.Array) -> embedded.Embedded:
    """The weights with which a run with this key starts, in float32."""
    with jax.enable_x64(False):
        return eqx.filter_jit(problem.init)(jax.random.split(key)[0])


def doubled(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("frozen", [(), ("U", "W_K")])
def test_descent_moves_every_part_by_its_rate(frozen: tuple) -> None:
    """On recorded batches: what reads and writes by the rate of Y, what attends by that of Z."""
    problem = QKV(
        SMALL, width=10, heads=2, head_width=4, scale=2.0, embedding="gaussian", tied=False,
        train_embedding="U" not in frozen, frozen=frozen,
    )  # fmt: skip
    start = doubled(initial(problem, jax.random.key(1)))
    keys = jax.random.split(jax.random.key(0), 3)
    data = jax.vmap(lambda k: sampling.sample_counts(SMALL, k, 8, 16, "float64"))(keys)
    options: Any = {"steps": 3, "data": data, "record": ["loss"], "dtype": "float64"}
    got = dynsim.train(problem, dynsim.sgd(0.7, 0.3), init=start, **options).params
    gradient, want = jax.jit(jax.grad(embedded.loss)), start
    rates = {"U": 0.7, "W_V": 0.7, "D": 0.7, "W_Q": 0.3, "W_K": 0.3} | dict.fromkeys(frozen, 0.0)
    for k in range(3):
        grads = gradient(want, SMALL, jax.tree.map(lambda x, k=k: x[k], data))
        moved = {n: getattr(want, n) - r * getattr(grads, n) for n, r in rates.items()}
        want = eqx.tree_at(lambda p: [getattr(p, n) for n in rates], want, [*moved.values()])
    for name in rates:
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_an_infinite_batch_descends_the_loss_of_finite_sequences() -> None:
    """To first order in 1/L, loss and gradient are the averages over all count vectors of L tokens,
    each with its multinomial probability."""
    L, priors = 40, np.array([0.6, 0.4])
    probs = np.array([[0.5, 0.3, 0.2, 0], [0.25, 0, 0.4, 0.35]])
    task = dynsim.sequence_classes(probs, [0, 1], prior=priors)
    problem = QKV(
        task, L + 1, width=5, embedding="gaussian", tied=False, residual=True, train_embedding=True
    )
    start = doubled(initial(problem, jax.random.key(1)))
    parts = np.array([(i, j, L - i - j) for i in range(L + 1) for j in range(L + 1 - i)])
    counts, weight = np.zeros((2, len(parts), 4)), np.zeros((2, len(parts)))
    for n, (p, prior) in enumerate(zip(probs, priors, strict=True)):
        counts[n][:, p > 0] = parts
        weight[n] = prior * stats.multinomial.pmf(parts, L, p[p > 0])
    classes = jnp.repeat(jnp.arange(2), len(parts))
    of_examples = jax.jit(jax.value_and_grad(embedded.loss))

    def exact(counts: np.ndarray) -> np.ndarray:
        examples = yz.Examples(classes, jnp.asarray(counts.reshape(-1, 4)), weight.ravel())
        return np.concatenate(
            [np.ravel(x) for x in jax.tree.leaves(of_examples(start, task, examples))]
        )

    run = dynsim.train(
        problem, dynsim.sgd(1.0), init=start, steps=1, times=[0, 1], batch=math.inf, record="loss",
        dtype="float64",
    )  # fmt: skip
    moved = jax.tree.map(lambda a, b: np.ravel(a - b), start, run.params)
    found = np.concatenate([run["batch_loss"][:1], *jax.tree.leaves(moved)])
    finite, infinite = exact(counts), exact(np.broadcast_to(probs[:, None], counts.shape))
    # The next order is smaller by something of order 1/L, and so is the effect itself.
    missed, effect = np.abs(found - finite), np.abs(infinite - finite)
    assert missed[0] < 5 / L * effect[0]
    assert np.linalg.norm(missed[1:]) < 5 / L * np.linalg.norm(effect[1:])


TASK = dynsim.SynMedium(3).build()
TOKENS = jax.jit(sampling.sample_tokens, static_argnums=(2, 3))
SAMPLE = jax.jit(sampling.sample_counts, static_argnums=(2, 3, 4))
FORWARD, FORWARD_YZ = jax.jit(embedded.forward), jax.jit(yz.forward)
EFFECTIVE = jax.jit(Embedded.effective, static_argnums=2)
MEASURE, MEASURE_YZ = jax.jit(embedded.measure), jax.jit(observables.measure)


def layer(width: int, **settings: Any) -> QKV:
    return QKV(TASK, width=width, **settings)


def weights(seed: int, architecture: QKV) -> Embedded:
    return eqx.filter_jit(architecture.init)(jax.random.key(seed))


def numpy_normalise(v: np.ndarray, kind: str) -> np.ndarray:
    n = len(v)
    if kind == "l2":
        return v / np.sqrt(sum(x * x for x in v))
    if kind == "rms":
        return v / np.sqrt(sum(x * x for x in v) / n)
    if kind == "layer":
        mean = sum(v) / n
        return (v - mean) / np.sqrt(sum((x - mean) ** 2 for x in v) / n)
    return v


def numpy_logits(p: dict, tokens: np.ndarray, slope: float, kind: str, place: str, residual: bool):
    """The model as the paper writes it, for one sequence of tokens; `p` holds NumPy weights."""
    *context, query = tokens
    M, d = p["U"].shape
    out = np.zeros(M)
    for W_Q, W_K, W_V in zip(p["W_Q"], p["W_K"], p["W_V"], strict=True):
        weight = []
        for position, token in enumerate(context):
            score = (W_Q.T @ p["U"][query]) @ (W_K.T @ p["U"][token]) / np.sqrt(d)
            weight.append(np.exp(score - slope * (len(context) - position)))
        a = np.zeros(M)
        for token, w in zip(context, weight, strict=True):
            a[token] += w / sum(weight)
        if place == "theory":
            x = numpy_normalise(a, kind)
            if residual:
                x = numpy_normalise(x + np.eye(M)[query], kind)
            x = p["U"].T @ x
        else:
            x = numpy_normalise(p["U"].T @ a, kind)
            if residual:
                x = numpy_normalise(x + p["U"][query], kind)
        decoder = p["U"] if p["D"] is None else p["D"]
        out += decoder @ (W_V @ x)
    return out


def as_numpy(params: Embedded) -> dict:
    leaves = {name: getattr(params, name) for name in ("U", "W_Q", "W_K", "W_V", "D")}
    return {name: None if leaf is None else np.asarray(leaf) for name, leaf in leaves.items()}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("kind", "place", "rich"),
    [
        ("rms", "theory", True),
        ("layer", "practice", True),
        pytest.param("l2", "theory", False, marks=pytest.mark.full),
        pytest.param("none", "practice", False, marks=pytest.mark.full),
    ],
)
@pytest.mark.more
def test_forward_and_gradient_match_numpy(kind: str, place: str, rich: bool) -> None:
    """`rich`: with the residual, two heads and an untied decoder."""
    numbers = {"heads": 1 + rich, "head_width": 4, "scale": 3.0, "tied": not rich, "residual": rich}
    made = layer(9, embedding="gaussian", normalisation=kind, placement=place, **numbers)
    params = weights(0, made)
    classes, tokens = TOKENS(TASK, jax.random.key(1), 5, 12)
    labels = np.asarray(TASK.next_token)[classes]
    examples = SAMPLE(TASK, jax.random.key(1), 5, 12, "float64")

    def numpy_loss(p: dict) -> float:
        logits = [numpy_logits(p, x, 0.0, kind, place, rich) for x in np.asarray(tokens)]
        pairs = zip(logits, labels, strict=True)
        return np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in pairs])

    p = as_numpy(params)
    want = [numpy_logits(p, x, 0.0, kind, place, rich) for x in np.asarray(tokens)]
    np.testing.assert_allclose(FORWARD(params, TASK, examples), want, rtol=1e-11, atol=1e-11)
    value, grads = jax.jit(jax.value_and_grad(embedded.loss))(params, TASK, examples)
    np.testing.assert_allclose(value, numpy_loss(p), rtol=1e-12)
    rng = np.random.default_rng(2)
    for name, leaf in p.items():
        if leaf is None:
            continue
        direction = rng.normal(size=leaf.shape)
        # Central differences at this distance are good to about 1e-9 of a value of order 1.
        ahead, behind = (numpy_loss({**p, name: leaf + e * direction}) for e in (1e-5, -1e-5))
        slope = np.sum(np.asarray(getattr(grads, name)) * direction)
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_positions_by_token_and_by_weighed_counts_match_numpy() -> None:
    slope = 0.3
    settings = {"residual": True, "placement": "practice", "normalisation": "rms"}
    params = weights(3, layer(9, heads=2, scale=2.0, embedding="gaussian", **settings))
    classes, tokens = TOKENS(TASK, jax.random.key(4), 6, 15)
    want = [
        numpy_logits(as_numpy(params), x, slope, "rms", "practice", True)
        for x in np.asarray(tokens)
    ]
    by_token = jax.jit(jax.vmap(lambda x: embedded.forward_tokens(params, TASK, x, slope)))
    np.testing.assert_allclose(by_token(tokens), want, rtol=1e-11, atol=1e-11)
    counts = embedded.positional_counts(tokens, jnp.asarray(slope), TASK.M)
    examples = yz.Examples(classes, counts, jnp.full(6, 1 / 6))
    np.testing.assert_allclose(FORWARD(params, TASK, examples), want, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "architecture",
    [
        layer(TASK.M, scale=2.0, embedding="identity", residual=True),
        layer(7, heads=2, head_width=3, scale=2.0, embedding="gaussian", tied=False),
    ],
    ids=["identity-residual", "two narrow untied heads"],
)
@pytest.mark.more
def test_effective_weights_make_the_same_layer(architecture: QKV) -> None:
    """Heads add up, and are measured by their mean."""
    params = weights(5, architecture)
    p = as_numpy(params)
    decoder = p["U"] if p["D"] is None else p["D"]
    layers = [EFFECTIVE(params, TASK, h) for h in range(params.heads)]
    for layer, W_Q, W_K, W_V in zip(layers, p["W_Q"], p["W_K"], p["W_V"], strict=True):
        np.testing.assert_allclose(layer.Y, p["U"] @ W_V.T @ decoder.T, atol=1e-13)
        Z = p["U"] @ W_Q @ W_K.T @ p["U"].T / np.sqrt(architecture.width)
        np.testing.assert_allclose(layer.Z, Z[np.asarray(TASK.queries)], atol=1e-13)
    same = jax.jit(lambda p: embedded.from_heads(TASK, embedded.heads(p, TASK)))(params)
    for examples in (SAMPLE(TASK, jax.random.key(6), 16, 20, "float64"), yz.population(TASK)):
        want = sum(FORWARD_YZ(layer, TASK, examples) for layer in layers)
        np.testing.assert_allclose(FORWARD(params, TASK, examples), want, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(FORWARD(same, TASK, examples), want, rtol=1e-11, atol=1e-13)
    got, parts = MEASURE(TASK, params), [MEASURE_YZ(TASK, layer) for layer in layers]
    np.testing.assert_allclose(got.logits, want, rtol=1e-11, atol=1e-13)
    c = sum(part.c for part in parts) / len(parts)
    np.testing.assert_allclose(got.c, c, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(got.f, c / np.linalg.norm(c, axis=1, keepdims=True), rtol=1e-11)
    np.testing.assert_allclose(got.z, sum(part.z for part in parts) / len(parts), rtol=1e-11)
    residual = yz.cross_entropy(want, TASK.next_token)[1]
    g = sum(residual @ layer.Y.T for layer in layers) / len(parts)
    g = parts[0].g if params.residual else g
    np.testing.assert_allclose(got.g, g, rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_what_goes_back_in_practice_is_the_gradient_by_the_attended_tokens() -> None:
    settings = {"placement": "practice", "normalisation": "none", "residual": True}
    params = weights(8, layer(9, scale=2.0, embedding="gaussian", **settings))
    classes = jnp.arange(TASK.K)
    a = jax.jit(embedded.attend)(params, TASK, yz.population(TASK))

    def likelihood(a: jax.Array) -> jax.Array:
        logits = embedded.decode(params, TASK, embedded.read(params, a), classes)
        return -yz.cross_entropy(logits, TASK.next_token)[0].sum()

    got = MEASURE(TASK, params).g
    np.testing.assert_allclose(got, jax.jit(jax.grad(likelihood))(a)[0], rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_starting_weights_have_the_stated_law() -> None:
    params = weights(9, layer(100, heads=2, scale=2.0, value_scale=0.5, tied=False))
    np.testing.assert_allclose(params.U @ params.U.T, np.eye(TASK.M), atol=1e-13)
    for name, scale in (("W_Q", 2.0), ("W_K", 2.0), ("W_V", 0.5), ("D", 0.5)):
        entries = np.asarray(getattr(params, name)).ravel() * np.sqrt(100) / scale
        # Standard deviations of the mean and of the variance of n normal numbers.
        n = entries.size
        assert abs(entries.mean()) < 6 / np.sqrt(n), name
        assert abs(entries.var() - 1) < 6 * np.sqrt(2 / n), name
    gaussian = weights(9, layer(100, embedding="gaussian"))
    assert np.sum(gaussian.U**2, 1) == pytest.approx(1, abs=6 * np.sqrt(2 / 100))
    assert (np.asarray(weights(9, layer(TASK.M, embedding="identity")).U).sum(1) == 1).all()
