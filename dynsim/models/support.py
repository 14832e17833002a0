"""The same loss and gradient for sampled batches, which live on the support of their classes.

A sequence of class n holds none but the S tokens of n's support, so attention needs S
exponentials per sequence and not M. Arrays have the examples last: every sum and maximum then
runs over a leading axis, which XLA vectorises on the CPU, whatever M is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.models import yz
from dynsim.tasks import SequenceClasses


class SupportExamples(eqx.Module):
    """A weighted set of examples, their counts on the support of their classes alone.

    Attributes:
        classes: (E,) class of each example.
        counts: (S, E) how often each token of `task.support[classes]` occurs.
        weight: (E,) weight of each example in the loss; sums to 1.
    """

    classes: Int[Array, " E"]
    counts: Float[Array, "S E"]
    weight: Float[Array, " E"]

    def dense(self, task: SequenceClasses) -> yz.Examples:
        """The same examples with counts over the whole vocabulary."""
        return yz.Examples(self.classes, _on_vocabulary(task, self, self.counts).T, self.weight)


def loss_and_grad(
    params: yz.YZ, task: SequenceClasses, examples: SupportExamples
) -> tuple[Float[Array, ""], yz.YZ]:
    """As `yz.loss_and_grad`, without the residual connection, with two matrix products.

    The third, g = Y (x_{T+1} - alpha), enters dZ only through two sums over the examples of a
    query m, which follow from what is there already:

        f . g       = (x_{T+1} - alpha) . logits
        sum_e f_l g_l = sum_k Y_lk (sum_e f_l (x_{T+1} - alpha)_k)

    The inner sum is dJ/dY where no other query sees token l; the tokens that several queries
    share (`task.shared`) are multiplied out.
    """
    tokens = task.support[examples.classes].T
    row = task.query_index[examples.classes]
    f = yz.normalise(yz.attend(params.Z[row, tokens], examples.counts, axis=0), axis=0)
    F = _on_vocabulary(task, examples, f)
    logits = params.Y.T @ F
    label = task.next_token[examples.classes]
    losses, residual = yz.cross_entropy(logits, label, axis=0)
    residual = examples.weight[None] * residual
    dY = F @ residual.T

    speed = jnp.sum(residual * logits, axis=0)
    dZ = jnp.zeros_like(params.Z).at[row, tokens].add(-(f**2) * speed[None])
    # A product with ones, because XLA's own sum over a trailing axis is slow on the CPU.
    own = (params.Y * dY) @ jnp.ones(task.M, dY.dtype)
    dZ += jnp.where(jnp.arange(task.num_queries)[:, None] == task.owner[None], own[None], 0)
    seen_by = jax.nn.one_hot(row, task.num_queries, dtype=f.dtype)
    shared = F[task.shared] * (params.Y[task.shared] @ residual)
    dZ = dZ.at[:, task.shared].add((shared @ seen_by).T)
    return jnp.sum(examples.weight * losses), yz.YZ(-dY, -dZ)


def _on_vocabulary(
    task: SequenceClasses, examples: SupportExamples, values: Float[Array, "S E"]
) -> Float[Array, "M E"]:
    tokens = task.support[examples.classes].T
    zeros = jnp.zeros((task.M, values.shape[1]), values.dtype)
    return zeros.at[tokens, jnp.arange(values.shape[1])].set(values, unique_indices=True)
