"""The layer's fast loss and gradient against differentiation of its loss; its batches and start."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
from dynsim.classes.task import SHARED, UNSEEN
from dynsim.precision import compiled_for
from dynsim.problem.base import Problem
from dynsim.problem.train import drawn
from dynsim.yz import gradients, sampling
from dynsim.yz import model as yz
from dynsim.yz.model import Examples, init_uniform
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


KEY, RULE = jax.random.key(3), dynsim.sgd(1.0, 0.5, momentum=0.9)
SMALL, MEDIUM, FIVE = (
    task.build() for task in (dynsim.SynSmall(), dynsim.SynMedium(3), dynsim.SynMedium(5))
)
SPARSE = sparse_task()
# Class 10, which has tokens of its own: their rows of the gradient are sums over its examples.
UNEVEN = sparse_task(10 * [0.4 / 11] + [0.6, 0.4 / 11])
MANY = dynsim.Syn(gradients.FEW_QUERIES + 1, 1, num_common=3, num_distinct=2, M=40).build()
PATHS: dict[str, tuple[dynsim.SequenceClasses, int, float, str]] = {
    "merged columns": (MEDIUM, 32, 20, "zero"),
    "all columns, T infinite": (MEDIUM, 32, math.inf, "uniform"),
    "few queries": (SMALL, 15, math.inf, "zero"),
    "many queries": (MANY, 15, math.inf, "zero"),
    "overlapping": (OVERLAPPING, 32, 20, "uniform"),
    "sums of rows": (FIVE, 128, 20, "uniform"),
    "fewer examples than classes": (FIVE, 7, 20, "zero"),
    "sums of rows, all overlapping": (SPARSE, 128, 20, "zero"),
    "one class with most of the batch": (UNEVEN, 128, 20, "uniform"),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.more
def test_loss_and_gradient_are_those_of_the_loss(name: str) -> None:
    """In compact weights, on the batches of a run, for the loss of the same batches."""
    task, batch, length, start = PATHS[name]
    layer = dynsim.Layer(task.astype("float64"), length, start)
    rng = np.random.default_rng(0)
    zero = jax.eval_shape(lambda key: layer.init(key), KEY)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape), zero)
    params, spread = layer.compact(zero, RULE)
    params = jax.tree.map(lambda x: jnp.asarray(2 * rng.normal(size=x.shape)), params)

    @jax.jit
    def both(params: yz.YZ, key: jax.Array) -> tuple:
        data = layer.draw(jax.random.fold_in(key, 2), batch)
        found = layer.loss_and_gradient(params, layer.batches(key, 4, batch)(jnp.int32(2)))
        wide = jax.tree.map(lambda x: x.astype("float64") if x.dtype == "float32" else x, data)
        return found, jax.value_and_grad(lambda p: layer.loss(p, wide))(spread(params))

    (loss, grads), (want, slope) = both(params, KEY)
    # The population of a batch without sampled tokens is known in 32 bits alone when drawn.
    exact = 1e-6 if math.isinf(length) else 1e-10
    np.testing.assert_allclose(loss, want, rtol=exact)
    for ours, theirs in zip(jax.tree.leaves(spread(grads)), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=exact * float(abs(theirs).max()))


@pytest.mark.usefixtures("x64")
def test_the_kernel_of_weighed_examples_can_be_differentiated() -> None:
    rng = np.random.default_rng(0)
    shapes = (SPARSE.M, SPARSE.M), (SPARSE.num_queries, SPARSE.M)
    params, along = (yz.YZ(*(jnp.asarray(rng.normal(size=s)) for s in shapes)) for _ in range(2))
    examples = sampling.sample_support(SPARSE, jax.random.key(1), 128, 20, "float64")
    weight = jnp.asarray(rng.dirichlet(np.ones(128)))
    examples = sampling.SupportExamples(examples.classes, examples.counts, weight)
    dense = examples.dense(SPARSE)
    of_kernel = lambda q: gradients.loss_and_grad_on_support(q, SPARSE, examples)
    of_model = lambda q: jax.value_and_grad(yz.loss)(q, SPARSE, dense)

    @jax.jit
    def derivatives() -> tuple:
        # Slope of the loss and curvature along a direction, and the gradient in reverse mode.
        (found, pushed), (want, should) = (
            jax.jvp(f, (params,), (along,)) for f in (of_kernel, of_model)
        )
        reverse = jax.grad(lambda q: of_kernel(q)[0])(params)
        return (found, pushed, reverse), (want, should, want[1])

    got, want = map(jax.tree.leaves, derivatives())
    for ours, theirs in zip(got, want, strict=True):
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12 * scale)


@pytest.mark.usefixtures("x64")
def test_the_population_gradient_is_that_of_the_loss() -> None:
    layer = dynsim.Layer(MEDIUM.astype("float64"), math.inf, "uniform")
    params = jax.jit(lambda key: layer.init(key))(KEY)
    params = jax.tree.map(lambda x: 3 * np.asarray(x, "float64"), params)
    found = jax.jit(lambda params: layer.population_loss_and_gradient(params))(params)
    want = jax.jit(lambda params: Problem.population_loss_and_gradient(layer, params))(params)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        # Sums of a hundred numbers, in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_tokens_are_told_apart_by_the_classes_that_hold_them() -> None:
    np.testing.assert_array_equal(OVERLAPPING.owner, [SHARED, SHARED, 0, 1, UNSEEN, UNSEEN])
    np.testing.assert_array_equal(OVERLAPPING.shared, [0, 1])
    np.testing.assert_array_equal(OVERLAPPING.place, [0, 1, 2, 2, 0, 0])
    np.testing.assert_array_equal(OVERLAPPING.place_shared, [[0, 1], [0, 1], [0, 3]])


def test_merged_columns_train_as_all_of_them_do() -> None:
    """Those of outputs that never occur; zeros that are given merge nothing."""
    task = dynsim.Syn(1, 2, num_common=3, num_distinct=2, M=18).build()
    options: Any = {"steps": 12, "length": 30, "batch": 24, "dtype": "float64"}
    merged, whole = (
        simulate(task, dynsim.adam(0.05, 0.02), KEY, record=["loss", "speed"], init=init, **options)
        for init in ("zero", yz.init_zero(task, "float64"))
    )
    # Sums in another order, over 12 steps.
    for ours, theirs in zip(jax.tree.leaves(merged), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("start", "rule", "merged"),
    [
        ("zero", RULE, True),
        ("zero", dynsim.adam(0.1), True),
        ("zero", dynsim.sgd(1.0, clip=1.0), False),
        ("zero", dynsim.sgd(1.0, noise=0.1), False),
        # It may draw numbers for each weight.
        ("zero", dynsim.from_optax(optax.sgd, learning_rate=0.1), False),
        ("uniform", RULE, False),
    ],
)
def test_outputs_share_a_column_where_they_stay_equal(
    start: Any, rule: dynsim.Rule, merged: bool
) -> None:
    """From equal weights, under rules that treat them one by one."""
    few, whole = dynsim.Layer(MEDIUM, 20, start).compact(yz.init_zero(MEDIUM), rule)
    assert few.Y.shape == (MEDIUM.M, MEDIUM.K + 1 if merged else MEDIUM.M)
    assert whole(few).Y.shape == (MEDIUM.M, MEDIUM.M)


@pytest.mark.parametrize(("K", "M", "counts"), [(2, 6, [1, 1, 4]), (2, 5, None), (6, 6, None)])
def test_outputs_are_merged_if_that_halves_their_number(K: int, M: int, counts: Any) -> None:
    task = dynsim.sequence_classes(np.eye(K, M), query=[0] * K)
    found = gradients.merged_outputs(task, "float32")
    assert (None if found.count is None else found.count.tolist()) == counts
    column = None if found.column is None else found.column.tolist()
    assert column == (counts and [0, 1, 2, 2, 2, 2])


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "problem",
    [
        *(dynsim.Layer(MEDIUM, length) for length in (20, 300, math.inf)),
        *(dynsim.JoMA(MEDIUM, length=length) for length in (20, math.inf)),
    ],
)
def test_batches_are_what_is_drawn(problem: Any, platform: Any) -> None:
    with compiled_for(platform):
        # The batch after the last step is for the loss at the end.
        found = jax.jit(lambda key: problem.batches(key, 4, 32)(jnp.int32(4)))(KEY)
    want = jax.jit(lambda key: problem.draw(jax.random.fold_in(key, 4), 32))(KEY)
    if math.isinf(problem.length):
        np.testing.assert_array_equal(found, want.classes)
        np.testing.assert_allclose(want.counts, MEDIUM.probs[want.classes], rtol=1e-6)
        return
    dense = found if isinstance(found, Examples) else found.astype("float32").dense(MEDIUM)
    np.testing.assert_array_equal(dense.classes, want.classes)
    np.testing.assert_array_equal(dense.counts, want.counts)
    np.testing.assert_array_equal(want.counts.sum(1), problem.length - 1)


# Counts of up to T - 1 = 256 take more than a byte.
@pytest.mark.parametrize(("length", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_drawn_batches_hold_whole_sequences(length: int, dtype: str) -> None:
    found = drawn(dynsim.Layer(SMALL, length), KEY, 2, 24)
    assert found.counts.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found.counts, int).sum(1), length - 1)


def test_a_run_without_a_number_of_steps_sees_the_same_batches() -> None:
    layer, options = dynsim.Layer(SMALL, 20), {"batch": 4, "times": [0, 2, 5]}
    runs = [dynsim.train(layer, RULE, KEY, steps=steps, **options)["loss"] for steps in (5, None)]
    # Two programs, which may round differently.
    np.testing.assert_allclose(*runs, rtol=1e-5)


def test_a_run_starts_where_its_key_says() -> None:
    start = jax.jit(lambda key: init_uniform(MEDIUM, jax.random.split(key)[0]))(KEY)
    layer, record = dynsim.Layer(MEDIUM, start="uniform"), {"all": lambda task, s: s.z}
    run = dynsim.train(layer, RULE, KEY, steps=1, record=record)
    np.testing.assert_array_equal(run["all"][0], start.Z[MEDIUM.query_index])


def test_a_run_is_summed_up_by_its_largest_speed() -> None:
    """That of the mean over classes."""
    speed = np.array([[0.0, 0.0], [3.0, 1.0], [9.0, -5.5], [0.5, 1.5]])
    found = dynsim.Layer(MEDIUM).summary(np.array([0.0, 1, 4, 9]), {"speed": speed})
    assert found == {"step of the largest speed": 1, "largest speed": 2}
