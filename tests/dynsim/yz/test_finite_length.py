"""The loss of finite T: against its definition, against enumeration, and where it is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import finite_length
from dynsim.yz import model as yz
from tests.systems.sequences import TASK, enumerated, losses_of, weights

CROWDED = dynsim.sequence_classes(
    np.asarray(TASK.probs)[:, :5], TASK.query, TASK.next_token, TASK.prior
)
"""The task without its unused tokens: there is no use in gathering rows of Y for each class."""


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("residual", "task"),
    [
        pytest.param(False, TASK, marks=pytest.mark.full),
        (False, CROWDED),
        (True, TASK),
    ],
    ids=["rows of each class", "all rows", "residual"],
)
@pytest.mark.more
def test_losses_gradient_and_slope_are_those_of_the_full_hessian(
    residual: bool, task: dynsim.SequenceClasses
) -> None:
    task, context = task.astype("float64"), jnp.asarray(7.0)
    params = jax.tree.map(jnp.asarray, weights(8 - task.M, residual=residual))
    params = yz.YZ(params.Y[: task.M, : task.M], params.Z[:, : task.M], residual)

    def by_definition(params: yz.YZ) -> jax.Array:
        losses = finite_length.by_counts(params, task)
        hessian = jax.hessian(losses)(task.probs)
        own = hessian[jnp.arange(3), jnp.arange(3), :, jnp.arange(3)]
        p = task.probs
        sigma = jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]
        # Tokens that a class does not have never occur; attention leaves them out.
        return losses(p) + jnp.sum(sigma * own, axis=(1, 2)) / (2 * context)

    def mean(params: yz.YZ) -> tuple[jax.Array, jax.Array]:
        losses = by_definition(params)
        return jnp.sum(task.prior * losses), losses

    got = jax.jit(lambda params: finite_length.expand(params, task, context))(params)
    (_, losses), want = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
    np.testing.assert_allclose(got.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(got.gradient.Y, want.Y, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(got.gradient.Z, want.Z, rtol=1e-10, atol=1e-14)
    # Central differences of the losses, good to the step squared.
    at = jax.jit(finite_length.by_counts(params, task))
    for n, token in ((0, 1), (2, 4)):
        step = np.zeros(task.probs.shape)
        step[n, token] = 1e-6
        around = [at(task.probs + s * step)[n] for s in (1, -1)]
        slope = (around[0] - around[1]) / 2e-6
        np.testing.assert_allclose(got.slope[n, token], slope, rtol=1e-7)
    assert np.all(np.asarray(got.slope)[np.asarray(task.probs) == 0] == 0)


@pytest.mark.usefixtures("x64")
# The correction without the residual is written out, that with it differentiated.
@pytest.mark.parametrize("residual", [False, True])
def test_the_remainder_is_of_second_order(residual: bool) -> None:
    numbers, task = weights(residual=residual), TASK.astype("float64")
    params = jax.tree.map(jnp.asarray, numbers)

    @jax.jit
    def loss_of(total: float) -> jax.Array:
        context = jnp.asarray(total, float)
        if residual:
            losses = finite_length.by_counts(params, task)
            return finite_length.mean_loss(losses, task, context)
        return task.prior @ finite_length.expand(params, task, context).losses

    def exact(total: int) -> float:
        rows = (enumerated(n, total) for n in range(3))
        means = [weight @ losses_of(numbers, n, counts) for n, (counts, weight) in enumerate(rows)]
        return np.asarray(task.prior) @ means

    # E l = l + a/L + b/L^2 + ..., of which the theory has two terms, and T infinite the first. The
    # term after those left out changes the ratios by some 2/L.
    missed = np.array([loss_of(total) - exact(total) for total in (32, 64, 128)])
    np.testing.assert_allclose(missed[:-1] / missed[1:], 4, rtol=0.06)
    assert abs(missed[-1]) < 0.05 * abs(loss_of(math.inf) - exact(128))
