"""The noise of batches in the training of any problem."""

from odes.batch_noise.paths import THEORIES as PATHS
from odes.batch_noise.paths import sde
from odes.batch_noise.theory import STD, THEORY, examples_of, linear_noise, orders, size_of

__all__ = ["PATHS", "STD", "THEORY", "examples_of", "linear_noise", "orders", "sde", "size_of"]
