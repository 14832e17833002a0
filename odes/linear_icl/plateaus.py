r"""Losses of the plateaus of in-context regression: principal component regression with m
components.

Zhang, Singh, Latham, Saxe (arXiv:2501.16265), with
:math:`g_d = 1 + (1 + \operatorname{tr}(\Lambda)/\lambda_d)/N`:

.. math::

    \begin{align*}
    L_m &= \operatorname{tr}(\Lambda) - \sum_{d \le m} \frac{\lambda_d}{g_d} \tag{19} \\
    M &= \sum_{d \le m} \lambda_d^{-1} g_d^{-1}\, e_d e_d^\top \tag{18} \\
    v_d &= (\lambda_d g_d)^{-1/3} \tag{20}
    \end{align*}
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.linear_icl.regression import Regression
from dynsim.precision import AnyArray, precision, settle
from dynsim.problem.train import problem_in


def plateaus(task: Regression) -> Float[AnyArray, " D1"]:
    """(D + 1,) losses :math:`L_0` to :math:`L_D` of eq. 19, in float64."""
    with precision("float64", task):
        found = losses(problem_in(task, "float64"))
    return settle(found)


def losses(task: Regression) -> Float[Array, " D1"]:
    """`plateaus` in the precision of the task, for compiled code."""
    falls = task.eigenvalues / task.gain
    zero = jnp.zeros(1, falls.dtype)
    return jnp.asarray(task.trace) - jnp.concatenate([zero, jnp.cumsum(falls)])


def amplitudes(task: Regression) -> Float[Array, " D"]:
    r"""(D,) :math:`v_d = \lVert k_d \rVert = \lVert q_d \rVert` of a head that has learned
    component d, eq. 20a."""
    return (task.eigenvalues * task.gain) ** (-1 / 3)


def loss_of(learned: Float[Array, "*S D"], task: Regression) -> Float[Array, "*S"]:
    """Loss of a diagonal M, of which the share `learned` of each entry of eq. 18 is there."""
    falls = task.eigenvalues / task.gain
    return jnp.asarray(task.trace) - jnp.sum(falls * (2 * learned - learned**2), axis=-1)
