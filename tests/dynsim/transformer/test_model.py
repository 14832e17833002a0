"""The transformer: its forward pass against NumPy, causality, attention maps, bad sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynsim.transformer.network import Transformer, TransformerSpec, loss

M, T, d, H = 11, 7, 6, 2
forward = jax.jit(Transformer.forward)


def numpy_norm(x, part):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * part.weight + part.bias


def numpy_forward(model, tokens):
    """Logits and maps, written with loops over heads and positions."""
    x = model.embedding.weight[tokens]
    if model.positions is not None:
        x = x + model.positions.weight[: len(tokens)]
    maps = np.zeros((len(model.blocks), H, len(tokens), len(tokens)))
    for layer, block in enumerate(model.blocks):
        y = numpy_norm(x, block.attention_norm)
        part, size = block.attention, d // H
        q, k, v = (y @ linear.weight.T for linear in (part.query, part.key, part.value))
        mixed = np.zeros_like(x)
        for h in range(H):
            own = slice(h * size, (h + 1) * size)
            for t in range(len(tokens)):
                weight = np.exp(k[: t + 1, own] @ q[t, own] / np.sqrt(size))
                maps[layer, h, t, : t + 1] = weight / weight.sum()
                mixed[t, own] = maps[layer, h, t, : t + 1] @ v[: t + 1, own]
        x = x + mixed @ part.output.weight.T
        if block.mlp is not None:
            hidden = numpy_norm(x, block.mlp_norm) @ block.mlp.up.weight.T + block.mlp.up.bias
            x = x + np.maximum(hidden, 0) @ block.mlp.down.weight.T + block.mlp.down.bias
    out = model.unembedding
    return numpy_norm(x, model.norm) @ out.weight.T + out.bias, maps


def random_model(sizes: TransformerSpec, seed: int) -> Transformer:
    """Normal weights throughout, so that norms and biases do something too."""
    shapes = jax.eval_shape(lambda: Transformer(sizes, jax.random.key(0), "float64"))
    leaves, structure = jax.tree.flatten(shapes)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(structure, [rng.normal(size=leaf.shape) for leaf in leaves])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("layers", "mlp", "positions"),
    [(1, 0, "none"), (1, 5, "learned"), (2, 5, "none"), (2, 0, "learned")],
)
def test_forward_is_numpys(layers: int, mlp: int, positions: str) -> None:
    sizes = TransformerSpec(M, T, layers, H, d, mlp, positions)
    model = random_model(sizes, layers)
    window = np.random.default_rng(1).integers(0, M, T + 1)
    tokens = window[:-1]
    logits, maps = numpy_forward(model, tokens)
    of_next = logits[range(T), window[1:]] - np.log(np.exp(logits).sum(-1))
    model = jax.tree.map(jnp.asarray, model)
    found = forward(model, tokens)
    np.testing.assert_allclose(found[0], logits, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found[1], maps, rtol=1e-10, atol=1e-12)
    value = jax.jit(loss)(model, window[None])
    assert float(value) == pytest.approx(-of_next.mean(), rel=1e-10)
    shorter, _ = numpy_forward(jax.tree.map(np.asarray, model), tokens[:4])
    found = forward(model, tokens[:4])
    np.testing.assert_allclose(found[0], shorter, rtol=1e-10, atol=1e-10)


def test_sizes_by_default() -> None:
    assert TransformerSpec(5) == TransformerSpec(5, 35, 1, 2, 32, 0, "learned")

    sizes = TransformerSpec(M, T, 1, H, d, positions="none")
    model = jax.eval_shape(lambda: Transformer(sizes, jax.random.key(0)))
    # Without positions a text may be longer than in training.
    assert jax.eval_shape(Transformer.__call__, model, jnp.zeros(8, int)).shape == (8, M)
