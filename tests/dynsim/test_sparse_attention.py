"""Retrieval's sequences and population loss: their law in NumPy."""

import jax
import numpy as np
import pytest

import dynsim
from dynsim.problem.build import narrowed
from dynsim.sparse_attention import Scored

TASK = dynsim.Retrieval(7, 5, B=3, p=0.2)
NUMBER = 20_000


def draw(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.jit(lambda key: TASK.draw(key, NUMBER))(key), np.float64)


def test_targets_are_signs_of_length_one() -> None:
    target = np.asarray(TASK.target())
    np.testing.assert_allclose(np.abs(target), 5**-0.5, rtol=1e-6)
    assert 0 < (target > 0).sum() < 25
    # The same ones in either precision: results that are stored stay those of the task.
    signs = jax.random.rademacher(jax.random.key(0, impl="threefry2x32"), (5, 5), "float32")
    np.testing.assert_array_equal(np.sign(target), signs)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(np.sign(TASK.target("float64")), signs)


def test_the_last_token_is_copied_and_in_some_sequences_the_fixed_one() -> None:
    x = draw(jax.random.key(0))
    assert x.shape == (NUMBER, 7, 5)
    np.testing.assert_array_equal(x[:, -3:], np.broadcast_to(x[:, -1:], (NUMBER, 3, 5)))
    is_fixed = (x[:, -1] == [1, 0, 0, 0, 0]).all(1)
    # Five standard errors here and below; the variance of n normal numbers has sqrt(2 / n).
    assert is_fixed.mean() == pytest.approx(0.2, abs=5 * (0.16 / NUMBER) ** 0.5)
    for tokens in (x[:, :4].reshape(-1, 5), x[~is_fixed, -1]):
        assert np.abs(tokens.mean(0)).max() < 5 * (1 / 5 / len(tokens)) ** 0.5
        covariance = 5 * np.cov(tokens.T)
        np.testing.assert_allclose(covariance, np.eye(5), atol=5 * (2 / len(tokens)) ** 0.5)
    # Copies are independent of the others, and sequences of each other.
    across = np.mean(x[:, 3] * x[:, -1], axis=0)
    assert np.abs(across).max() < 5 * (1 / 5 * 0.36 / NUMBER) ** 0.5
    np.testing.assert_allclose(TASK.moments, [0.2 + 0.8 / 5, 0.8 / 5], rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_losses_and_observables_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    params = Scored(rng.normal(size=(5, 5)), rng.normal(size=7))
    x, target = draw(jax.random.key(1)), np.asarray(TASK.target("float64"))
    weight = np.exp(params.a) / np.exp(params.a).sum()
    missed = np.einsum("t,ntd->nd", weight, x) @ params.W.T - x[:, -1] @ target.T
    each = (missed**2).sum(1) / 2

    @jax.jit
    def found(params: Scored) -> tuple:
        (snapshot,) = TASK.snapshot(params)
        observed = {name: f(snapshot) for name, f in TASK.observables().items()}
        return TASK.loss(params, narrowed(x, "float64")), observed

    batch, observed = found(params)
    assert float(batch) == pytest.approx(each.mean(), rel=1e-12)
    error = each.std() / NUMBER**0.5
    assert 5 * error < 0.05 * each.mean()
    assert float(observed["loss"]) == pytest.approx(each.mean(), abs=5 * error)
    want = {
        "attention": weight[-3:].sum(),
        "readout": (target * params.W).sum() / np.linalg.norm(target),
        "gap": params.a[-3:].mean() - params.a[:4].mean(),
    }
    assert {*observed} == {"loss", *want}
    for name, value in want.items():
        assert float(observed[name]) == pytest.approx(value, rel=1e-12)
