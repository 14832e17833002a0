"""What the learning rates and the batch of a run strain, measured at its start and in its first
steps: for `dynsim explain`."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

import odes
from dynsim import Problem, Rule, Status
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.checks import check_groups
from dynsim.problem.train import problem_in, started
from odes.symmetric.state import SymmetricTask

# Where an assumption counts as strained. Curvature: along its direction a step of eta lambda = 0.2
# moves the weights by 10 % less than the flow does. Apart: the loss of descent is that share of the
# fall away from the flow's. Noise: the gradient of a batch is off by that share of its norm.
CURVATURE, APART, NOISE = 0.2, 0.05, 0.5
FIRST = 1000
"""Steps over which descent is compared with the flow, at most."""
TURNS = 50
"""Of the power iteration, each a product of the Hessian with a vector."""


def too_coarse(
    problem: Problem,
    rule: Rule,
    key: jax.Array,
    steps: int,
    theory: str,
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, " S"],
) -> list[str]:
    """What the size of the steps strains: by the curvature, and by descent itself, whose loss is
    compared with that of a `theory` at `times`."""
    found = []
    if not rule.is_adaptive:
        size = largest_curvature(problem, rule, key, steps)
        if size > CURVATURE:
            limit = "" if rule.has_inertia else "; descent is unstable above 2"
            found.append(
                f"eta -> 0 (all flows): eta times the largest curvature at the start is {size:.2g},"
                f" above {CURVATURE}{limit}"
            )
    early = times <= FIRST
    # A run that can be resumed may end before its schedule does.
    run = odes.descent(problem, rule, times[early], key=key, record="loss", checkpoint=True)
    apart, fall = (np.abs(each).max() for each in (run["loss"] - loss[early], loss - loss[0]))
    over = f"over the first {int(times[early][-1])} steps"
    if int(run.status) != Status.OK:
        found.append(f"eta -> 0 (all flows): {over} descent at these rates diverges")
    elif apart > APART * fall:
        found.append(
            f"eta -> 0 ({theory}): {over} the loss of descent at these rates is up to "
            f"{100 * apart / fall:.2g} % of the fall away, above {100 * APART:g} %"
        )
    return found


def too_noisy(problem: Problem, key: jax.Array, steps: int, batch: int | float) -> list[str]:
    """What the size of the batch strains."""
    if math.isinf(batch):
        return []
    return noise_sentences(batch, batch_noise(problem, key, steps, int(batch)))


def noise_sentences(batch: int | float, share: float) -> list[str]:
    """What the size of the batch strains, where its gradient is off by that share of its norm."""
    if share <= NOISE:
        return []
    return [
        f"batch -> infinity (all flows): the gradient of {batch:g} examples at the start is off by "
        f"{share:.2g} of its norm, above {NOISE}; `dynsim compare` also trains on batches"
    ]


def symmetric_noise(task: SymmetricTask, batch: int | float) -> float:
    r"""`batch_noise` of symmetric classes from zero weights, to leading order in 1/T [ours].

    An example of class n contributes :math:`-f_n u_n^T` to the gradient, with
    :math:`u_n = e_n - 1/M` and :math:`|f_n| = 1`, and nothing to that of Z. So the mean square over
    batches of the distance from the mean G is :math:`(1 - 1/M - |G|^2) / B`, and
    :math:`|G|^2 = (1 - 1/M - (K-1)\, f_n \cdot f_{n'} / M) / K`.
    """
    own, common = (
        float(np.sum(np.square(p) * (1 if copies is None else copies)))
        for p, copies in ((task.p, task.p_copies), (task.rho, task.rho_copies))
    )
    K, M, overlap = int(task.K), int(task.M), common / (own + common)
    mean = (1 - 1 / M - (K - 1) * overlap / M) / K
    return math.sqrt(max(1 - 1 / M - mean, 0) / mean / batch)


def largest_curvature(problem: Problem, rule: Rule, key: jax.Array, steps: int) -> float:
    """Largest eigenvalue of the Hessian of the population loss at the start, times the largest
    learning rates of the run (without unit)."""
    with precision("float64"):
        return float(_curvature(problem, rule.astype("float64"), key, steps=steps))


@eqx.filter_jit
def _curvature(problem: Problem, rule: Rule, key: jax.Array, *, steps: int) -> jax.Array:
    parts, cast = started(problem, key, None, "float64"), problem_in(problem, "float64")
    groups = check_groups(cast, rule, parts)
    rates = jax.tree.map(jnp.max, rule.rate(jnp.arange(steps)))
    start, unravel = ravel_pytree(parts.params)
    gradient = jax.grad(lambda flat: cast.population_loss(parts.whole(unravel(flat))))

    def product(vector: jax.Array) -> jax.Array:
        _, bent = jax.jvp(gradient, (start,), (vector,))
        return -ravel_pytree(rule.descend(unravel(bent), rates, groups))[0]

    def dominant(shift: jax.Array | float) -> jax.Array:
        """Of the eigenvalues, the one farthest from -`shift`."""

        def turn(_: int, vector: jax.Array) -> jax.Array:
            turned = product(vector) + shift * vector
            return turned / jnp.linalg.norm(turned)

        vector = jax.random.normal(jax.random.key(0), start.shape, start.dtype)
        vector = jax.lax.fori_loop(0, TURNS, turn, vector / jnp.linalg.norm(vector))
        return vector @ product(vector)

    # At a saddle the farthest from 0 may be negative; from there the largest one is the farthest.
    return dominant(jnp.abs(dominant(0.0)))


def batch_noise(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Distance of the gradient of a batch from that of the population at the start, over the norm
    of the latter."""
    with precision("float64"):
        cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
        with jax.enable_x64(False):
            data = problem_in(problem, "float32").batches(key, steps, batch)(jnp.int32(0))
        weights = parts.whole(parts.params)
        exact = eqx.filter_grad(cast.population_loss)(weights)
        _, found = cast.loss_and_gradient(weights, narrowed(data, "float64"))
        want, got = (ravel_pytree(gradient)[0] for gradient in (exact, found))
        return float(jnp.linalg.norm(got - want) / jnp.linalg.norm(want))
