"""Keeping and dropping singular directions, against weights whose directions are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynsim import Prompts
from dynsim.two_stage.model import PQ, attend
from dynsim.two_stage.observables import rank_curves
from dynsim.two_stage.task import sample_prompts


@pytest.mark.usefixtures("x64")
def test_directions_are_kept_and_dropped_in_the_order_of_their_singular_values() -> None:
    """W = diag(3, 1), V = diag(2, 0.5) in turned bases: the order is W, V, W, V."""
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(2, 2)))[0] for _ in range(4)]
    parts = {
        "W": [s * np.outer(bases[0][:, i], bases[1][:, i]) for i, s in enumerate((3.0, 1.0))],
        "V": [s * np.outer(bases[2][:, i], bases[3][:, i]) for i, s in enumerate((2.0, 0.5))],
    }
    weights = PQ(jnp.asarray(sum(parts["W"])), jnp.asarray(sum(parts["V"])))
    sample = jax.jit(lambda key: sample_prompts(Prompts(2, 7), key, 50, "float64"))
    batch, attended = sample(jax.random.key(0)), jax.jit(attend)
    found = rank_curves(weights, batch, ("K1", "K2"))
    np.testing.assert_allclose(found.singular, [3, 2, 1, 0.5], rtol=1e-12)
    np.testing.assert_array_equal(found.block, [0, 1, 0, 1])
    y = np.asarray(batch.labels)[:, -1]

    def loss(name: str, kept: list[int]) -> float:
        U = sum((parts[name][i] for i in kept), np.zeros((2, 2)))
        x = batch.P if name == "W" else batch.Q
        return np.log1p(np.exp(-y * np.asarray(attended(U, x, batch.labels)))).mean()

    kept_W, kept_V = [[], [0], [0], [0, 1], [0, 1]], [[], [], [0], [0], [0, 1]]
    left_W, left_V = [[0, 1], [1], [1], [], []], [[0, 1], [0, 1], [1], [1], []]
    for k in range(5):
        assert found.kept["K1"][k] == pytest.approx(loss("W", kept_W[k]), rel=1e-10)
        assert found.kept["K2"][k] == pytest.approx(loss("V", kept_V[k]), rel=1e-10)
        assert found.dropped["K1"][k] == pytest.approx(loss("W", left_W[k]), rel=1e-10)
        assert found.dropped["K2"][k] == pytest.approx(loss("V", left_V[k]), rel=1e-10)


def test_an_unknown_observable_is_named() -> None:
    batch = jax.jit(lambda key: sample_prompts(Prompts(2, 3), key, 4))(jax.random.key(0))
    names = ("K1", "accuracy_P")
    none = rank_curves(PQ(jnp.eye(2), jnp.eye(2)), batch, names, largest=0)
    # Without any direction the output is zero, which is right about no label.
    np.testing.assert_allclose(none.kept["K1"], [np.log(2)], rtol=1e-6)
    assert none.kept["accuracy_P"].tolist() == [0]
    assert none.dropped["K1"].shape == (1,)
    with pytest.raises(ValueError, match="largest = -1: must be an integer >= 0"):
        rank_curves(PQ(jnp.eye(2), jnp.eye(2)), batch, "K1", largest=-1)
    with pytest.raises(ValueError, match="record = 'loss': must be one of K1"):
        rank_curves(PQ(jnp.eye(2), jnp.eye(2)), batch, ("loss",))
