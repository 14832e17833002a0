r"""Variance of each entry of the gradient of one sequence, to first order in 1/L [ours].

The gradient of a sequence of class n with frequencies c is :math:`-f r^\top` by Y and
:math:`-h` by the row of Z of its query, with :math:`r = x - \alpha`, :math:`g = Y r` and
:math:`h = f \odot (g - f (f \cdot g))`. None of f, r and h changes when c is scaled, so that for
each entry :math:`\varphi` of a gradient

.. math::

    \mathbb E\, \varphi = \mathbb E_n \left[ \varphi_n + \frac{1}{2L} \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right], \qquad
    \mathbb E\, \varphi^2 = \mathbb E_n \left[ \varphi_n^2 + \frac1L \sum_i p_i \left(
    \frac{\partial \varphi_n}{\partial c_i} \right)^{\!2} + \frac1L \varphi_n \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right]

at c = p, and the variance is the second less the square of the first. No matrix of the size of Y is
formed for each class: the squares of f, r and of their derivatives are multiplied out.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.classes.task import SequenceClasses
from dynsim.yz import model as yz
from dynsim.yz.finite_length import Context


def variance(params: yz.YZ, task: SequenceClasses, context: Context) -> yz.YZ:
    """Variance over sequences of each entry of their gradients, for `context` contextual tokens.

    Shapes are those of the weights.
    """
    p, prior = jnp.asarray(task.probs), jnp.asarray(task.prior)
    classes = jnp.arange(task.K)

    def factors(counts: Float[Array, "K M"]) -> tuple[Array, Array, Array]:
        f = yz.normalise(yz.attend(jnp.asarray(params.Z)[task.query_index], counts))
        read, to_f = jax.vjp(lambda f: yz.output(params, task, f, classes), f)
        _, r = yz.cross_entropy(read @ params.Y, task.next_token)
        (g,) = to_f(r @ jnp.asarray(params.Y).T)
        return read, r, f * (g - f * jnp.sum(f * g, axis=1, keepdims=True))

    f, r, h = factors(p)
    by_class = prior[:, None]
    mean_y, square_y = f.T @ (by_class * r), (f**2).T @ (by_class * r**2)
    mean_h, square_h = h, h**2
    if context is not None:

        def along(slot: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
            token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
            root = jnp.sqrt(jnp.sum(p * token, axis=1, keepdims=True) / context)
            step = jnp.where(p > 0, root * token, 0)
            slope = lambda counts: jax.jvp(factors, (counts,), (step,))[1]  # noqa: E731
            return jax.jvp(slope, (p,), (step,))

        first, second = jax.vmap(along)(jnp.arange(task.support.shape[1]))
        (df, dr, _), (ddf, ddr, ddh) = first, (jnp.sum(x, axis=0) for x in second)
        scatter_f, scatter_r, scatter_h = (jnp.sum(x**2, axis=0) for x in first)
        mean_y += jnp.einsum("skm,skn->mn", df, by_class[None] * dr)
        mean_y += (ddf.T @ (by_class * r) + f.T @ (by_class * ddr)) / 2
        square_y += (scatter_f + f * ddf).T @ (by_class * r**2)
        square_y += (f**2).T @ (by_class * (scatter_r + r * ddr))
        square_y += 4 * jnp.einsum("skm,skn->mn", f[None] * df, (by_class * r)[None] * dr)
        mean_h, square_h = h + ddh / 2, square_h + scatter_h + h * ddh
    mean = yz.YZ(mean_y, _by_query(task, by_class * mean_h), params.residual)
    square = yz.YZ(square_y, _by_query(task, by_class * square_h), params.residual)
    return jax.tree.map(lambda both, one: jnp.maximum(both - one**2, 0), square, mean)


def of_batch(
    task: SequenceClasses, context: Context, batch: Float[Array, ""]
) -> Callable[[yz.YZ], yz.YZ]:
    """`variance` of the mean over `batch` sequences, as a function of the weights."""
    return lambda params: jax.tree.map(lambda one: one / batch, variance(params, task, context))


def _by_query(task: SequenceClasses, rows: Float[Array, "K M"]) -> Float[Array, "Q M"]:
    return jax.ops.segment_sum(rows, task.query_index, num_segments=task.num_queries)
