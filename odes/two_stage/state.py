"""The seven numbers to which the two-stage dynamics reduces (arXiv:2502.20681).

The losses of the weights W of component P and V of component Q depend, for d -> infinity and
isotropic noise, on a = W[0,0] = w_star^T W w_star, on b = V[0,0] = zeta^T V zeta / r^2, and on
the mean squares of the blocks that remain when row and column 0 are set apart:

    W: v_h of W[0,1:], v_W of W[1:,:]    V: v_e of V[0,1:], v_u of V[1:,0], v_M of V[1:,1:]

Assumes that w_star and zeta are the first axes, as `dynsim.two_stage.task` has it.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim.precision import Number
from dynsim.two_stage.model import PQ
from dynsim.two_stage.observables import reduced_state
from dynsim.two_stage.task import Prompts


class ReducedState(eqx.Module):
    r"""The seven numbers; all of shape ().

    Attributes:
        a, b: W[0,0] and V[0,0], the weights along :math:`w_\star` and along :math:`\zeta`.
        v_h, v_W: mean squares of W[0,1:] and of W[1:,:].
        v_e, v_u, v_M: mean squares of V[0,1:], of V[1:,0] and of V[1:,1:].
    """

    a: Real[Number, ""]
    b: Real[Number, ""]
    v_h: Real[Number, ""]
    v_W: Real[Number, ""]
    v_e: Real[Number, ""]
    v_u: Real[Number, ""]
    v_M: Real[Number, ""]

    @classmethod
    def from_weights(cls, W: Float[Array, "d d"], V: Float[Array, "d d"]) -> "ReducedState":
        """The projection of weights on the reduced state."""
        return cls(*reduced_state(PQ(jnp.asarray(W), jnp.asarray(V))))

    @classmethod
    def nominal(cls, task: Prompts) -> "ReducedState":
        """The state that stands for the random starting weights: no signal in P, and b at one
        standard deviation, because b = 0 would stay 0."""
        start = task.starting_noise
        return cls(0 * start, start, *(5 * (start**2,)))

    def clamped(self) -> "ReducedState":
        """The same with mean squares that a solver carried below 0 put back to 0."""
        squares = (self.v_h, self.v_W, self.v_e, self.v_u, self.v_M)
        return ReducedState(self.a, self.b, *(jnp.maximum(v, 0) for v in squares))


def block_sizes(d: int) -> ReducedState:
    """Number of weights behind each entry of the state."""
    return ReducedState(1, 1, d - 1, (d - 1) * d, d - 1, d - 1, (d - 1) ** 2)
