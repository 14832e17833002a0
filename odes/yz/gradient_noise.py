r"""Variance of each entry of the gradient of one sequence, to first order in 1/L [ours].

The gradient of a sequence of class n with frequencies c is :math:`-f r^\top` by Y and
:math:`-h` by the row of Z of its query, with :math:`r = x - \alpha`, :math:`g = Y r` and
:math:`h = f \odot (g - f (f \cdot g))`. None of f, r and h changes when c is scaled, so that for
each entry :math:`\varphi` of a gradient

.. math::

    \mathbb E\, \varphi^2 = \mathbb E_n \left[ \varphi_n(p)^2 + \frac1L \sum_i p_i
    \left( \frac{\partial \varphi_n}{\partial c_i} \right)^{\!2} \right]

less what moves the mean, which the square of the mean has as well. The variance is this less the
square of the mean over classes. No matrix of the size of Y is formed for each class: the squares
of f, r and of their derivatives are multiplied out.
"""

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
    mean = yz.YZ(
        f.T @ (prior[:, None] * r), _by_query(task, prior[:, None] * h), params.residual
    )
    square_y = (f**2).T @ (prior[:, None] * r**2)
    square_h = h**2
    if context is not None:
        # (K, M) of all of these: variances of f, r and h, and (K, M, M) covariance of f and r.
        def along(slot: Array) -> tuple[Array, Array, Array]:
            token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
            root = jnp.sqrt(jnp.sum(p * token, axis=1, keepdims=True) / context)
            return jax.jvp(factors, (p,), (jnp.where(p > 0, token, 0),))[1], root

        (df, dr, dh), root = jax.vmap(along)(jnp.arange(task.support.shape[1]))
        df, dr, dh = (root * x for x in (df, dr, dh))
        by_class = prior[:, None]
        square_y += jnp.sum(df**2, axis=0).T @ (by_class * r**2)
        square_y += (f**2).T @ (by_class * jnp.sum(dr**2, axis=0))
        square_y += 2 * jnp.einsum("skm,skn->mn", f * df, by_class * r * dr)
        square_h += jnp.sum(dh**2, axis=0)
    square = yz.YZ(square_y, _by_query(task, prior[:, None] * square_h), params.residual)
    return jax.tree.map(lambda both, one: jnp.maximum(both - one**2, 0), square, mean)


def _by_query(task: SequenceClasses, rows: Float[Array, "K M"]) -> Float[Array, "Q M"]:
    return jax.ops.segment_sum(rows, task.query_index, num_segments=task.num_queries)
