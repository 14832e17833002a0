"""The attention layer in ordinary parameters (Scan and Snap, section 2); see `dynsim.qkv.model`."""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.decoding import NotNegative, Size
from dynsim.precision import AnyReal
from dynsim.problem.base import Measured
from dynsim.qkv.model import (
    Embedded,
    Normalisation,
    Placement,
    forward,
    loss,
    measure,
    positional_counts,
)
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.yz import finite_length, sampling
from dynsim.yz.model import Examples
from dynsim.yz.observables import DEFAULT_RECORD, MEASURED, Snapshot
from dynsim.yz.sampling import OnClasses

Embedding = Literal["identity", "orthogonal", "gaussian"]
WEIGHTS = ("U", "W_Q", "W_K", "W_V", "D")
"""Names of the weights."""


class QKV(OnClasses):
    r"""The attention layer in U, W_Q, W_K, W_V and D.

    Learning rates are given for "Y" (U, W_V and D) and "Z" (W_Q and W_K).

    Attributes:
        task: the sequence classes, or a description of them.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        width: width d of the embedding.
        heads: number of heads.
        scale: W_Q and W_K start normal with standard deviation scale / sqrt(d).
        value_scale: the same for W_V, and for an untied decoder.
        embedding: initial embedding matrix U.
        tied: use U as the decoder.
        normalisation: kind of normalisation.
        placement: where to normalise: theory (X^T b) or practice (the attended embedding).
        residual: add the embedding of the query.
        train_embedding: train U as well.
        head_width: width of a head; that of the embedding if omitted.
        slope: slope of a positional prior on the attention logits of sampled sequences, minus slope
            times the distance from the query (ALiBi); none if omitted. Observables, which describe
            infinite length, ignore it.
        frozen: names of additional weights that are not trained.

    An embedding is the "identity" (d = M), "orthogonal" (a random U with U U^T = I, d >= M) or
    "gaussian" (normal with standard deviation 1/sqrt(d)). With value_scale = 0 an untied decoder
    never moves. With `batch=math.inf` it descends the population loss, for finite `length` to first
    order in 1/T. Runs count as diverged above 10 log M.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> problem = dynsim.QKV(dynsim.SynSmall(), width=40)
        >>> rule = dynsim.sgd({"Y": 1.0, "Z": 0.1})
        >>> run = dynsim.train(problem, rule, jax.random.key(0), steps=10, batch=32)
    """

    NAME: ClassVar = "qkv"
    OBSERVABLES_FROM: ClassVar = ("yz",)
    RECORD: ClassVar = DEFAULT_RECORD
    REFUSED: ClassVar = MEASURED.refused

    width: Size = 64
    heads: Size = 1
    scale: NotNegative = 1.0
    value_scale: NotNegative = 1.0
    embedding: Embedding = "orthogonal"
    tied: bool = True
    normalisation: Normalisation = "l2"
    placement: Placement = "theory"
    residual: bool = False
    train_embedding: bool = False
    head_width: Size | None = None
    slope: NotNegative | None = None
    frozen: tuple[str, ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        super().__check_init__()
        if isinstance(self.task, SequenceClasses):
            # The vocabulary of other tasks is known once they are built.
            M = self.task.M
            if self.embedding == "identity" and self.width != M:
                raise ValueError(
                    f"width = {self.width}: embedding = 'identity' needs the vocabulary size {M}"
                )
            if self.embedding == "orthogonal" and 0 < self.width < M:
                raise ValueError(
                    f"width = {self.width}: embedding = 'orthogonal' needs at least the vocabulary "
                    f"size {M}; narrower embeddings can be 'gaussian'"
                )
        if (self.normalisation, self.placement, self.width) == ("layer", "practice", 1):
            raise ValueError("width = 1: normalisation = 'layer' of the embedding needs at least 2")
        for name in self.frozen:
            checks.choice("frozen", name, WEIGHTS)
        # An untied decoder alone is a linear model, not attention.
        if {"W_Q", "W_K", "W_V"} <= set(self.frozen) and not self.train_embedding:
            raise ValueError(f"frozen = {self.frozen}: leaves nothing but a decoder to train")
        if self.slope is not None and math.isinf(self.length):
            raise ValueError(f"slope = {self.slope}: positions need sequences of finite length")

    @property
    def untrained(self) -> frozenset[str]:
        """Names of all weights that are not trained."""
        return frozenset(self.frozen) | (set() if self.train_embedding else {"U"})

    def init(self, key: PRNGKeyArray) -> Embedded:
        """Random weights, as the fields describe them."""
        M, d, H = self.classes.M, self.width, self.heads
        r = d if self.head_width is None else self.head_width
        keys: dict[str, PRNGKeyArray] = dict(
            zip(WEIGHTS, jax.random.split(key, len(WEIGHTS)), strict=True)
        )

        def normal(name: str, shape: tuple[int, ...], scale: AnyReal) -> Float[Array, "..."]:
            # A key for each name: weights of one name do not depend on the settings of others.
            unit = jax.random.normal(keys[name], shape)
            return unit * jnp.asarray(scale, unit.dtype) * jnp.asarray(d**-0.5, unit.dtype)

        if self.embedding == "identity":
            U = jnp.eye(d)
        elif self.embedding == "orthogonal":
            U = jax.random.orthogonal(keys["U"], d)[:M]
        else:
            U = normal("U", (M, d), 1.0)
        return Embedded(
            U,
            normal("W_Q", (H, d, r), self.scale),
            normal("W_K", (H, d, r), self.scale),
            normal("W_V", (H, d, d), self.value_scale),
            None if self.tied else normal("D", (M, d), self.value_scale),
            self.normalisation,
            self.placement,
            self.residual,
        )

    def loss(self, params: Embedded, data: Examples | Int[Array, " N"]) -> Float[Array, ""]:
        """Mean cross entropy of the next token in nat."""
        examples = self.examples(data, jnp.result_type(params.U).name)
        return loss(params, self.classes, examples)

    def population_loss(self, params: Embedded) -> Float[Array, ""]:
        """The loss at infinite batch, to first order in 1/T; see `dynsim.yz.finite_length`."""
        context = finite_length.contextual(self.length, jnp.result_type(params.U).name)
        losses = finite_length.by_counts(params, self.classes, forward)
        return finite_length.mean_loss(losses, self.classes, context)

    def check_population(self) -> None:
        """Raise `ValueError` if sequences are too short for the expansion in 1/T, or have a
        positional prior, which it does not cover."""
        finite_length.check_length(self.classes, self.length)
        if self.slope is not None:
            raise ValueError(f"slope = {self.slope}: positions need a finite batch")

    def groups(self, params: Embedded) -> PyTree:
        """The groups "Y" (U, W_V and D) and "Z" (W_Q and W_K)."""
        return _named(params, lambda name: "Z" if name in ("W_Q", "W_K") else "Y")

    def is_frozen(self, params: Embedded) -> PyTree:
        """Which weights are frozen."""
        return _named(params, self.untrained.__contains__)

    def snapshot(self, params: Embedded) -> tuple[SequenceClasses, Snapshot]:
        """The classes and the quantities from which observables are computed."""
        return self.classes, measure(self.classes, params)

    def observables(self) -> dict[str, Measured]:
        """The observables of `dynsim.yz.observables`."""
        return dict(MEASURED.functions)

    def divergence_limit(self) -> float:
        """Ten times the loss of uniform guessing."""
        return DIVERGED_LOSS * math.log(self.classes.M)

    def sampler(self, batch: int) -> Callable[[PRNGKeyArray], Examples]:
        """Draw token counts, or with a `slope` counts weighted by position."""
        if self.slope is None:
            return super().sampler(batch)

        def sample(key: PRNGKeyArray) -> Examples:
            task, slope = self.classes, jnp.asarray(self.slope)
            classes, tokens = sampling.sample_tokens(task, key, batch, int(self.length))
            return Examples(classes, positional_counts(tokens, slope, task.M))

        return sample


def _named(params: Embedded, value: Callable[[str], str | bool]) -> PyTree:
    """Replace each of the weights by `value` of its name."""
    names = [name for name in WEIGHTS if getattr(params, name) is not None]
    return eqx.tree_at(
        lambda params: [getattr(params, name) for name in names], params, list(map(value, names))
    )
