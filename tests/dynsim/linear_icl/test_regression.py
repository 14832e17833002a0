"""In-context regression: law of the data, loss, start, conserved quantities, training."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dynsim
from dynsim import Merged, Network, Status
from dynsim.linear_icl import model
from dynsim.linear_icl.model import MAX_SUMMED, Sequences, _bartlett, draw_sequences
from dynsim.linear_icl.regression import learned, off_diagonal, stage

TASK = dynsim.Regression()
ATTENTIONS = dynsim.MergedHeads(), dynsim.SeparateHeads(2), dynsim.LinearNetwork()
# Each statistical test fails by chance with this probability; keys are fixed, so it either does
# now and for ever, or never.
P_VALUE = 1e-6


def outputs_from_tokens(params: model.Model, X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Eqs. 6, 7 and 12 on (B, N + 1, D) tokens of which the last is the query, head by head."""
    found = []
    for tokens, weights in zip(X, w, strict=True):
        context, query = tokens[:-1], tokens[-1]
        beta = np.mean([(weights @ x) * x for x in context], axis=0)
        if isinstance(params, Network):
            z = np.outer(beta, query).ravel()
            heads = [v * (W @ z) for v, W in zip(params.v, params.W, strict=True)]
        elif isinstance(params, Merged):
            heads = [v * beta @ U @ query for v, U in zip(params.v, params.U, strict=True)]
        else:
            heads = [
                v * sum((beta @ a) * (b @ query) for a, b in zip(k, q, strict=True))
                for v, k, q in zip(params.v, params.k, params.q, strict=True)
            ]
        found.append(sum(heads))
    return np.array(found)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.usefixtures("x64")
def test_losses_are_those_of_the_tokens(attention: Any) -> None:
    rng = np.random.default_rng(0)
    task = dynsim.Regression(heads=3, scale=0.5, attention=attention)
    params = jax.tree.map(np.float64, jax.jit(task.init)(jax.random.key(1)))
    X = rng.normal(size=(200, TASK.N + 1, TASK.D)) * np.sqrt(np.asarray(TASK.eigenvalues))
    w = rng.normal(size=(200, TASK.D))
    y = np.einsum("bd,bd->b", w, X[:, -1])
    want = np.mean((y - outputs_from_tokens(params, X, w)) ** 2)
    beta = np.einsum("bnd,bne,be->bd", X[:, :-1], X[:, :-1], w) / TASK.N
    batch = Sequences(*map(jnp.asarray, (beta, X[:, -1], y)))
    # Rounding of float64 over sums of some thousand terms.
    losses = jax.jit(lambda w, data: [task.loss(w, d) for d in (data, model.Moments.of(data))])
    np.testing.assert_allclose(losses(params, batch), want, rtol=1e-12)


@pytest.mark.parametrize(
    "N", [3, *(pytest.param(N, marks=pytest.mark.full) for N in (31, MAX_SUMMED + 12))]
)
def test_sequences_have_the_law_of_their_tokens(N: int) -> None:
    """N = 3 < D is drawn as tokens, few degrees of freedom as sums, many by rejection."""
    task = dynsim.Regression(4, N)
    number = 10_000
    drawn = jax.jit(
        functools.partial(draw_sequences, task.eigenvalues, N, num=number), static_argnames="tokens"
    )
    fast, slow = (
        jax.tree.map(np.asarray, drawn(key=jax.random.key(seed), tokens=tokens))
        for seed, tokens in ((0, False), (1, True))
    )
    for read in (
        lambda s: s.beta[:, 0],
        lambda s: s.beta[:, 3],
        lambda s: s.beta[:, 0] * s.beta[:, 1],
        lambda s: s.y * (s.beta * s.x).sum(1),
        lambda s: (s.beta**2).sum(1),
    ):
        assert stats.ks_2samp(read(fast), read(slow)).pvalue > P_VALUE


@pytest.mark.parametrize(("D", "N"), [(1, 5), (4, 31), (4, MAX_SUMMED + 11)])
def test_sums_and_rejection_draw_chi_squared_numbers(D: int, N: int) -> None:
    """The squares of the factor's diagonal have N, N - 1, ... degrees of freedom, odd and even
    ones, and all of its squares together N D."""
    factor = np.asarray(
        jax.jit(lambda key: _bartlett(D, N, key, 20_000, "float32"))(jax.random.key(7))
    )
    diagonal = np.diagonal(factor, axis1=1, axis2=2) ** 2
    for squares, freedom in zip(diagonal.T, N - np.arange(D), strict=True):
        assert stats.kstest(squares, stats.chi2(freedom).cdf).pvalue > P_VALUE
    total = (np.float64(factor) ** 2).sum((1, 2))
    assert stats.kstest(total, stats.chi2(D * N).cdf).pvalue > P_VALUE


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_the_population_loss_is_the_mean_over_sequences() -> None:
    # With so short a context every term of the gain is a good part of the loss.
    task, number = dynsim.Regression(4, 6), 200_000
    M = 2 * np.eye(4) + np.random.default_rng(2).normal(size=(4, 4))
    batch = jax.jit(lambda key: task.draw(key, number))(jax.random.key(3))
    batch = jax.tree.map(np.asarray, batch)
    errors = (batch.y - ((batch.beta @ M) * batch.x).sum(1)) ** 2
    want, sampling = float(jax.jit(task.loss_of)(M)), float(errors.std()) / number**0.5
    assert 5 * sampling < 0.05 * want
    assert abs(float(errors.mean()) - want) < 5 * sampling
    white = dynsim.Regression(3, 10, spectrum=dynsim.WhiteSpectrum())
    # All of tr Lambda is unexplained by an output of zero.
    assert float(jax.jit(white.loss_of)(np.zeros((3, 3)))) == 3


@pytest.mark.usefixtures("x64")
def test_what_is_learned_is_the_share_of_the_matrix_of_least_loss() -> None:
    """Of unequal eigenvalues; components in two stages are those above one half."""
    task = dynsim.Regression(4, 6)
    best = np.diag(1 / np.asarray(task.eigenvalues * task.gain))
    gradient = jax.jit(jax.grad(task.loss_of))(best)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)
    shares = np.array([1.0, 0.6, 0.5, 0.0])
    found = learned(jnp.asarray(best * shares + 0.3 * (1 - np.eye(4))), task)
    np.testing.assert_allclose(found, shares, rtol=1e-12)
    assert stage(found) == 2
    # More than half of the first and the last one alone.
    assert stage(jnp.array([0.51, 0.5, 0.49, 0.9])) == 2


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_observables_and_the_start_are_those_of_numpy(attention: Any) -> None:
    """Weights start independent and normal, those of a network as those of merged heads."""
    spectrum = dynsim.GivenSpectrum([1.5, 0.7, 0.2])
    task = dynsim.Regression(3, 7, spectrum=spectrum, heads=200, scale=0.3, attention=attention)
    key = jax.random.key(5)
    params = jax.jit(lambda key: task.init(key))(key)
    for leaf in jax.tree.leaves(params):
        entries = np.asarray(leaf, float).ravel() / 0.3
        # Six standard errors of mean and variance.
        assert abs(entries.mean()) < 6 / entries.size**0.5
        assert abs(entries.var() - 1) < 6 * (2 / entries.size) ** 0.5
    if isinstance(params, Network):
        merged = jax.jit(dynsim.MergedHeads().init, static_argnums=(0, 1))(200, 3, key, 0.3)
        np.testing.assert_array_equal(params.W.reshape(200, 3, 3), merged.U)
        np.testing.assert_array_equal(params.v, merged.v)

    @jax.jit
    def observed(params: model.Model) -> dict:
        return {name: f(*task.snapshot(params)) for name, f in task.observables().items()}

    found = observed(params)
    first = np.float64(next(getattr(params, n) for n in ("W", "U", "k") if hasattr(params, n)))
    each = np.einsum("hra,hrb->hab", first, params.q) if hasattr(params, "q") else first
    M = np.einsum("h,hab->ab", np.float64(params.v), each.reshape(200, 3, 3))
    squares = first.reshape(200, -1) ** 2
    s = np.array([1.5, 0.7, 0.2])
    gain = 1 + (1 + s.sum() / s) / 7
    shares = np.diag(M) * s * gain
    want = {
        # E[S^2] = diag(s^2 gain) acts on the rows, Lambda on the columns.
        "loss": s.sum()
        - 2 * np.trace(np.diag(s**2) @ M)
        + np.trace(np.diag(s**2 * gain) @ M @ np.diag(s) @ M.T),
        "learned": shares,
        "stage": (shares > 0.5).sum(),
        "off_diagonal": 1 - (np.diag(M) ** 2).sum() / (M**2).sum(),
        "values": params.v,
        # Less the squares of a head's other weights, of its keys alone if queries are apart.
        "imbalance": params.v**2 - squares.sum(1),
        "matrix": M,
    }
    assert {*found} == {*want}
    for name, value in want.items():
        # Sums of 200 terms in float32.
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    share = jax.jit(lambda M: off_diagonal(M))
    zero = np.zeros((3, 3), np.float32)
    assert float(share(zero)) == 0
    assert not jax.grad(share)(zero).any()
    # Whatever the scale.
    assert float(share(np.float32(1e-3 * M))) == pytest.approx(want["off_diagonal"], rel=1e-4)


@pytest.mark.parametrize(
    "attention", [pytest.param(ATTENTIONS[0], marks=pytest.mark.full), ATTENTIONS[1]]
)
def test_descent_conserves_the_imbalance_to_first_order_in_its_rate(attention: Any) -> None:
    task, drift = dynsim.Regression(heads=4, scale=0.7, attention=attention), {}
    for eta in (0.02, 0.01):
        steps = round(4 / eta)
        run = dynsim.train(
            task, dynsim.sgd(eta), jax.random.key(0), steps=steps,
            batch=math.inf, times=[0, steps], record=("imbalance", "loss"), dtype="float64",
        )  # fmt: skip
        drift[eta] = np.abs(run["imbalance"][1] - run["imbalance"][0]).max()
        assert run["loss"][1] < 0.7 * run["loss"][0]
    # Half the rate, half the drift, but for terms of second order, a few per cent here.
    assert drift[0.02] / drift[0.01] == pytest.approx(2, rel=0.1)
    assert 0 < drift[0.01] < 0.02


@pytest.mark.parametrize("data", [pytest.param("fresh", marks=pytest.mark.full), "fixed"])
def test_training_on_sequences_learns_components_in_order(data: str) -> None:
    task = dynsim.Regression(scale=0.2, data=data)
    run = dynsim.train(task, dynsim.sgd(0.5), jax.random.key(1), steps=400, batch=128)
    assert run.status == Status.OK
    assert np.asarray(run["stage"])[-1] >= 2
    first, second = (np.argmax(np.asarray(run["learned"])[:, d] > 0.5) for d in (0, 1))
    assert 0 < first < second
    # The loss of a fixed batch never rises under small steps, that of fresh ones does.
    assert (np.diff(run["batch_loss"]) < 1e-6).all() == (data == "fixed")


def test_spectra_have_their_eigenvalues() -> None:
    for spectrum, eigenvalues, white in (
        (dynsim.WhiteSpectrum(), [1, 1, 1], True),
        (dynsim.GivenSpectrum([2.0, 2.0, 2.0]), [2, 2, 2], True),
        (dynsim.GivenSpectrum([2.0, 2.0, 1.9]), [2, 2, 1.9], False),
        (dynsim.LinearSpectrum(), np.array([3, 2, 1]) / 6, False),
        (dynsim.GeometricSpectrum(1.0), np.full(3, 1 / 3), False),
        (dynsim.GeometricSpectrum(0.5), np.array([4, 2, 1]) / 7, False),
    ):
        assert spectrum.is_white == white
        found = dynsim.Regression(3, 9, spectrum=spectrum).eigenvalues
        np.testing.assert_allclose(found, eigenvalues, rtol=1e-6)
