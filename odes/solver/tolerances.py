"""Accuracy of an adaptive solve, by precision."""

from typing import NamedTuple

from dynsim import checks
from dynsim.precision import DType


class Tolerances(NamedTuple):
    """Accuracy of an adaptive solve, and the number of solver steps after which it stops with
    `Status.MAX_STEPS`.

    Raises:
        ValueError: from `check`, for a value that the precision does not allow.

    Example:
        >>> loose, key = odes.Tolerances(rtol=1e-5, atol=1e-7), jax.random.key(0)
        >>> rule = dynsim.sgd(0.1)
        >>> theory = odes.flow(DeepLinear(), rule, [0, 50], key=key, tolerances=loose)
    """

    rtol: float = 1e-8
    atol: float = 1e-10
    max_steps: int = 16384

    def check(self, dtype: str) -> "Tolerances":
        """Return self, or raise `ValueError` for a value that cannot work."""
        smallest = 1e-6 if dtype == "float32" else 1e-13
        if not self.rtol >= smallest:
            raise ValueError(
                f"rtol = {self.rtol}: must be >= {smallest:g} in {dtype}; the step size control "
                "stalls on rounding errors below that"
            )
        checks.real("atol", self.atol, 0, open_minimum=True)
        checks.integer("max_steps", self.max_steps, 1)
        return self


DEFAULT_TOLERANCES = {
    "float32": Tolerances(1e-5, 1e-7),
    "float64": Tolerances(),
}
"""Default tolerances of solvers, by dtype."""


def checked_tolerances(tolerances: Tolerances | None, dtype: DType) -> Tolerances:
    """Return `tolerances`, by default those of `dtype`; raise `ValueError` for invalid values."""
    checks.choice("dtype", dtype, tuple(DEFAULT_TOLERANCES))
    return (tolerances or DEFAULT_TOLERANCES[dtype]).check(dtype)
