"""The noise of batches in the training of any problem."""

from odes.batch_noise.theory import STD, THEORY, examples_of, linear_noise, size_of

__all__ = ["STD", "THEORY", "examples_of", "linear_noise", "size_of"]
