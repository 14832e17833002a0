r"""In-context linear regression, linear attention (Zhang, Singh, Latham, Saxe, arXiv:2501.16265).

A sequence has N pairs (x_n, y_n = w^T x_n), x ~ N(0, Lambda), with its own w ~ N(0, I), and a query
x_q, for which the model predicts y_q = w^T x_q (section 2). Everything is written in the eigenbasis
of Lambda: the data, Gaussian starts and gradient descent do not depend on the basis; only Adam
does. The model is trained on the mean of :math:`(y_q - \hat y_q)^2`. The flow of the paper is

.. math::

    \tau \frac{dW}{dt} = -\frac12 \frac{\partial L}{\partial W},

hence :math:`\tau = 1/(2\eta)` steps. The paper's code sums over tokens instead of averaging. The
output is homogeneous in the weights, so this only rescales the rate and the starting weights.
"""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.decoding import Positive, Size
from dynsim.linear_icl import model
from dynsim.linear_icl.model import Attention, Model, Moments, SeparateHeads, Sequences
from dynsim.linear_icl.spectrum import GivenSpectrum, LinearSpectrum, Spectrum
from dynsim.precision import AnyArray, Number
from dynsim.problem.base import Problem

Data = Literal["fresh", "fixed"]


class RegressionSnapshot(NamedTuple):
    """Weights at one time, and the matrix M of their output beta^T M x_q."""

    task: "Regression"
    params: Model
    M: Float[Array, "D D"]


class Regression(Problem):
    r"""In-context linear regression with linear attention.

    Attributes:
        D: dimension of x.
        N: number of pairs (x, y) in the context; 31 is the official code's sequence of 32 tokens.
        spectrum: eigenvalues of the covariance of x.
        attention: merged or separate key and query, or the equivalent linear network.
        heads: number of heads H, or of hidden units of the network.
        scale: standard deviation of the starting weights.
        data: fresh sequences at every step, or one fixed set, as in the official code.
        batch_loss: mean square error of the next batch.
        learned: share of a principal component that is learned.
        stage: principal components learned by half.
        values: value weights.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> task = dynsim.Regression(
        ...     spectrum=dynsim.WhiteSpectrum(), attention=dynsim.MergedHeads(), heads=8
        ... )
        >>> run = dynsim.train(task, dynsim.sgd(0.5), jax.random.key(0), steps=10, batch=256)
    """

    NAME: ClassVar = "linear_icl"
    RECORD: ClassVar = ("loss", "learned", "stage")
    RUN_DEFAULTS: ClassVar = {"rule": {"kind": "sgd", "eta": 0.5}, "steps": 8000, "batch": 256}

    D: Size = 4
    N: Size = 31
    spectrum: Spectrum = LinearSpectrum()
    attention: Attention = SeparateHeads()
    heads: Size = 5
    scale: Positive = 0.02
    data: Data = "fresh"

    def __check_init__(self) -> None:
        checks.kind("spectrum", self.spectrum, Spectrum)
        checks.kind("attention", self.attention, Attention)
        if isinstance(self.spectrum, GivenSpectrum):
            # Other spectra give as many eigenvalues as are needed.
            shape = self.spectrum.eigenvalues.shape
            if shape != (self.D,):
                raise ValueError(f"spectrum: must have D = {self.D} numbers, got shape {shape}")

    @property
    def eigenvalues(self) -> Float[Array, " D"]:
        r"""(D,) eigenvalues :math:`\lambda_d` of :math:`\Lambda`, the covariance of x."""
        return self.spectrum.values(self.D)

    @property
    def trace(self) -> Real[Number, ""]:
        r""":math:`\operatorname{tr} \Lambda = \mathbb E[y_q^2]`, the loss of an output of zero."""
        return self.eigenvalues.sum()

    @property
    def gain(self) -> Float[Array, " D"]:
        r"""(D,) factors due to the finite context,

        .. math::

            g_d = 1 + \frac1N \left( 1 + \frac{\operatorname{tr} \Lambda}{\lambda_d} \right),

        with which eq. 15 becomes
        :math:`\mathbb E[(X X^\top/N)^2] = \operatorname{diag}(\lambda_d^2 g_d)`.
        """
        return 1 + (1 + self.eigenvalues.sum() / self.eigenvalues) / self.N

    def init(self, key: PRNGKeyArray) -> Model:
        """Return independent N(0, scale^2) weights; a network and merged heads start equal for the
        same key."""
        return self.attention.init(self.heads, self.D, key, self.scale)

    def draw(self, key: PRNGKeyArray, batch: int) -> Sequences:
        """Draw a batch of sequences, reduced to the inputs of the models."""
        return model.draw_sequences(self.eigenvalues, self.N, key, batch)

    def batches(
        self, key: PRNGKeyArray, steps: int, batch: int
    ) -> Callable[[Array], Sequences | Moments]:
        """Return fresh sequences, or the moments of a fixed set of them, for each step."""
        if self.data == "fresh":
            return super().batches(key, steps, batch)
        # The loss is quadratic in M, so that all sequences enter by a few moments.
        fixed = Moments.of(self.draw(key, batch))
        return lambda k: fixed

    def loss(self, params: Model, data: Sequences | Moments) -> Float[Array, ""]:
        r"""Mean of :math:`(y_q - \hat y_q)^2` over a batch."""
        # A fixed set of sequences.
        if isinstance(data, Moments):
            return data.loss(params.matrix())
        return jnp.mean((data.y - params.outputs(data)) ** 2)

    def population_loss(self, params: Model) -> Float[Array, ""]:
        """The mean loss over all sequences."""
        return self.loss_of(params.matrix())

    def loss_of(self, M: Float[AnyArray, "D D"]) -> Float[Array, ""]:
        """The loss of M: tr(Lambda) - 2 tr(Lambda^2 M) + tr(E[S^2] M Lambda M^T) with the sample
        covariance S. Eqs. 8 and 14 are its gradient flow."""
        s = self.eigenvalues
        # E[S^2] acts on the rows of M, Lambda on its columns.
        weight = (s**2 * self.gain)[:, None] * s[None, :]
        return jnp.sum(s) - 2 * jnp.sum(jnp.diag(s**2) * M) + jnp.sum(weight * M**2)

    def snapshot(self, params: Model) -> tuple[RegressionSnapshot]:
        """The arguments of the observables."""
        return (RegressionSnapshot(self, params, params.matrix()),)

    def observables(self) -> dict[str, Callable[[RegressionSnapshot], Array]]:
        """`loss` () of the population; `learned` (D,), `stage` () and `off_diagonal` () as the
        functions in this module; `values` (H,) v_i; `imbalance` (H,), conserved by the flow; and
        `matrix` (D, D) M."""
        return {
            "loss": lambda s: s.task.loss_of(s.M),
            "learned": lambda s: learned(s.M, s.task),
            "stage": lambda s: stage(learned(s.M, s.task)),
            "off_diagonal": lambda s: off_diagonal(s.M),
            "values": lambda s: jnp.asarray(s.params.v),
            "imbalance": lambda s: s.params.imbalance(),
            "matrix": lambda s: s.M,
        }

    def divergence_limit(self) -> Real[Number, ""]:
        """A thousand times the loss of an output of zero, because the loss of a single sequence is
        heavy-tailed."""
        return 1e3 * self.trace


def learned(M: Float[AnyArray, "D D"], task: Regression) -> Float[Array, " D"]:
    """M_dd divided by its value lambda_d^-1 g_d^-1 at the fixed points of eq. 18 (D,): 0 before a
    principal component is learned, 1 after."""
    return jnp.diagonal(M) * (task.eigenvalues * task.gain)


def stage(shares: Float[Array, " D"]) -> Float[Array, ""]:
    """Number of components of which more than half is learned."""
    reached: Bool[Array, " D"] = shares > 1 / 2
    return jnp.sum(reached, dtype=shares.dtype)


def off_diagonal(M: Float[AnyArray, "D D"]) -> Float[Array, ""]:
    """Fraction of |M|_F^2 off the diagonal, in the eigenbasis of Lambda; 0 for M = 0."""
    total = jnp.sum(M**2)
    # In the eigenbasis, in which x is drawn, the fixed points are diagonal.
    rest = total - jnp.sum(jnp.diagonal(M) ** 2)
    return jnp.where(total > 0, rest / jnp.where(total > 0, total, 1), 0)
