"""Training of a decoder-only transformer on a text, and observables of its attention maps.

The entropy of attention is that of each row (a query's weights on the keys up to it) in nat,
averaged over heads, windows and the queries from `FIRST_QUERY` on. The query at position t has
t + 1 keys, so uniform attention has the mean of log(t + 1), `LanguageModel.uniform_entropy`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dynsim import checks
from dynsim.classes.corpus import sample_windows
from dynsim.decoding import Count, Index, Size, SizeOrNone, Tokens
from dynsim.precision import AnyArray
from dynsim.problem.base import Problem
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.rule import UpdateRule
from dynsim.transformer.network import (
    Layers,
    Positions,
    Transformer,
    TransformerSpec,
    loss,
    token_losses,
)
from dynsim.transformer.task import SyntheticText, Text, TextSource

FIRST_QUERY = 1
"""First position that is averaged over. Position 0 has a single key and hence zero entropy, which
would reduce the mean by the factor (T - 1) / T."""


class TextSnapshot(eqx.Module):
    """A transformer at one time, on N held-out windows and P prompts.

    Attributes:
        model: the transformer.
        losses: (N, T) cross entropy of each held-out token in nat.
        maps: (N, L, H, T, T) attention on the held-out windows.
        before: (N, L, H, T, T) the same at the previous record, or at the start for the first one.
        prompt_maps: (P, L, H, T', T') attention on the prompts.
    """

    model: Transformer
    losses: Float[Array, "N T"]
    maps: Float[Array, "N L H T T"]
    before: Float[Array, "N L H T T"]
    prompt_maps: Float[Array, "P L H T2 T2"]


def layer_entropy(maps: Float[AnyArray, "N L H T T"]) -> Float[Array, " L"]:
    """Mean entropy (nat) of the rows of each layer."""
    return _by_layer(-jnp.sum(xlogy(maps, maps), axis=-1))


def layer_top(maps: Float[AnyArray, "N L H T T"]) -> Float[Array, " L"]:
    """Mean largest weight of the rows of each layer: 1 if all attention is on one key."""
    return _by_layer(jnp.max(maps, axis=-1))


def layer_change(
    before: Float[AnyArray, "N L H T T"], maps: Float[AnyArray, "N L H T T"]
) -> Float[Array, " L"]:
    """Mean total variation distance between rows at two times, by layer: the fraction of attention,
    in [0, 1], that moved to other keys."""
    return _by_layer(jnp.sum(jnp.abs(maps - before), axis=-1) / 2)


def _by_layer(rows: Float[Array, "N L H T"]) -> Float[Array, " L"]:
    return jnp.mean(rows[..., FIRST_QUERY:], axis=(0, 2, 3))


OBSERVABLES: dict[str, Callable[[TextSnapshot], Array]] = {
    "loss": lambda s: jnp.mean(s.losses),
    "entropy": lambda s: jnp.mean(layer_entropy(s.maps)),
    "layer_entropy": lambda s: layer_entropy(s.maps),
    "top": lambda s: jnp.mean(layer_top(s.maps)),
    "layer_top": lambda s: layer_top(s.maps),
    "change": lambda s: jnp.mean(layer_change(s.before, s.maps)),
    "layer_change": lambda s: layer_change(s.before, s.maps),
    "attention": lambda s: s.prompt_maps,
}
"""All observables by name: loss in nat per held-out token; entropy, largest weight, and change
since the previous record of attention on held-out text; and the maps on the prompts."""


class LanguageModel(Problem):
    """A decoder-only transformer that predicts the next token of a text.

    Attributes:
        corpus: the text, or where to read it.
        layers: number of transformer blocks, 1 to 6.
        heads: number of attention heads per block.
        width: width of the residual stream.
        mlp: hidden units of the MLP of each block; 0 for no MLP.
        positions: learned position embeddings, or none.
        length: tokens T of a window.
        num_held_out: number of held-out windows to measure on.
        prompt: position in the held-out text of a corpus where the prompt starts whose attention is
            recorded. A `Text` has its own prompts.
        batch_loss: cross entropy of the next batch [nat].
        entropy: entropy of attention on held-out text [nat].
        layer_entropy: entropy of attention on held-out text by layer [nat].
        top: largest weight of a row of attention.
        change: attention that moved since the record before.

    `dynsim.train` reads the corpus; `build` returns a problem whose corpus has been read.

    Raises:
        ValueError: naming the field, its value and what is allowed; for a text shorter than a
            window, and for prompts longer than one.

    Example:
        >>> problem = dynsim.LanguageModel(dynsim.SyntheticText(), layers=2)
        >>> run = dynsim.train(problem, dynsim.sgd(0.5), jax.random.key(0), steps=5, batch=4)
    """

    NAME: ClassVar = "transformer"
    RECORD: ClassVar = ("loss", "entropy", "layer_entropy", "change")
    RUN_DEFAULTS: ClassVar = {"rule": {"kind": "sgd", "eta": 1.0}, "batch": 20}

    corpus: TextSource = SyntheticText()
    layers: Layers = 1
    heads: Size = 2
    width: Size = 32
    mlp: SizeOrNone = 64
    positions: Positions = "learned"
    length: Tokens = 35
    num_held_out: Count = 64
    prompt: Index = 0

    def __check_init__(self) -> None:
        checks.kind("corpus", self.corpus, TextSource)
        if not isinstance(self.corpus, Text):
            self._sizes_with(2)  # The vocabulary is not known yet.
            return
        # A window needs the token after its last one.
        length = self.sizes.length
        for name in ("train", "held_out"):
            if len(getattr(self.text, name)) <= length:
                raise ValueError(
                    f"{name}: has {len(getattr(self.text, name))} tokens, must have more than "
                    f"length = {length}"
                )
        if self.text.prompts.shape[1] > length:
            raise ValueError(
                f"prompts: have {self.text.prompts.shape[1]} tokens, must have at most "
                f"length = {length}"
            )

    @property
    def sizes(self) -> TransformerSpec:
        """The shape of the transformer."""
        return self._sizes_with(self.text.vocabulary)

    def _sizes_with(self, vocabulary: int) -> TransformerSpec:
        own = ("length", "layers", "heads", "width", "mlp", "positions")
        return TransformerSpec(vocabulary, **{name: getattr(self, name) for name in own})

    @property
    def text(self) -> Text:
        """The text; `ValueError` for a corpus that has not been read."""
        if not isinstance(self.corpus, Text):
            raise ValueError(f"corpus = {self.corpus}: has not been read; call `build` first")
        return self.corpus

    def build(self, rule: UpdateRule) -> "LanguageModel":
        """Return the problem with its corpus read."""
        text = self.corpus.build(self.length, self.prompt)
        return self if text is self.corpus else dataclasses.replace(self, corpus=text)

    @property
    def uniform_entropy(self) -> float:
        """The entropy of uniform attention over the allowed keys [nat], the upper bound of the
        observable `entropy`."""
        return float(np.log(np.arange(FIRST_QUERY + 1, self.length + 1)).mean())

    @property
    def held_out(self) -> Int[Array, "N T1"]:
        """The windows of T + 1 tokens on which observables are measured, evenly spaced in the
        held-out text and the same for all runs."""
        tokens = jnp.asarray(self.text.held_out)
        # Evenly spaced, for windows from all parts of the text.
        starts = np.linspace(0, len(tokens) - self.length - 1, self.num_held_out).astype(int)
        return tokens[jnp.asarray(starts[:, None] + np.arange(self.length + 1)[None])]

    def init(self, key: PRNGKeyArray) -> Transformer:
        """Random weights, as drawn by `Transformer`."""
        return Transformer(self.sizes, key)

    def draw(self, key: PRNGKeyArray, batch: int) -> Int[Array, "N T1"]:
        """Draw a batch of windows of T + 1 tokens uniformly from the training text."""
        return sample_windows(jnp.asarray(self.text.train), key, batch, self.length)

    def loss(self, params: Transformer, data: Int[Array, "N T1"]) -> Float[Array, ""]:
        """Mean cross entropy in nat per token."""
        return loss(params, data)

    def snapshot(self, params: Transformer) -> tuple[TextSnapshot]:
        """The arguments of the observables, for weights without a previous record."""
        return self.snapshot_after(params, None)[0]

    def snapshot_after(
        self, params: Transformer, before: Float[Array, "N L H T T"] | None
    ) -> tuple[tuple[TextSnapshot], Float[Array, "N L H T T"]]:
        """Return the snapshot after a record with the maps `before`, and the maps of this one."""
        held_out = self.held_out
        # Losses and maps of one forward pass.
        logits, maps = jax.vmap(params.forward)(held_out[:, :-1])
        losses = token_losses(logits, held_out[:, 1:])
        prompts = jax.vmap(params.attention)(jnp.asarray(self.text.prompts))
        # At the first record nothing has changed.
        before = maps if before is None else before
        return (TextSnapshot(params, losses, maps, before, prompts),), maps

    def observables(self) -> dict[str, Callable[[TextSnapshot], Array]]:
        """The observables of `dynsim.transformer.model`."""
        return OBSERVABLES

    def divergence_limit(self) -> float:
        """`DIVERGED_LOSS` times log M, the loss of uniform guessing."""
        return DIVERGED_LOSS * math.log(self.text.vocabulary)
