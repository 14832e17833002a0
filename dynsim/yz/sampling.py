"""Sampling of sequences, as tokens or as token counts only.

Both invert the cumulative distribution of the class on the same uniform numbers, so counts and
tokens drawn with the same key agree, and a model without positions can be trained on either. Counts
avoid storing (B, T) tokens.
"""

import functools
import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Real

from dynsim import checks, numeric
from dynsim.classes.task import SequenceClasses, Task
from dynsim.classes.tasks import SynSmall
from dynsim.decoding import Length
from dynsim.precision import AnyArray, on_cpu
from dynsim.problem.base import Problem
from dynsim.training import loop
from dynsim.training.rule import UpdateRule, of_layer
from dynsim.yz.model import Examples, weights


class SupportExamples(eqx.Module):
    """A weighted set of examples, with counts only on the support of their classes.

    Attributes:
        classes: (E,) class of each example.
        counts: (S, E) counts of each token of `task.support[classes]`; may be integers.
        weight: (E,) weight of each example in the loss; sums to 1. None for equal weights.
    """

    classes: Int[AnyArray, " E"]
    counts: Real[AnyArray, "S E"]
    weight: Float[AnyArray, " E"] | None = None

    def astype(self, dtype: DTypeLike) -> "SupportExamples":
        """Return the examples with counts and weights in `dtype`."""
        return SupportExamples(self.classes, self.counts.astype(dtype), weights(self, dtype))

    def dense(self, task: SequenceClasses) -> Examples:
        """Return the same examples with counts over the whole vocabulary."""
        return Examples(self.classes, on_vocabulary(task, self, self.counts).T, self.weight)


@functools.partial(jax.jit, inline=True)
def on_vocabulary(
    task: SequenceClasses, examples: SupportExamples, values: Float[Array, "S E"]
) -> Float[Array, "M E"]:
    """Extend values on the support of each example's class to all tokens, with zeros elsewhere."""
    tokens = task.support[examples.classes].T
    zeros = jnp.zeros((task.M, values.shape[1]), values.dtype)
    return zeros.at[tokens, jnp.arange(values.shape[1])].set(values, unique_indices=True)


MAX_TOKENS = 2**30
"""Largest number of tokens in a batch; each needs a uniform number of 4 bytes and a comparison."""


def check_tokens(batch: int, length: int | float) -> None:
    """Raise `ValueError` for batches with too many tokens to draw."""
    tokens = batch * length
    if MAX_TOKENS < tokens < math.inf:
        raise ValueError(
            f"batch = {batch}, length = {length}: a step would draw {tokens} tokens, at most "
            f"{MAX_TOKENS} are possible; batch = inf and length = inf are their limits"
        )


@functools.partial(jax.jit, inline=True, static_argnames="batch")
def sample_classes(task: SequenceClasses, key: PRNGKeyArray, batch: int) -> Int[Array, " B"]:
    """Draw (B,) classes from the prior."""
    prior = jnp.asarray(task.prior, jnp.float32)
    return _invert(jnp.cumsum(prior)[None, :], jax.random.uniform(key, (batch,), jnp.float32))


@functools.partial(jax.jit, inline=True, static_argnames=("batch", "length"))
def sample_tokens(
    task: SequenceClasses, key: PRNGKeyArray, batch: int, length: int
) -> tuple[Int[Array, " B"], Int[Array, "B T"]]:
    """Draw classes (B,) and token ids (B, T) of `batch` sequences of `length` T, the query last."""
    classes, u = _uniform(task, key, batch, length)
    position = _invert(_cumulative(task)[classes][:, None, :], u)
    context = jnp.take_along_axis(task.support[classes], position, axis=1)
    query = task.query[classes]
    return classes, jnp.concatenate([context, query[:, None]], axis=1)


@functools.partial(jax.jit, inline=True, static_argnames=("batch", "length", "dtype"))
def sample_support(
    task: SequenceClasses, key: PRNGKeyArray, batch: int, length: int, dtype: str = "float32"
) -> SupportExamples:
    """Draw `batch` sequences of `length` T as counts of their T - 1 contextual tokens, on the
    support of each class."""
    return support_sampler(task, batch, length, dtype)(key)


@functools.partial(jax.jit, inline=True, static_argnames=("batch", "length", "dtype"))
def sample_counts(
    task: SequenceClasses, key: PRNGKeyArray, batch: int, length: int, dtype: str = "float32"
) -> Examples:
    """Draw the examples of `sample_support`, with counts over the whole vocabulary."""
    return counts_sampler(task, batch, length, dtype)(key)


def support_sampler(
    task: SequenceClasses, batch: int, length: int, dtype: str
) -> Callable[[PRNGKeyArray], SupportExamples]:
    """Return `sample_support` as a function of the key, with the work for all keys done once."""
    # All u are below the last boundary, which is 1.
    inner = _cumulative(task)[:, :-1]

    def draw(key: PRNGKeyArray) -> SupportExamples:
        classes, u = _uniform(task, key, batch, length)
        # below[b, s]: number of tokens of sequence b among the first s + 1 of its support.
        below = _below(u, inner[classes])
        # Below the first token there are none, and below the last one all T - 1.
        edges = jnp.pad(below, ((0, 0), (1, 1)), constant_values=((0, 0), (0, length - 1)))
        counts = jnp.diff(edges, axis=1).astype(dtype)
        return SupportExamples(classes, counts.T, jnp.full(batch, 1 / batch, dtype))

    return draw


def counts_sampler(
    task: SequenceClasses, batch: int, length: int, dtype: str, *, scatter: bool = True
) -> Callable[[PRNGKeyArray], Examples]:
    """Return `sample_counts` as a function of the key. Without `scatter` the same counts come from
    comparisons with the boundaries of all tokens, which suits accelerators."""
    if scatter:
        on_support = support_sampler(task, batch, length, dtype)
        return lambda key: on_support(key).dense(task)
    # The upper boundary of each token; a token that the class lacks repeats the one before it.
    tokens_up_to = jnp.cumsum(jnp.asarray(task.probs) > 0, axis=1)
    upper = jnp.pad(_cumulative(task), ((0, 0), (1, 0)))
    boundaries = jnp.take_along_axis(upper, tokens_up_to, axis=1)

    def draw(key: PRNGKeyArray) -> Examples:
        classes, u = _uniform(task, key, batch, length)
        below = _below(u, boundaries[classes])
        counts = jnp.diff(below, axis=1, prepend=0).astype(dtype)
        return Examples(classes, counts, jnp.full(batch, 1 / batch, dtype))

    return draw


def examples_from_tokens(
    task: SequenceClasses, tokens: Int[AnyArray, "*steps B T"], labels: Int[AnyArray, "*steps B"]
) -> Examples:
    """Convert recorded batches to `Examples` for `dynsim.train(..., data=...)`.

    Args:
        tokens: (steps, B, T) token ids, the query last. There may be any leading axes.
        labels: (steps, B) next-token ids.

    Returns:
        Examples with the leading axes of `labels`, as NumPy arrays, with counts in float32.

    Raises:
        ValueError: if a label is not a next token of the task, a query is not the one of its class,
            a token is out of range, or the shapes do not match.
    """
    tokens, labels = numeric.integers("tokens", tokens), numeric.integers("labels", labels)
    if tokens.shape[:-1] != labels.shape or tokens.shape[-1] < 2:
        raise ValueError(
            f"tokens: shape {tokens.shape}: must be that of labels, {labels.shape}, and T >= 2"
        )
    if tokens.min() < 0 or tokens.max() >= task.M:
        bad = tokens.min() if tokens.min() < 0 else tokens.max()
        raise ValueError(f"tokens: found {bad}: must be token ids in [0, {task.M})")
    matches = labels[..., None] == np.asarray(task.next_token)
    if not matches.any(-1).all():
        bad = labels[~matches.any(-1)].ravel()[0]
        raise ValueError(f"labels: found {bad}: must be one of the next tokens {task.next_token}")
    classes = matches.argmax(-1)
    if (tokens[..., -1] != np.asarray(task.query)[classes]).any():
        raise ValueError("tokens: the last token of a sequence must be the query of its class")
    context = tokens[..., :-1].reshape(-1, tokens.shape[-1] - 1)
    counts = np.zeros((context.shape[0], task.M), np.float32)
    # Not `counts[...] += 1`, which would count a repeated token once.
    np.add.at(counts, (np.arange(context.shape[0])[:, None], context), 1)
    return Examples(
        classes.astype(np.int32),
        counts.reshape(*labels.shape, task.M),
        np.full(labels.shape, 1 / labels.shape[-1]),
    )


def _uniform(
    task: SequenceClasses, key: PRNGKeyArray, batch: int, length: int
) -> tuple[Int[Array, " B"], Float[Array, "B L"]]:
    # Tokens and counts both follow from these numbers, so that they agree for a key.
    key_class, key_context = jax.random.split(key)
    u = jax.random.uniform(key_context, (batch, length - 1), jnp.float32)
    return sample_classes(task, key_class, batch), u


def _below(u: Float[Array, "B L"], boundaries: Float[Array, "B S"]) -> Int[Array, "B S"]:
    return jnp.sum(u[:, None, :] < boundaries[:, :, None], axis=2, dtype=jnp.int32)


def _cumulative(task: SequenceClasses) -> Float[Array, "K S"]:
    on_support = jnp.take_along_axis(jnp.asarray(task.probs), task.support, axis=1)
    cumulative = jnp.cumsum(on_support.astype(jnp.float32), axis=1)
    # Dividing makes the last boundary exactly 1, so that rounding cannot select a token of
    # probability zero, which only pads the row.
    return cumulative / cumulative[:, -1:]


def _invert(cumulative: Float[Array, "... S"], u: Float[Array, "..."]) -> Int[Array, "..."]:
    """Return the index of the first boundary above u. The last one, about 1, is not compared."""
    inner = cumulative[..., :-1]
    return jnp.sum(u[..., None] >= inner, axis=-1, dtype=jnp.int32)


class OnClasses(Problem):
    """A problem on sequence classes, whose weights `Y` and `Z` have separate learning rates.

    Attributes:
        task: the sequence classes, or a description of them.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
    """

    GROUPS: ClassVar = ("Y", "Z")
    RUN_DEFAULTS: ClassVar = {
        "rule": {"kind": "sgd", "eta": {"Y": 1.0, "Z": 0.1}},
        "batch": 128,
    }

    task: Task = SynSmall()
    length: Length = eqx.field(static=True, default=128)

    def __check_init__(self) -> None:
        checks.kind("task", self.task, Task)

    @property
    def classes(self) -> SequenceClasses:
        """The sequence classes of the task."""
        return self.task.build()

    def build(self, rule: UpdateRule) -> Problem:
        """Return the problem on the classes that the task describes."""
        # The task may hold the numbers of many runs, which a constructor would not accept.
        built = eqx.tree_at(
            lambda problem: problem.task,
            self,
            self.classes,
            is_leaf=lambda part: isinstance(part, Task),
        )
        built.__check_init__()
        return built

    def draw(self, key: PRNGKeyArray, batch: int) -> Examples:
        """Draw sequences as token counts, or as token probabilities if T is infinite."""
        if math.isinf(self.length):
            classes = sample_classes(self.classes, key, batch)
            return Examples(classes, jnp.asarray(self.classes.probs)[classes])
        examples = self.sampler(batch)(key)
        return Examples(examples.classes, examples.counts)

    def batches(
        self, key: PRNGKeyArray, steps: int | None, batch: int
    ) -> Callable[[Array], Examples | Int[Array, " N"]]:
        """Like `draw`, but only the classes if T is infinite."""
        key_of_step = loop.keys_of_steps(key, steps)
        if math.isinf(self.length):
            return lambda k: sample_classes(self.classes, key_of_step(k), batch)
        sample = self.sampler(batch)

        def batch_of_step(k: Array) -> Examples:
            examples = sample(key_of_step(k))
            return Examples(examples.classes, examples.counts)

        return batch_of_step

    def examples(self, data: Examples | Int[Array, " N"], dtype: str) -> Examples:
        """Convert a batch, in either form, to examples with weights in `dtype`."""
        if isinstance(data, Examples):
            return data.astype(dtype)
        # Classes alone: each enters once, weighted by its frequency in the batch.
        K = self.classes.K
        number = jnp.zeros(K, jnp.int32).at[data].add(1)
        return Examples(
            jnp.arange(K), jnp.asarray(self.classes.probs, dtype), number.astype(dtype) / data.size
        )

    def groups(self, params: PyTree) -> PyTree:
        """The groups "Y" and "Z"."""
        return of_layer(params)

    def sampler(self, batch: int) -> Callable[[PRNGKeyArray], Examples]:
        """Return a function that draws a batch of sequences of finite length from a key. Override
        it for examples of another kind, such as counts weighted by position."""
        check_tokens(batch, self.length)
        size = batch, int(self.length), "float32"
        return counts_sampler(self.classes, *size, scatter=on_cpu())
