"""Theory of the attention layer in ordinary parameters: the flow of its factors."""

from odes.qkv import ladder
from odes.qkv.factors import Factors, Layer, Problem, gradient, solve

__all__ = ["Factors", "Layer", "Problem", "gradient", "ladder", "solve"]
