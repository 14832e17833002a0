"""Descent on the ordinary parameters: against NumPy, against the layer in Y and Z, bad input."""

import math
import re
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dynsim
from dynsim import QKV
from dynsim import qkv as embedded
from dynsim.yz import model as yz
from dynsim.yz import sampling
from tests.systems import layers

TASK = dynsim.SynSmall().build()
INFINITE = {"length": math.inf, "batch": math.inf}


def initial(problem: QKV, key: jax.Array) -> embedded.Embedded:
    """The weights with which a run with this key starts, in float32."""
    with jax.enable_x64(False):
        return eqx.filter_jit(problem.init)(jax.random.split(key)[0])


def doubled(tree: object) -> object:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def recorded(steps: int, dtype: str = "float64") -> yz.Examples:
    keys = jax.random.split(jax.random.key(0), steps)
    return jax.vmap(lambda k: sampling.sample_counts(TASK, k, 8, 16, dtype))(keys)


def hand_gradient(p: dict, examples: yz.Examples) -> dict:
    """Lemma 1 example by example, and the chain rule by hand; one head, tied decoder."""
    U, (W_Q,), (W_K,), (W_V,) = (p[name] for name in ("U", "W_Q", "W_K", "W_V"))
    d = U.shape[1]
    Y, Z = U @ W_V.T @ U.T, U @ W_Q @ W_K.T @ U.T / np.sqrt(d)
    dY, dZ = np.zeros_like(Y), np.zeros_like(Z)
    for n, counts, weight in zip(*(np.asarray(x) for x in jax.tree.leaves(examples)), strict=True):
        m, label = int(TASK.query[n]), int(TASK.next_token[n])
        a = counts * np.exp(Z[m])
        f = a / np.linalg.norm(a)
        alpha = np.exp(f @ Y) / np.exp(f @ Y).sum()
        error = alpha - np.eye(TASK.M)[label]
        dY += weight * np.outer(f, error)
        g = Y @ error
        dZ[m] += weight * f * (g - f * (f @ g))
    dZ /= np.sqrt(d)
    dU = dY @ U @ W_V + dY.T @ U @ W_V.T + dZ @ U @ W_K @ W_Q.T + dZ.T @ U @ W_Q @ W_K.T
    return {
        "U": dU,
        "W_Q": (U.T @ dZ @ U @ W_K)[None],
        "W_K": (U.T @ dZ.T @ U @ W_Q)[None],
        "W_V": (U.T @ dY.T @ U)[None],
    }


def numpy_descent(p: dict, data: yz.Examples, rule: str, rates: dict, frozen: tuple) -> dict:
    p = dict(p)
    first = {name: np.zeros_like(leaf) for name, leaf in p.items()}
    second = {name: np.zeros_like(leaf) for name, leaf in p.items()}
    for k in range(len(data.classes)):
        grads = hand_gradient(p, jax.tree.map(lambda x, k=k: x[k], data))
        for name, g in grads.items():
            if name in frozen:
                continue
            if rule == "adam":
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                m, v = first[name] / (1 - 0.9 ** (k + 1)), second[name] / (1 - 0.999 ** (k + 1))
                step = m / (np.sqrt(v) + 1e-8)
            else:
                first[name] = (0.8 if rule == "momentum" else 0) * first[name] + g
                step = first[name]
            p[name] = p[name] - rates[name] * step
    return p


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("rule", "frozen"),
    [
        ("sgd", ()),
        pytest.param("momentum", ("U", "W_K"), marks=pytest.mark.full),
        ("adam", ("U",)),
    ],
)
@pytest.mark.more
def test_descent_is_a_numpy_loop_on_recorded_batches(rule: str, frozen: tuple) -> None:
    eta = 0.7, 0.3
    optimizer = {
        "sgd": dynsim.sgd(*eta),
        "momentum": dynsim.sgd(*eta, momentum=0.8),
        "adam": dynsim.adam(*eta),
    }[rule]
    problem = QKV(
        TASK, width=10, head_width=4, scale=2.0, embedding="gaussian",
        train_embedding="U" not in frozen, frozen=frozen,
    )  # fmt: skip
    start = doubled(initial(problem, jax.random.key(1)))
    weights = {name: np.asarray(getattr(start, name)) for name in ("U", "W_Q", "W_K", "W_V")}
    data = recorded(5)
    got = dynsim.train(
        problem, optimizer, init=start, steps=5, data=data, record=["loss"], dtype="float64"
    )
    rates = {"U": 0.7, "W_V": 0.7, "W_Q": 0.3, "W_K": 0.3}
    want = numpy_descent(weights, data, rule, rates, frozen)
    for name, leaf in want.items():
        moved = np.abs(leaf - weights[name]).max()
        assert (moved == 0) == (name in frozen), name
        np.testing.assert_allclose(getattr(got.params, name), leaf, rtol=1e-8, atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.more
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


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "settings",
    [{"batch": 16, "length": 32}, INFINITE],
    ids=str,
)
@pytest.mark.full(
    "test_descent_is_a_numpy_loop_on_recorded_batches",
    "test_statuses_and_relative_loss_are_those_of_simulate_under_vmap",
)
def test_with_one_factor_held_at_identity_it_is_the_yz_run_on_the_same_batches(
    settings: dict,
) -> None:
    key, eta = jax.random.key(2), (0.8, 1.5)
    start = layers.initial_weights(TASK, "uniform", key, "float64")
    settings = {**settings, "steps": 12, "times": [0, 5, 12], "dtype": "float64"}
    want = layers.simulate(TASK, dynsim.sgd(*eta, momentum=0.9), key, init=start, **settings)
    heads = jax.tree.map(lambda leaf: leaf[None], start)
    # Z = Q / sqrt(d) moves by eta_Z / d of its own gradient.
    length = settings.pop("length")
    got = dynsim.train(
        QKV(TASK, length, width=TASK.M, embedding="identity", frozen=("W_K",)),
        dynsim.sgd(eta[0], eta[1] * TASK.M, momentum=0.9),
        key,
        init=embedded.from_heads(TASK, heads),
        **settings,
    )
    assert set(got.observables) == set(want.observables)
    for name, values in want.observables.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    layer = got.params.effective(TASK)
    np.testing.assert_allclose(layer.Y, want.params.Y, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(layer.Z, want.params.Z, rtol=1e-10, atol=1e-12)


@pytest.mark.full("test_statuses_and_relative_loss_are_those_of_simulate_under_vmap")
def test_vmap_over_scales_rates_and_keys_is_the_loop() -> None:
    def run(scale: jax.Array, eta: jax.Array, seed: jax.Array) -> dynsim.Trajectory:
        problem = QKV(
            TASK, 16, width=12, heads=2, embedding="gaussian", tied=False, train_embedding=True
        )
        problem = eqx.tree_at(lambda problem: problem.scale, problem, scale)
        key, kept = jax.random.key(seed), {"record": ["loss", "entropy"], "batch": 8}
        return dynsim.train(problem, dynsim.sgd(eta, 2 * eta), key, steps=6, **kept)

    members = jnp.array([0.5, 2.0, 1.0]), jnp.array([0.1, 0.3, 0.2]), jnp.array([0, 1, 1])
    together = jax.vmap(run)(*members)
    assert together.ok.all()
    for i in range(3):
        alone = run(*(member[i] for member in members))
        for name in ("loss", "entropy", "batch_loss"):
            # Batched matrix products sum in another order.
            np.testing.assert_allclose(together[name][i], alone[name], rtol=1e-4, err_msg=name)
    # The last two have one key and differ in scale and rate: at the start, in scale alone.
    assert np.ptp(together["entropy"][1:, 0]) > 1e-3


@pytest.mark.full("test_descent_is_a_numpy_loop_on_recorded_batches")
def test_the_positional_prior_weighs_the_same_sequences() -> None:
    key, settings = jax.random.key(3), {"width": 12, "scale": 2.0, "embedding": "gaussian"}
    start = initial(QKV(TASK, **settings), key)
    tokens_key = jax.random.fold_in(jax.random.split(key)[1], 0)
    classes, tokens = sampling.sample_tokens(TASK, tokens_key, 8, 16)
    context = np.eye(TASK.M, dtype=np.float32)[np.asarray(tokens)[:, :-1]]
    loss = jax.jit(embedded.loss)
    # Without a slope all of the context counts, with a steep one the query's neighbour alone.
    for slope, counts in ((0.0, context.sum(1)), (50.0, context[:, -1])):
        got = dynsim.train(
            QKV(TASK, 16, slope=slope, **settings), dynsim.sgd(1.0), key, steps=1, times=[0],
            batch=8, record=["loss"],
        )  # fmt: skip
        want = loss(start, TASK, yz.Examples(classes, counts, np.full(8, 1 / 8, np.float32)))
        np.testing.assert_allclose(got["batch_loss"][0], want, rtol=1e-5)
    # What is recorded is the population's, which has no positions.
    np.testing.assert_allclose(got["loss"][0], loss(start, TASK, yz.population(TASK)), rtol=1e-5)


@pytest.mark.more
def test_statuses_and_relative_loss_are_those_of_simulate_under_vmap() -> None:
    def run(eta: float | jax.Array, value_scale: float | jax.Array) -> dynsim.Trajectory:
        problem = QKV(TASK, math.inf, width=TASK.M, embedding="identity")
        problem = eqx.tree_at(lambda problem: problem.value_scale, problem, value_scale)
        return dynsim.train(
            problem, dynsim.sgd(eta), jax.random.key(4), steps=8, times=[0, 8], batch=math.inf,
            record=["loss", "relative_loss"],
        )  # fmt: skip

    together = jax.vmap(run)(jnp.array([0.5, 1e30, 0.0]), jnp.array([1.0, 1.0, 1e4]))
    assert together.status.tolist() == [dynsim.Status.OK, *[dynsim.Status.DIVERGED] * 2]
    assert 1 <= together.first_bad_step[1] <= 8
    # A loss can be absurd and finite.
    assert np.isfinite(together["batch_loss"][2]).all()
    assert together.first_bad_step[2] == 0
    alone = run(0.5, 1.0)
    assert alone.params.U.dtype == np.float32
    assert 0 < alone["relative_loss"][-1] < 1
    for name, values in alone.observables.items():
        # Batched matrix products sum in another order.
        np.testing.assert_allclose(together[name][0], values, rtol=1e-4, err_msg=name)


def train(batch: float = math.inf, **settings: object) -> dynsim.Trajectory:
    problem = QKV(TASK, **{"width": 34, **settings})
    return dynsim.train(problem, dynsim.sgd(1.0), jax.random.key(0), steps=2, batch=batch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(length=1), "length = 1: must be an integer from 2 to 2147483647, or inf"),
        (lambda: train(length=3), "length = 3: the theory is an expansion in"),
        (lambda: train(frozen=("W",)), "frozen = 'W': must be one of U, W_Q"),
        (lambda: train(frozen=("W_Q", "W_K", "W_V")), "nothing but a decoder"),
        (lambda: train(slope=-1.0), "slope = -1.0: must be finite and in [0"),
        (lambda: train(slope=0.1, length=math.inf), "slope = 0.1: positions need sequences"),
        (lambda: train(slope=0.1), "slope = 0.1: positions need a finite batch"),
        (lambda: train(width=3), "width = 3: embedding = 'orthogonal' needs"),
        (lambda: QKV("syn-small"), "task = 'syn-small': must be of type dynsim.Task"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.full("test_descent_is_a_numpy_loop_on_recorded_batches")
def test_frozen_weights_stay_and_a_start_stands_for_its_key() -> None:
    key, options = jax.random.key(6), {"steps": 3, "batch": 8, "record": ("loss", "entropy")}
    problem = QKV(TASK, 16, width=12, embedding="gaussian", tied=False, frozen=("W_V",))
    start = initial(problem, key)
    found = dynsim.train(problem, dynsim.sgd(0.5), key, **options)
    np.testing.assert_array_equal(found.params.W_V, start.W_V)
    again = dynsim.train(problem, dynsim.sgd(0.5), key, init=start, **options)
    np.testing.assert_array_equal(again["loss"], found["loss"])
