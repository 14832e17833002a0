"""A decoder-only transformer that predicts the next token of a text, and its attention maps.

It has pre-norm blocks of causal self-attention with an optional MLP, and no dropout, because
observables of a run should not depend on additional randomness.
"""

import dataclasses
import math
from typing import Annotated, Literal

import annotated_types as at
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dynsim import decoding
from dynsim.decoding import Size, SizeOrNone, Tokens
from dynsim.precision import DType

Positions = Literal["learned", "none"]
Layers = Annotated[int, at.Ge(1), at.Le(6)]


@dataclasses.dataclass(frozen=True)
class TransformerSpec:
    """Shape of a transformer; hashable, so that it can be a static argument.

    Attributes:
        vocabulary: number of tokens M.
        length: maximal number of tokens T.
        layers: blocks, 1 to 6.
        heads: attention heads per block; divides `width`.
        width: size d of the residual stream.
        mlp: hidden units of a block's MLP; 0 leaves the MLP out.
        positions: learned embeddings of positions, or none.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> sizes = dynsim.TransformerSpec(vocabulary=50, layers=2, width=16)
        >>> sizes.heads
        2
    """

    vocabulary: Tokens
    length: Tokens = 35
    layers: Layers = 1
    heads: Size = 2
    width: Size = 32
    mlp: SizeOrNone = 0
    positions: Positions = "learned"

    def __post_init__(self) -> None:
        decoding.check_annotations(self)
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads}: must divide width = {self.width}")


class Attention(eqx.Module):
    """Causal self-attention with H heads, without biases; a key bias would have no effect."""

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, sizes: TransformerSpec, key: PRNGKeyArray, dtype: DType) -> None:
        self.query, self.key, self.value, self.output = (
            eqx.nn.Linear(sizes.width, sizes.width, use_bias=False, dtype=dtype, key=k)
            for k in jax.random.split(key, 4)
        )
        self.heads = sizes.heads

    def __call__(self, x: Float[Array, "T d"]) -> tuple[Float[Array, "T d"], Float[Array, "H T T"]]:
        """Return the contribution to the residual stream, and the maps (head, query, key)."""
        T = x.shape[0]
        q, k, v = (
            jax.vmap(part)(x).reshape(T, self.heads, -1)
            for part in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("thi,shi->hts", q, k) / math.sqrt(q.shape[-1])
        # Keys up to the query: a token must not see the one that it predicts.
        allowed = jnp.tril(jnp.ones((1, T, T), bool))
        maps = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("hts,shi->thi", maps, v).reshape(T, -1)
        return jax.vmap(self.output)(mixed), maps


class MLP(eqx.Module):
    """One hidden layer of ReLU units."""

    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, sizes: TransformerSpec, key: PRNGKeyArray, dtype: DType) -> None:
        up, down = jax.random.split(key)
        self.up = eqx.nn.Linear(sizes.width, sizes.mlp, dtype=dtype, key=up)
        self.down = eqx.nn.Linear(sizes.mlp, sizes.width, dtype=dtype, key=down)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.down(jax.nn.relu(self.up(x)))


class Block(eqx.Module):
    """x <- x + attention(norm(x)), then x <- x + mlp(norm(x)) if there is an MLP."""

    attention_norm: eqx.nn.LayerNorm
    attention: Attention
    mlp_norm: eqx.nn.LayerNorm | None
    mlp: MLP | None

    def __init__(self, sizes: TransformerSpec, key: PRNGKeyArray, dtype: DType) -> None:
        attention, mlp = jax.random.split(key)
        self.attention_norm = eqx.nn.LayerNorm(sizes.width, dtype=dtype)
        self.attention = Attention(sizes, attention, dtype)
        self.mlp_norm = eqx.nn.LayerNorm(sizes.width, dtype=dtype) if sizes.mlp else None
        self.mlp = MLP(sizes, mlp, dtype) if sizes.mlp else None

    def __call__(self, x: Float[Array, "T d"]) -> tuple[Float[Array, "T d"], Float[Array, "H T T"]]:
        added, maps = self.attention(jax.vmap(self.attention_norm)(x))
        x = x + added
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(x))
        return x, maps


class Transformer(eqx.Module):
    r"""Next-token logits of a sequence. All leaves are weights.

    It is built from a `TransformerSpec` and a threefry key. Initially embeddings are N(0, 1),
    matrices and biases uniform on :math:`\pm 1/\sqrt{\text{inputs}}`, and norms the identity
    (equinox's defaults).

    Example:
        >>> sizes = dynsim.TransformerSpec(vocabulary=50, width=16)
        >>> dynsim.Transformer(sizes, jax.random.key(0))(jnp.arange(5)).shape
        (5, 50)
    """

    embedding: eqx.nn.Embedding
    positions: eqx.nn.Embedding | None
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    unembedding: eqx.nn.Linear

    def __init__(self, sizes: TransformerSpec, key: PRNGKeyArray, dtype: DType = "float32") -> None:
        token, position, out, *blocks = jax.random.split(key, 3 + sizes.layers)
        width, M = sizes.width, sizes.vocabulary
        self.embedding = eqx.nn.Embedding(M, width, dtype=dtype, key=token)
        self.positions = None
        if sizes.positions == "learned":
            self.positions = eqx.nn.Embedding(sizes.length, width, dtype=dtype, key=position)
        self.blocks = tuple(Block(sizes, k, dtype) for k in blocks)
        self.norm = eqx.nn.LayerNorm(width, dtype=dtype)
        self.unembedding = eqx.nn.Linear(width, M, dtype=dtype, key=out)

    def __call__(self, tokens: Int[Array, " T"]) -> Float[Array, "T M"]:
        """Logits of the token after each position, computed from the tokens up to it."""
        return self.forward(tokens)[0]

    def attention(self, tokens: Int[Array, " T"]) -> Float[Array, "L H T T"]:
        """Attention maps (layer, head, query, key); rows sum to 1, keys after the query get 0."""
        return self.forward(tokens)[1]

    def forward(
        self, tokens: Int[Array, " T"]
    ) -> tuple[Float[Array, "T M"], Float[Array, "L H T T"]]:
        """Return logits and attention maps together.

        Raises:
            ValueError: for more tokens than there are learned positions.
        """
        x = self.embedding.weight[tokens]
        if self.positions is not None:
            # JAX would read the last position again in place of an error.
            if len(tokens) > len(self.positions.weight):
                raise ValueError(
                    f"tokens: got {len(tokens)}; must be at most the "
                    f"{len(self.positions.weight)} learned positions"
                )
            x = x + self.positions.weight[: len(tokens)]
        attention = []
        for block in self.blocks:
            x, maps = block(x)
            attention.append(maps)
        return jax.vmap(self.unembedding)(jax.vmap(self.norm)(x)), jnp.stack(attention)


def token_losses(logits: Float[Array, "*B M"], targets: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Return the cross entropy of each target token in nat."""
    # Not the logarithm of a softmax, which may underflow.
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def loss(model: Transformer, windows: Int[Array, "B T1"]) -> Float[Array, ""]:
    """Return the mean cross entropy (nat per token) over B windows of T + 1 tokens: the last T
    tokens are predicted from those before them."""
    logits = jax.vmap(model)(windows[:, :-1])
    return jnp.mean(token_losses(logits, windows[:, 1:]))
