"""Spectra of the covariance of x."""

import abc
from collections.abc import Sequence
from typing import Annotated

import annotated_types as at
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks, decoding
from dynsim.decoding import Positive
from dynsim.precision import AnyArray, Number

EigenvalueRatio = Annotated[Real[Number, "*#P"], at.Gt(0), at.Le(1)]
"""Ratio of neighbouring eigenvalues; it may be traced."""
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
        decoding.check_annotations(self)

    @abc.abstractmethod
    def values(self, D: int) -> Float[Array, " D"]:
        """Return D positive eigenvalues in non-increasing order."""

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
        """Return D eigenvalues."""
        return jnp.asarray(np.arange(D, 0, -1) / (D * (D + 1) / 2))


class WhiteSpectrum(Spectrum):
    """All eigenvalues are 1.

    Example:
        >>> dynsim.WhiteSpectrum().values(2)
        Array([1., 1.], dtype=float32)
    """

    def values(self, D: int) -> Float[Array, " D"]:
        """Return D eigenvalues."""
        return jnp.asarray(np.ones(D))

    @property
    def is_white(self) -> bool:
        """Always True."""
        return True


class GeometricSpectrum(Spectrum):
    """Eigenvalues that decrease geometrically, with trace 1.

    Attributes:
        ratio: ratio of neighbouring eigenvalues.

    Raises:
        ValueError: for a ratio outside (0, 1].

    Example:
        >>> dynsim.GeometricSpectrum(ratio=0.5).values(2)
        Array([0.6666667 , 0.33333334], dtype=float32)
    """

    ratio: EigenvalueRatio = 0.5

    def values(self, D: int) -> Float[Array, " D"]:
        """Return D eigenvalues."""
        powers = jnp.asarray(self.ratio) ** np.arange(D)
        return powers / powers.sum()


def _as_array(eigenvalues: Eigenvalues) -> AnyArray:
    # NumPy's float64, so that they keep their precision when JAX runs in float32.
    if isinstance(eigenvalues, AnyArray) and checks.is_traced(eigenvalues):
        return eigenvalues
    return np.asarray(eigenvalues, np.float64)


class GivenSpectrum(Spectrum):
    """Your own eigenvalues.

    Attributes:
        eigenvalues: D positive numbers in non-increasing order.

    Raises:
        ValueError: for numbers that are not positive, or that increase.

    Example:
        >>> task = dynsim.Regression(D=2, spectrum=dynsim.GivenSpectrum([2.0, 1.0]))
    """

    eigenvalues: AnyArray = eqx.field(converter=_as_array)

    def __check_init__(self) -> None:
        checks.real("eigenvalues", self.eigenvalues, 0, open_minimum=True)
        if not checks.is_traced(self.eigenvalues) and (np.diff(self.eigenvalues) > 0).any():
            raise ValueError(f"eigenvalues = {self.eigenvalues}: must not increase")

    def values(self, D: int) -> Float[Array, " D"]:
        """Your eigenvalues."""
        del D
        return jnp.asarray(self.eigenvalues)

    @property
    def is_white(self) -> bool:
        """Whether all eigenvalues are close to each other; False for traced values."""
        if checks.is_traced(self.eigenvalues):
            return False
        return np.allclose(self.eigenvalues, self.eigenvalues[0])
