"""In-context linear regression (Zhang, Singh, Latham, Saxe, arXiv:2501.16265, section 2).

A sequence has N pairs (x_n, y_n = w^T x_n), x ~ N(0, Lambda), with w ~ N(0, I) of its own, and a
query x_q whose y_q = w^T x_q is asked for. All is written in the eigenbasis of Lambda: the data,
Gaussian starts and gradient descent do not depend on the basis, Adam does.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number, cast

Spectrum = Literal["linear", "white", "geometric"]
SPECTRA: tuple[Spectrum, ...] = get_args(Spectrum)


class Regression(eqx.Module):
    r"""The law of the sequences. Build it with `regression`.

    Attributes:
        spectrum: (D,) eigenvalues :math:`\lambda_d` of :math:`\Lambda`, the covariance of x.
        N: number of pairs in the context, without the query.
    """

    spectrum: Real[AnyArray, " D"]
    N: int = eqx.field(static=True)

    def astype(self, dtype: str) -> "Regression":
        """The same task with its spectrum as a JAX array of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    @property
    def D(self) -> int:
        """Dimension of x."""
        return self.spectrum.shape[0]

    @property
    def trace(self) -> Real[Number, ""]:
        r""":math:`\operatorname{tr} \Lambda = \mathbb E[y_q^2]`, the loss of an output of zero."""
        return self.spectrum.sum()

    @property
    def gain(self) -> Real[AnyArray, " D"]:
        r"""(D,) the factors of a finite context,

        .. math::

            g_d = 1 + \frac1N \left( 1 + \frac{\operatorname{tr} \Lambda}{\lambda_d} \right),

        by which eq. 15 reads
        :math:`\mathbb E[(X X^\top/N)^2] = \operatorname{diag}(\lambda_d^2 g_d)`.
        """
        return 1 + (1 + self.trace / self.spectrum) / self.N


def regression(
    D: int = 4,
    N: int = 31,
    spectrum: Spectrum | Sequence[float] | Real[AnyArray, " D"] = "linear",
    ratio: Real[Number, ""] = 0.5,
) -> Regression:
    """The task, checked.

    Args:
        D: dimension of x.
        N: number of pairs in the context; 31 is the official code's sequence of 32 tokens.
        spectrum: "linear" (proportional to D, ..., 1, trace 1, as in the official code), "white"
            (all 1), "geometric" (each `ratio` times the one before, trace 1), or D positive numbers
            that do not increase.
        ratio: of neighbouring eigenvalues, in (0, 1], read by "geometric".

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    D, N = checks.integer("D", D, 1), checks.integer("N", N, 1)
    checks.real("ratio", ratio, 0, 1, open_minimum=True)
    if isinstance(spectrum, str):
        kind = checks.choice("spectrum", spectrum, SPECTRA)
        return Regression(eigenvalues(kind, D, ratio), N)
    checks.real("spectrum", spectrum, 0, open_minimum=True)
    if np.shape(spectrum) != (D,):
        raise ValueError(f"spectrum: must have D = {D} numbers, got shape {np.shape(spectrum)}")
    if checks.is_traced(spectrum):
        return Regression(jnp.asarray(spectrum), N)
    values = np.asarray(spectrum, np.float64)
    if (np.diff(values) > 0).any():
        raise ValueError(f"spectrum = {values}: must not increase")
    return Regression(values, N)


def eigenvalues(kind: str, D: int, ratio: Real[Number, ""]) -> Real[AnyArray, " D"]:
    """(D,) eigenvalues of a named spectrum; see `regression`."""
    if kind == "white":
        return np.ones(D)
    if kind == "linear":
        return np.arange(D, 0, -1) / (D * (D + 1) / 2)
    powers: Float[Array, " D"] | np.ndarray = ratio ** np.arange(D)
    return powers / powers.sum()
