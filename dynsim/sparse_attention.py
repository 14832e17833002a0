"""Retrieval of one token among many (Zucchet, D'Angelo, Lampinen, Chan, arXiv:2505.17863).

A sequence has T tokens x_t ~ N(0, I/d) in R^d, and the target is W* x_T; columns of W* have length
1. The last B tokens are copies of x_T. With probability p, x_T is one fixed token, here e_0,
which has length 1 as well. W* has the entries +-1/sqrt(d): for SGD they do not matter, and for
Adam, which acts on single weights, all of them then move alike.

Attention has scores a that do not depend on the tokens, and the read-out is linear (section 3 and
appendix A): y = W sum_t softmax(a)_t x_t, trained on L = (1/2) E|y - W* x_T|^2 from W = 0, a = 0.

A batch enters the update only through few numbers. With attention c on the other tokens, which are
independent and Gaussian, the output depends on x_T and S = sum_t c_t x_t ~ N(0, |c|^2/d I); the
derivative of the loss with respect to c_t is g . x_t, with g a function of x_T and S. Given S these
are Gaussian, with mean c_t g . S/|c|^2 and covariance |g|^2/d (I - c c^T/|c|^2), so their mean over
the batch needs one normal number per token [ours]. A step therefore draws 2 N d + T numbers instead
of N T d; see `RetrievalDraw`.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.decoding import Share, Size
from dynsim.precision import AnyArray, Number
from dynsim.problem.base import Problem


class Scored(eqx.Module):
    """Weights of the model.

    Attributes:
        W: (d, d) read-out.
        a: (T,) attention scores.
    """

    W: Float[AnyArray, "d d"]
    a: Float[AnyArray, " T"]


class RetrievalDraw(NamedTuple):
    """The random numbers that represent N sequences in a step: (N, d) x_T, and standard normal
    numbers, (N, d) for S and (T - B,) for the derivatives with respect to attention."""

    last: Float[Array, "N d"]
    others: Float[Array, "N d"]
    slopes: Float[Array, " O"]


class RetrievalSnapshot(NamedTuple):
    """Observables at one time, from training or theory.

    Attributes:
        loss: population loss.
        attention: attention on all copies of x_T together.
        readout: w = <W*, W>/|W*|_F.
        gap: Da, mean score of the copies minus that of the others.
    """

    loss: Real[Number, ""]
    attention: Real[Number, ""]
    readout: Real[Number, ""]
    gap: Real[Number, ""]


class Retrieval(Problem):
    """Attention scores and a read-out that learn to retrieve one token of many.

    Attributes:
        length: sequence length T.
        d: dimension of a token.
        B: number of copies of the relevant token.
        p: probability that the relevant token is one fixed token.
        batch_loss: mean square error / 2 of the next batch.
        attention: attention on the token that matters.
        readout: weights along W*.
        gap: score of the token that matters above the others.

    Raises:
        ValueError: naming the field, unless d >= 2, 1 <= B < length and 0 <= p <= 1.

    Example:
        >>> task = dynsim.Retrieval(length=32, d=16)
        >>> run = dynsim.train(task, dynsim.sgd(1.0), jax.random.key(0), steps=10)
    """

    NAME: ClassVar = "sparse_attention"
    RECORD: ClassVar = RetrievalSnapshot._fields
    RUN_DEFAULTS: ClassVar = {"rule": {"kind": "sgd", "eta": 1.0}, "steps": 1200}

    length: Size = 64
    d: Size = 64
    B: Size = 1
    p: Share = 0.0

    def __check_init__(self) -> None:
        checks.integer("length", self.length, 2)
        checks.integer("d", self.d, 2)
        if self.B >= self.length:
            raise ValueError(f"B = {self.B}: must be less than length = {self.length}")

    @property
    def T(self) -> int:
        """The sequence length."""
        return self.length

    @property
    def moments(self) -> tuple[Real[Number, "*#P"], Real[Number, "*#P"]]:
        r"""Second moments of the last token, :math:`\tilde\sigma` and :math:`\sigma` of eq. 17:

        .. math::

            \mathbb E[x_0^2] = p + \frac{1-p}{d}, \qquad
            \mathbb E[x_i^2] = \frac{1-p}{d}, \quad i > 0.
        """
        rest = (1 - self.p) / self.d
        return self.p + rest, rest

    def target(self, dtype: str = "float32") -> Float[Array, "d d"]:
        """:math:`W^*`, the same at every call."""
        # A constant of the program, because every step and record uses it. With x64 enabled, JAX
        # would draw other signs.
        with jax.ensure_compile_time_eval(), jax.enable_x64(False):
            key = jax.random.key(0, impl="threefry2x32")
            signs = np.asarray(jax.random.rademacher(key, (self.d, self.d), "float32"))
        return jnp.asarray(signs, dtype) / self.d**0.5

    def init(self, key: PRNGKeyArray) -> Scored:
        """All weights zero."""
        del key
        return Scored(jnp.zeros((self.d, self.d)), jnp.zeros(self.T))

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, "N T d"]:
        """Draw a batch of sequences."""
        last_key, other_key = jax.random.split(key)
        last = self._last(last_key, batch)
        others = jax.random.normal(other_key, (batch, self.T - self.B, self.d)) / self.d**0.5
        # The copies are at the end; their order does not matter to the model.
        copies = jnp.broadcast_to(last[:, None], (batch, self.B, self.d))
        return jnp.concatenate([others, copies], axis=1)

    def loss(self, params: Scored, data: Float[Array, "N T d"]) -> Float[Array, ""]:
        """Mean of |y - W* x_T|^2 / 2 over the sequences."""
        attended = jnp.einsum("t,ntd->nd", jax.nn.softmax(params.a), data)
        target = self.target(data.dtype.name)
        error = attended @ jnp.asarray(params.W).T - data[:, -1] @ target.T
        return jnp.mean(jnp.sum(error**2, axis=1)) / 2

    def population_loss(self, params: Scored) -> Float[Array, ""]:
        """The mean loss over all sequences."""
        W = jnp.asarray(params.W)
        weight = jax.nn.softmax(jnp.asarray(params.a))
        others, copies = weight[: -self.B], jnp.sum(weight[-self.B :])
        # x_T has the second moment `fixed` along e_0, and `rest` along all other axes.
        fixed, rest = self.moments
        errors = jnp.sum((copies * W - self.target(W.dtype.name)) ** 2, axis=0)
        noise = jnp.sum(others**2) * jnp.sum(W**2) / self.d
        return (noise + fixed * errors[0] + rest * jnp.sum(errors[1:])) / 2

    def batches(
        self, key: PRNGKeyArray, steps: int, batch: int
    ) -> Callable[[Array], RetrievalDraw]:
        """Return the random numbers that replace the sequences of each step."""
        del steps

        def numbers(k: Array) -> RetrievalDraw:
            last, other, slope = jax.random.split(jax.random.fold_in(key, k), 3)
            return RetrievalDraw(
                self._last(last, batch),
                jax.random.normal(other, (batch, self.d)),
                jax.random.normal(slope, (self.T - self.B,)),
            )

        return numbers

    def loss_and_gradient(self, params: Scored, data: PyTree) -> tuple[Float[Array, ""], Scored]:
        """Loss and gradient on sequences, or on a `RetrievalDraw`, with the same distribution as on
        that number of sequences."""
        if not isinstance(data, RetrievalDraw):
            return super().loss_and_gradient(params, data)
        num, root = data.last.shape[0], self.d**0.5
        weight, W = jax.nn.softmax(jnp.asarray(params.a)), jnp.asarray(params.W)
        # Attention on the other tokens.
        c = weight[: -self.B]
        norm = jnp.sqrt(jnp.sum(c**2))
        S = norm / root * data.others
        attended = S + jnp.sum(weight[-self.B :]) * data.last
        error = attended @ W.T - data.last @ self.target(W.dtype.name).T
        # dL/dc_t = g . x_t: of the other tokens a Gaussian with mean c_t g . S/|c|^2, and noise
        # that is orthogonal to c; of the copies exactly.
        g = error @ W
        along = c / norm
        noise = data.slopes - along * jnp.sum(along * data.slopes)
        of_others = along / norm * jnp.sum(g * S) + jnp.sqrt(jnp.sum(g**2)) / root * noise
        of_copies = jnp.full(self.B, jnp.sum(g * data.last), of_others.dtype)
        by_weight = jnp.concatenate([of_others, of_copies]) / num
        # Through the softmax to the scores.
        slope = weight * (by_weight - jnp.sum(weight * by_weight))
        loss = jnp.mean(jnp.sum(error**2, axis=1)) / 2
        return loss, Scored(error.T @ attended / num, slope)

    def snapshot(self, params: Scored) -> tuple[RetrievalSnapshot]:
        """The values of all observables."""
        a, W = jnp.asarray(params.a), jnp.asarray(params.W)
        return (
            RetrievalSnapshot(
                self.population_loss(params),
                jnp.sum(jax.nn.softmax(a)[-self.B :]),
                jnp.sum(self.target(W.dtype.name) * W) / self.d**0.5,
                jnp.mean(a[-self.B :]) - jnp.mean(a[: -self.B]),
            ),
        )

    def observables(self) -> dict[str, Callable[[RetrievalSnapshot], Array]]:
        """The scalars `loss`, `attention`, `readout` and `gap`, as in `RetrievalSnapshot`."""
        return {name: lambda s, name=name: getattr(s, name) for name in RetrievalSnapshot._fields}

    def divergence_limit(self) -> float:
        """A thousand times the loss at W = 0, which is 1/2."""
        return 500.0

    def _last(self, key: PRNGKeyArray, num: int) -> Float[Array, "N d"]:
        token_key, fixed_key = jax.random.split(key)
        drawn = jax.random.normal(token_key, (num, self.d)) / self.d**0.5
        # Drawn for each sequence, and selected afterwards, so that p may be traced.
        is_fixed = jax.random.uniform(fixed_key, (num, 1)) < jnp.asarray(self.p, drawn.dtype)
        return jnp.where(is_fixed, jnp.zeros((1, self.d)).at[0, 0].set(1), drawn)
