"""Predicting the next token of a text: what a transformer is trained on, and what is measured."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dynsim import checks
from dynsim.classes.corpus import sample_windows
from dynsim.decoding import Count, Index, Size, SizeOrNone, Tokens
from dynsim.problem.base import Problem
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.transformer import model
from dynsim.transformer.corpora import SyntheticText
from dynsim.transformer.model import Layers, Positions, Transformer, TransformerSpec
from dynsim.transformer.observables import OBSERVABLES, TextSnapshot
from dynsim.transformer.task import Text, TextSource


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

    `dynsim.train` reads the corpus, and a problem from `build` has read it.

    Raises:
        ValueError: naming the field, its value and what is allowed; for a text without a window,
            and for prompts that are longer than one.

    Example:
        >>> problem = dynsim.LanguageModel(dynsim.SyntheticText(), layers=2)
        >>> run = dynsim.train(problem, dynsim.sgd(0.5), jax.random.key(0), steps=20, batch=20)
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
        """The transformer's shape."""
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

    def build(self, rule: Any) -> "LanguageModel":
        """The problem with the text of its corpus."""
        found = self.corpus.build(self.length, self.prompt)
        return self if found is self.corpus else dataclasses.replace(self, corpus=found)

    @property
    def held_out(self) -> Int[Array, "N T1"]:
        """The windows of T + 1 tokens on which is measured, evenly spaced over the held-out text
        and the same for all runs."""
        tokens = jnp.asarray(self.text.held_out)
        starts = np.linspace(0, len(tokens) - self.length - 1, self.num_held_out).astype(int)
        return tokens[jnp.asarray(starts[:, None] + np.arange(self.length + 1)[None])]

    def init(self, key: PRNGKeyArray) -> Transformer:
        """Random weights, as of `Transformer`."""
        return Transformer(self.sizes, key)

    def draw(self, key: PRNGKeyArray, batch: int) -> Int[Array, "N T1"]:
        """So many windows of T + 1 tokens, drawn uniformly from all of the training text."""
        return sample_windows(jnp.asarray(self.text.train), key, batch, self.length)

    def loss(self, params: Transformer, data: Int[Array, "N T1"]) -> Float[Array, ""]:
        """Mean cross entropy, nat per token."""
        return model.loss(params, data)

    def snapshot(self, params: Transformer) -> tuple[TextSnapshot]:
        """What observables are functions of, of weights without a record before."""
        return self._snapshot_after(params, None)[0]

    def _snapshot_after(
        self, params: Transformer, before: Float[Array, "N L H T T"] | None
    ) -> tuple[tuple[TextSnapshot], Float[Array, "N L H T T"]]:
        """The same after a record with the maps `before`, and the maps of this one."""
        held_out = self.held_out
        logits, maps = jax.vmap(params.forward)(held_out[:, :-1])
        losses = model.token_losses(logits, held_out[:, 1:])
        prompts = jax.vmap(params.attention)(jnp.asarray(self.text.prompts))
        before = maps if before is None else before
        return (TextSnapshot(params, losses, maps, before, prompts),), maps

    def observables(self) -> dict[str, Callable[[TextSnapshot], Array]]:
        """Those of `dynsim.transformer.observables`."""
        return OBSERVABLES

    def divergence_limit(self) -> float:
        """`DIVERGED_LOSS` times log M, the loss of guessing uniformly."""
        return DIVERGED_LOSS * math.log(self.text.vocabulary)
