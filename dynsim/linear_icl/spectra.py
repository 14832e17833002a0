"""Spectra of the inputs of in-context regression: eigenvalues of their covariance."""

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

Ratio = Annotated[Real[Number, "*#P"], at.Gt(0), at.Le(1)]
"""Of neighbouring eigenvalues. It may be traced."""
Eigenvalues = Sequence[Positive] | Real[AnyArray, "..."]


class Spectrum(eqx.Module):
    """Eigenvalues of the covariance of x. Subclass it for a spectrum of your own."""

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
    """Eigenvalues proportional to D, ..., 1 with trace 1, as in the official code."""

    def values(self, D: int) -> Float[Array, " D"]:
        """D eigenvalues."""
        return jnp.asarray(np.arange(D, 0, -1) / (D * (D + 1) / 2))


class WhiteSpectrum(Spectrum):
    """All eigenvalues are 1."""

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
        """Whether they are close to each other, which is not known of traced ones."""
        if checks.is_traced(self.eigenvalues):
            return False
        return np.allclose(self.eigenvalues, self.eigenvalues[0])
