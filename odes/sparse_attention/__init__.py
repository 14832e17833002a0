"""Theory of the emergence of sparse attention: flows of a few numbers, and the plateau's length."""

from odes.sparse_attention import ladder
from odes.sparse_attention.early import escape_time, growth_rate, linear_escape_time
from odes.sparse_attention.symmetric import solve

__all__ = ["escape_time", "growth_rate", "ladder", "linear_escape_time", "solve"]
