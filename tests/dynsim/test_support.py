"""The kernel for sampled batches against automatic differentiation of the model's loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import sampling
from dynsim.models import support, yz

# Token 0 is everyone's, token 1 that of both classes of query 3, token 5 nobody's. Class 2 has
# one token only, so that its row of the support is filled up with tokens it never holds.
OVERLAPPING = dynsim.sequence_classes(
    [[0.3, 0.3, 0.4, 0, 0, 0], [0.2, 0.2, 0, 0.6, 0, 0], [1, 0, 0, 0, 0, 0]], query=[3, 3, 4]
)
TASKS = {
    "one query": dynsim.syn_medium(1),
    "three queries": dynsim.syn_medium(3),
    "overlapping": OVERLAPPING,
}


def test_tokens_are_told_apart_by_the_queries_that_see_them() -> None:
    np.testing.assert_array_equal(OVERLAPPING.shared, [0])
    np.testing.assert_array_equal(OVERLAPPING.owner, [-1, 0, 0, 0, -1, -1])
    assert TASKS["one query"].shared.size == 0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradient_are_those_of_the_dense_model(name: str) -> None:
    task = TASKS[name]
    rng = np.random.default_rng(0)
    shapes = (task.M, task.M), (task.num_queries, task.M)
    params = yz.YZ(*(jnp.asarray(2 * rng.normal(size=shape)) for shape in shapes))
    examples = sampling.sample_support(task, jax.random.key(1), 32, 20, "float64")
    weight = rng.random(32)
    examples = support.SupportExamples(
        examples.classes, examples.counts, jnp.asarray(weight / weight.sum())
    )
    got = jax.jit(support.loss_and_grad)(params, task, examples)
    want = jax.jit(jax.value_and_grad(yz.loss))(params, task, examples.dense(task))
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12 * scale)


def test_sampled_runs_can_be_differentiated() -> None:
    def final_loss(eta: jax.Array) -> jax.Array:
        run = dynsim.simulate(
            OVERLAPPING,
            dynsim.sgd(eta, 2 * eta),
            jax.random.key(2),
            steps=4,
            length=9,
            batch=8,
            record=["loss"],
            dtype="float64",
        )
        return run["loss"][-1]

    with jax.enable_x64(True):
        gradient = jax.grad(final_loss)(0.5)
        difference = (final_loss(0.5 + 1e-5) - final_loss(0.5 - 1e-5)) / 2e-5
    np.testing.assert_allclose(gradient, difference, rtol=1e-6)
