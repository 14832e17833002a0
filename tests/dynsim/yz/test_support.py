"""The kernel for sampled batches against automatic differentiation of the model's loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.classes.task import SHARED, UNSEEN
from dynsim.yz import gradients, sampling
from dynsim.yz import model as yz
from tests.systems.layers import simulate

# Token 0 is everyone's, token 5 nobody's. Class 2 has one token only, so that its row of the
# support is filled up with tokens it never holds.
OVERLAPPING = dynsim.sequence_classes(
    [[0.3, 0.3, 0.4, 0, 0, 0], [0.2, 0.2, 0, 0.6, 0, 0], [1, 0, 0, 0, 0, 0]], query=[3, 3, 4]
)


def sparse_task(prior: list[float] | None = None) -> dynsim.SequenceClasses:
    """12 classes of 1 to 6 tokens out of 40, some shared by any number of classes; 5 queries."""
    rng = np.random.default_rng(3)
    probs = np.zeros((12, 40))
    for n, row in enumerate(probs):
        row[rng.choice(30, 1 + n % 6, replace=False)] = rng.random(1 + n % 6) + 0.1
    probs /= probs.sum(1, keepdims=True)
    return dynsim.sequence_classes(probs, query=[30 + n % 5 for n in range(12)], prior=prior)


TASKS = {
    "one query": (dynsim.SynMedium(1).build(), 32),
    "three queries": (dynsim.SynMedium(3).build(), 32),
    "overlapping": (OVERLAPPING, 32),
    "sums of rows": (dynsim.SynMedium(5).build(), 128),
    "fewer examples than classes": (dynsim.SynMedium(5).build(), 7),
    "sums of rows, all overlapping": (sparse_task(), 128),
    # Class 10, which has tokens of its own: their rows of the gradient are sums over its examples.
    "one class with most of the batch": (sparse_task(10 * [0.4 / 11] + [0.6, 0.4 / 11]), 128),
}
# What each of them shows is in others as well.
SHOWN = ("fewer examples than classes", "one class with most of the batch")
MARKS = {name: [pytest.mark.full] for name in TASKS if name not in SHOWN}
MERGED = ("fewer examples than classes", "sums of rows, all overlapping")
"""The tasks whose outputs without a class share a column of Y."""


def test_tokens_are_told_apart_by_the_classes_that_hold_them() -> None:
    np.testing.assert_array_equal(OVERLAPPING.owner, [SHARED, SHARED, 0, 1, UNSEEN, UNSEEN])
    np.testing.assert_array_equal(OVERLAPPING.shared, [0, 1])
    np.testing.assert_array_equal(OVERLAPPING.place, [0, 1, 2, 2, 0, 0])
    np.testing.assert_array_equal(OVERLAPPING.place_shared, [[0, 1], [0, 1], [0, 3]])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, [])) for n in TASKS])
@pytest.mark.more
def test_loss_and_gradient_are_those_of_the_dense_model(name: str) -> None:
    task, batch = TASKS[name]
    rng = np.random.default_rng(0)
    columns = (
        gradients.merged_outputs(task, "float64") if name in MERGED else gradients.each_output(task)
    )
    assert (columns.count is not None) == (name in MERGED)
    width = task.M if columns.count is None else columns.count.size
    shapes = (task.M, width), (task.num_queries, task.M)
    params = yz.YZ(*(jnp.asarray(2 * rng.normal(size=shape)) for shape in shapes))
    whole = yz.YZ(columns.spread(params.Y), params.Z)
    examples = sampling.sample_support(task, jax.random.key(1), batch, 20, "float64")
    weight = rng.random(batch)
    examples = sampling.SupportExamples(
        examples.classes, examples.counts, jnp.asarray(weight / weight.sum())
    )
    loss, grads = jax.jit(gradients.loss_and_grad_on_support)(params, task, examples, columns)
    got = loss, yz.YZ(columns.spread(grads.Y), grads.Z)
    want = jax.jit(jax.value_and_grad(yz.loss))(whole, task, examples.dense(task))
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12 * scale)


@pytest.mark.usefixtures("x64")
def test_the_kernel_can_be_differentiated() -> None:
    task, batch = TASKS["sums of rows, all overlapping"]
    rng = np.random.default_rng(0)
    shapes = (task.M, task.M), (task.num_queries, task.M)
    params, along = (yz.YZ(*(jnp.asarray(rng.normal(size=s)) for s in shapes)) for _ in range(2))
    examples = sampling.sample_support(task, jax.random.key(1), batch, 20, "float64")
    dense = examples.dense(task)
    of_kernel = lambda q: gradients.loss_and_grad_on_support(q, task, examples)
    of_model = lambda q: jax.value_and_grad(yz.loss)(q, task, dense)

    @jax.jit
    def derivatives() -> tuple:
        # Slope of the loss and curvature along a direction, and the gradient in reverse mode.
        pushed = (jax.jvp(f, (params,), (along,))[1] for f in (of_kernel, of_model))
        return *pushed, jax.grad(lambda q: of_kernel(q)[0])(params), of_model(params)[1]

    forward, want_forward, reverse, want_reverse = derivatives()
    got, want = jax.tree.leaves((forward, reverse)), jax.tree.leaves((want_forward, want_reverse))
    for ours, theirs in zip(got, want, strict=True):
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12 * scale)


# Whole runs are differentiated by their rates.
@pytest.mark.full("test_the_kernel_can_be_differentiated")
@pytest.mark.parametrize("name", ["overlapping", "sums of rows, all overlapping"])
def test_sampled_runs_can_be_differentiated(name: str) -> None:
    task, batch = TASKS[name]

    def final_loss(eta: jax.Array) -> jax.Array:
        run = simulate(
            task,
            dynsim.sgd(eta, 2 * eta),
            jax.random.key(2),
            steps=4,
            length=9,
            batch=batch,
            record=["loss"],
            dtype="float64",
        )
        return run["loss"][-1]

    @jax.jit
    def both(eta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return final_loss(eta), jax.grad(final_loss)(eta), jax.jacfwd(final_loss)(eta)

    with jax.enable_x64(True):
        _, reverse, forward = both(0.5)
        difference = (both(0.5 + 1e-5)[0] - both(0.5 - 1e-5)[0]) / 2e-5
    np.testing.assert_allclose(reverse, difference, rtol=1e-6)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
