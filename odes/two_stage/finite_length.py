r"""Errors of the loss at finite length, and noise of gradients, by sampling (arXiv:2502.20681).

Given a query, an output is a mean over L - 1 independent tokens, with exact mean and standard
deviation (`output_moments`). The loss with the mean alone is off by O(1/L); with Gaussian outputs
of that standard deviation, as `odes.two_stage.loss` has them, by O(1/L^2), because only the third
cumulant is left out. `loss_errors` measures both on drawn contexts, and `gradient_variances`
measures the variance of which `odes.two_stage.thresholds.gradient_variance` is the closed form.
All of this is ours.

Example:
    >>> rng = np.random.default_rng(0)
    >>> weights = odes.two_stage.ReducedState(2.0, 1.5, *[0.3] * 5).sample(8, rng)
    >>> loss_errors = odes.two_stage.finite_length.loss_errors
    >>> errors = loss_errors(dynsim.Prompts(8), weights, "K1", (9, 33), 1000, rng)
    >>> errors.gaussian.shape
    (2,)
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from dynsim.precision import precision
from dynsim.two_stage.model import PQ, data_loss
from dynsim.two_stage.task import PromptBatch, Prompts, sample_prompts
from odes.two_stage.loss import D, ReducedState, losses, normal_nodes

PROMPTS_AT_ONCE = 256
"""Number of prompts whose gradients are in memory at once."""
PARTS = 200
"""Number of parts in which contexts are drawn, to save memory."""
Scores = Float[np.ndarray, " N"]
"""A score for each of N queries."""
Component = Literal["P", "Q"]


class LossErrors(NamedTuple):
    """Relative error of three approximations of a loss at each length; too large is positive.

    Attributes:
        infinite: (L,) with the mean of the output over contexts only.
        gaussian: (L,) with the variance of the output at finite L as well.
        reduced: (L,) with that variance from seven numbers, which assume isotropic blocks.
        error: (L,) sampling error of all three.
    """

    infinite: Float[np.ndarray, " L"]
    gaussian: Float[np.ndarray, " L"]
    reduced: Float[np.ndarray, " L"]
    error: Float[np.ndarray, " L"]


def loss_errors(
    task: Prompts,
    weights: PQ,
    loss: Literal["K1", "K2"],
    lengths: Sequence[int],
    samples: int,
    rng: np.random.Generator,
) -> LossErrors:
    """Measure the errors of K1 or K2 for given weights.

    A token enters only through its score, whose exact distribution needs at most two random
    numbers.

    Args:
        task: the prompts; their length is replaced by each of `lengths`.
        weights: W and V, (d, d).
        loss: the loss.
        lengths: tokens L of a prompt, the query included.
        samples: number of queries, with a context each.
        rng: draws the contexts.
    """
    # Importing it takes as long as a third of dynsim, which every command would wait for.
    from scipy.special import expit

    query = sample_prompts(dataclasses.replace(task, length=2), jax.random.key(0), samples)
    y = np.asarray(query.labels[:, -1], np.float64)
    component: Component = "P" if loss == "K1" else "Q"
    tokens, U, width = (
        (query.P, weights.W, task.s1) if component == "P" else (query.Q, weights.V, task.s2)
    )
    score = np.asarray(tokens[:, -1], np.float64) @ np.asarray(U).T
    along, across = score[:, 0], width * np.linalg.norm(score[:, 1:], axis=1)
    with precision("float64"):
        state = ReducedState.from_weights(weights.W, weights.V)
    f, of_f = normal_nodes(12)
    rows = []
    for length in lengths:
        here = dataclasses.replace(task, length=length)
        mean, sd = output_moments(here, along, across, component)
        parts = zip(*(np.array_split(score, PARTS) for score in (along, across)), strict=True)
        outputs = np.concatenate([sample_outputs(here, a, b, component, rng) for a, b in parts])
        # E ln(1 + e^{-M}) over normal outputs of the exact mean and deviation.
        margin, shift = y * mean, y * (outputs - mean)
        gaussian = np.logaddexp(0, -(margin[:, None] + sd[:, None] * f)) @ of_f
        plain = np.logaddexp(0, -margin)
        gate = expit(-margin)
        # A control variate: terms of mean zero that remove most of the sampling error.
        known = -gate * shift + gate * (1 - gate) * (shift**2 - sd**2) / 2
        left = gaussian - (np.logaddexp(0, -(margin + shift)) - known)
        true = np.mean(gaussian - left)
        with precision("float64"):
            both = [losses(state, here, finite_length=finite) for finite in (True, False)]
            reduced, without = (float(getattr(of_state, loss)) for of_state in both)
        # On the same queries: of the reduction, only the effect of the variance is tested.
        plain_error = plain.mean() - true
        judged = (plain_error, left.mean(), plain_error + reduced - without)
        rows.append(np.array([*judged, left.std() / math.sqrt(samples)]) / true)
    return LossErrors(*np.array(rows).T)


def output_moments(
    task: Prompts, along: Scores, across: Scores, component: Component
) -> tuple[Scores, Scores]:
    """Return the exact mean and standard deviation over contexts of the output of each query.

    Args:
        task: the prompts.
        along: (N,) score U x_L of the query along the first axis.
        across: (N,) norm of the score along the other axes, times the standard deviation of tokens.
        component: the component of the output.
    """
    # Moments of one token's relu(s) y; tokens come in pairs of which the ReLU passes one.
    if component == "P":
        mean = np.asarray(task.mean_margin) * along / 2
        square = (task.mean_square_margin * along**2 + across**2) / 2
    else:
        with precision("float64"):
            mean = -np.asarray(D(task.r * along, across)) / 4
        square = across**2 / 2 + (task.r * along) ** 2 / 4
    # The output is the sum of L - 1 tokens over L.
    deviation = np.sqrt(task.kappa / task.length * np.asarray(square - mean**2))
    return np.asarray(task.kappa * mean), deviation


def sample_outputs(
    task: Prompts, along: Scores, across: Scores, component: Component, rng: np.random.Generator
) -> Scores:
    """Draw a context for each query and return the outputs; arguments as in `output_moments`."""
    # A token enters through its score only, which needs no more than two random numbers.
    shape = (len(along), task.length - 1)
    labels = rng.choice([-1.0, 1.0], size=shape)
    if component == "P":
        signal = labels * (task.gamma0 + task.s1 * np.abs(rng.normal(size=shape)))
    else:
        signal = np.where(labels > 0, 0, task.r * rng.choice([-1.0, 1.0], size=shape))
    scores = signal * along[:, None] + across[:, None] * rng.normal(size=shape)
    return (labels * np.maximum(scores, 0)).sum(1) / task.length


def gradient_variances(task: Prompts, weights: PQ, prompts: int) -> ReducedState:
    """Return the variance over prompts of the gradient with respect to an entry of each block of
    the reduced state, measured on `prompts` prompts, rounded down to a multiple of 256."""

    def gradient(prompt: PromptBatch) -> PQ:
        one = jax.tree.map(lambda leaf: leaf[None], prompt)
        return jax.grad(data_loss)(weights, task.coupling, one)

    # Sums of G and of G^2 over parts of the prompts, in float64.
    gradients = jax.jit(jax.vmap(gradient))
    sums = np.zeros((2, 2, task.d, task.d))
    count = max(prompts // PROMPTS_AT_ONCE, 1)
    for key in jax.random.split(jax.random.key(1), count):
        of_prompts = gradients(sample_prompts(task, key, PROMPTS_AT_ONCE))
        G = np.stack([of_prompts.W, of_prompts.V]).astype(np.float64)
        sums += [G.sum(1), (G**2).sum(1)]
    mean, square = sums / (count * PROMPTS_AT_ONCE)
    W, V = square - mean**2
    blocks = (W[0, 0], V[0, 0], W[0, 1:], W[1:], V[0, 1:], V[1:, 0], V[1:, 1:])
    return ReducedState(*map(np.mean, blocks))
