"""Drawing sequences: as tokens, or as the few numbers that a model reads of them.

A model reads a sequence through beta = S w, x_q and y_q, with the sample covariance S = X X^T/N,
a Wishart matrix. Bartlett's decomposition S = sqrt(Lambda) A A^T sqrt(Lambda)/N draws it from D
chi-squared and D (D-1)/2 normal numbers instead of the N D numbers of the tokens.
"""

import abc
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import annotated_types as at
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim import checks, decoding
from dynsim.decoding import Positive
from dynsim.precision import AnyArray, Number

Ratio = Annotated[Real[Number, "*#P"], at.Gt(0), at.Le(1)]
"""Of neighbouring eigenvalues. It may be traced."""
Eigenvalues = Sequence[Positive] | Real[AnyArray, "..."]


class Spectrum(eqx.Module):
    """Eigenvalues of the covariance of x. Subclass it to define your own spectrum.

    Example:
        >>> class Power(dynsim.Spectrum):
        ...     def values(self, D):
        ...         return 1.0 / jnp.arange(1, D + 1) ** 2
        ...
        >>> task = dynsim.Regression(D=3, spectrum=Power())
    """

    def __check_init__(self) -> None:
        decoding.check_stated(self)

    @abc.abstractmethod
    def values(self, D: int) -> Float[Array, " D"]:
        """D positive eigenvalues that do not increase."""

    @property
    def is_white(self) -> bool:
        """Whether all eigenvalues are known to be equal."""
        return False


class LinearSpectrum(Spectrum):
    """Eigenvalues proportional to D, ..., 1 with trace 1, as in the official code.

    Example:
        >>> dynsim.LinearSpectrum().values(3)
        Array([0.5       , 0.33333334, 0.16666667], dtype=float32)
    """

    def values(self, D: int) -> Float[Array, " D"]:
        """D eigenvalues."""
        return jnp.asarray(np.arange(D, 0, -1) / (D * (D + 1) / 2))


class WhiteSpectrum(Spectrum):
    """All eigenvalues are 1.

    Example:
        >>> dynsim.WhiteSpectrum().values(2)
        Array([1., 1.], dtype=float32)
    """

    def values(self, D: int) -> Float[Array, " D"]:
        """D eigenvalues."""
        return jnp.asarray(np.ones(D))

    @property
    def is_white(self) -> bool:
        """Always."""
        return True


class GeometricSpectrum(Spectrum):
    """Eigenvalues that fall geometrically, with trace 1.

    Attributes:
        ratio: ratio of neighbouring eigenvalues.

    Raises:
        ValueError: for a ratio that is not positive, or above 1.

    Example:
        >>> dynsim.GeometricSpectrum(ratio=0.5).values(2)
        Array([0.6666667 , 0.33333334], dtype=float32)
    """

    ratio: Ratio = 0.5

    def values(self, D: int) -> Float[Array, " D"]:
        """D eigenvalues."""
        powers = jnp.asarray(self.ratio) ** np.arange(D)
        return powers / powers.sum()


def _as_array(eigenvalues: Eigenvalues) -> AnyArray:
    if isinstance(eigenvalues, AnyArray) and checks.is_traced(eigenvalues):
        return eigenvalues
    return np.asarray(eigenvalues, np.float64)


class GivenSpectrum(Spectrum):
    """Eigenvalues of your own.

    Attributes:
        eigenvalues: D positive numbers that do not increase.

    Raises:
        ValueError: for numbers that are not positive, or increase.

    Example:
        >>> task = dynsim.Regression(D=2, spectrum=dynsim.GivenSpectrum([2.0, 1.0]))
    """

    eigenvalues: AnyArray = eqx.field(converter=_as_array)

    def __check_init__(self) -> None:
        checks.real("eigenvalues", self.eigenvalues, 0, open_minimum=True)
        if not checks.is_traced(self.eigenvalues) and (np.diff(self.eigenvalues) > 0).any():
            raise ValueError(f"eigenvalues = {self.eigenvalues}: must not increase")

    def values(self, D: int) -> Float[Array, " D"]:
        """The given eigenvalues."""
        del D
        return jnp.asarray(self.eigenvalues)

    @property
    def is_white(self) -> bool:
        """Whether they are all close to each other; False for traced values, which are not
        known."""
        if checks.is_traced(self.eigenvalues):
            return False
        return np.allclose(self.eigenvalues, self.eigenvalues[0])


FEW = 128
"""Degrees of freedom up to which a chi-squared number is summed up: JAX's own rejection takes as
long as about so many."""


class Sequences(NamedTuple):
    """What models read of B sequences: (B, D) beta of eq. 4, (B, D) x_q and (B,) y_q."""

    beta: Float[Array, "B D"]
    x: Float[Array, "B D"]
    y: Float[Array, " B"]


def draw(
    spectrum: Float[Array, " D"], N: int, key: PRNGKeyArray, num: int, *, tokens: bool = False
) -> Sequences:
    """Draw `num` sequences of N pairs. What is random does not depend on the spectrum, so that runs
    which differ in it alone share it.

    Args:
        spectrum: (D,) eigenvalues of the covariance of x.
        tokens: draw N tokens in place of a Wishart matrix, equal in law; a context shorter than
            D + 1 is drawn so in any case.
    """
    context_key, w_key, x_key = jax.random.split(key, 3)
    D, dtype = spectrum.size, spectrum.dtype
    root = jnp.sqrt(spectrum)[None]
    w = jax.random.normal(w_key, (num, D), dtype)
    x = root * jax.random.normal(x_key, (num, D), dtype)
    if tokens or N <= D:
        factor = jax.random.normal(context_key, (num, D, N), dtype)
    else:
        factor = _bartlett(D, N, context_key, num, dtype)
    labels = jnp.einsum("bdn,bd->bn", factor, root * w)
    beta = root * jnp.einsum("bdn,bn->bd", factor, labels) / N
    return Sequences(beta, x, jnp.sum(w * x, axis=1))


def _bartlett(
    D: int, N: int, key: PRNGKeyArray, num: int, dtype: DTypeLike
) -> Float[Array, "B D D"]:
    """Lower triangular A such that A A^T has the law of X X^T for N standard normal columns."""
    below_key, square_key = jax.random.split(key)
    diagonal = jnp.sqrt(_chi_squared(N - np.arange(D), square_key, num, dtype))
    below = jax.random.normal(below_key, (num, D, D), dtype)
    return jnp.tril(below, -1) + diagonal[:, :, None] * jnp.eye(D, dtype=dtype)[None]


def _chi_squared(
    freedom: Int[np.ndarray, " D"], key: PRNGKeyArray, num: int, dtype: DTypeLike
) -> Float[Array, "B D"]:
    """Chi-squared numbers of so many degrees of freedom each."""
    if freedom[0] > FEW:
        many = jnp.asarray(np.broadcast_to(freedom, (num, freedom.size)), dtype)
        return jax.random.chisquare(key, many, dtype=dtype)
    pair_key, odd_key = jax.random.split(key)
    # Two degrees of freedom make an exponential number, minus twice the logarithm of a uniform one.
    pairs = freedom // 2
    tiny = jnp.finfo(dtype).tiny
    uniform = jax.random.uniform(pair_key, (num, freedom.size, pairs[0]), dtype, minval=tiny)
    used = np.arange(pairs[0])[None, :] < pairs[:, None]
    even = -2 * jnp.sum(jnp.where(used[None], jnp.log(uniform), 0), axis=2)
    odd = jax.random.normal(odd_key, (num, freedom.size), dtype)
    return even + jnp.where((freedom % 2 == 1)[None], odd**2, 0)
