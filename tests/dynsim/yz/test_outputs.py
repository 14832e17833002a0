"""Training in merged columns of Y against training of every column from given zeros."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.classes.tasks import syn
from dynsim.problem.train import drawn
from dynsim.yz import gradients, sampling
from dynsim.yz import model as yz
from tests.systems.layers import simulate

RULES = {
    "sgd": dynsim.sgd(2.0, 3.0),
    "momentum": dynsim.sgd(0.5, 1.0, momentum=0.9),
    "adam": dynsim.adam(0.05, 0.02),
}
TASKS = {
    "few outputs": dynsim.SynSmall().build(),
    "sums of rows": syn(2, 3, num_distinct=12, num_common=4, num_common_per_query=2),
    "outputs that never occur": dynsim.Syn(1, 2, num_common=3, num_distinct=2, M=18).build(),
}


def train(task: dynsim.SequenceClasses, rule: dynsim.Rule, **how: object) -> dynsim.Trajectory:
    options = {"steps": 12, "length": 30, "batch": 24, "dtype": "float64"} | how
    return simulate(task, rule, jax.random.key(3), record=["loss", "speed"], **options)


def whole_start(task: dynsim.SequenceClasses) -> yz.YZ:
    """Zeros that are given, in which training merges nothing."""
    return yz.init_zero(task, "float64")


@pytest.mark.parametrize("queries", [2, gradients.FEW_QUERIES + 1])
@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_gradient_of_a_merged_column_is_that_of_each_output_in_it(queries: int) -> None:
    task = TASKS["few outputs"]
    if queries > 2:
        task = dynsim.Syn(queries, 1, num_common=3, num_distinct=2, M=8 * queries).build()
    rng = np.random.default_rng(0)
    assert task.num_queries == queries
    few = gradients.merged_outputs(task, "float64")
    # Classes in unequal shares, as batches of T infinite have them.
    batch = dynsim.JoMA(task).examples(
        sampling.sample_classes(task, jax.random.key(0), 15), "float64"
    )
    assert batch.weight[0] != batch.weight[1]
    shapes = (task.M, task.K + 1), (task.num_queries, task.M)
    params = yz.YZ(*(jnp.asarray(rng.normal(size=shape)) for shape in shapes))
    whole = yz.YZ(few.spread(params.Y), params.Z)
    loss, grads = jax.jit(gradients.loss_and_grad)(params, task, batch, few)
    want_loss, want = jax.jit(jax.value_and_grad(yz.loss))(whole, task, batch)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-13)
    np.testing.assert_allclose(few.spread(grads.Y), want.Y, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(grads.Z, want.Z, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param("few outputs", "sgd", marks=pytest.mark.full),
        pytest.param("sums of rows", "momentum", marks=pytest.mark.full),
        ("outputs that never occur", "adam"),
    ],
)
@pytest.mark.more
def test_merged_columns_train_as_all_of_them_do(name: str, rule: str) -> None:
    task = TASKS[name]
    few = gradients.merged_outputs(task, "float32").count
    assert few is not None
    assert few.size == task.K + 1
    assert gradients.support_pays(task.support.shape[1], task.M) == (name == "sums of rows")
    merged = train(task, RULES[rule])
    whole = train(task, RULES[rule], init=whole_start(task))
    # Sums in another order, over 12 steps.
    for ours, theirs in zip(jax.tree.leaves(merged), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.full(
    "test_gradient_of_a_merged_column_is_that_of_each_output_in_it",
    "dynsim/yz/test_simulate.py::test_the_authors_recorded_run_is_reproduced",
)
def test_recorded_batches_train_merged_columns_as_well() -> None:
    task = TASKS["few outputs"]
    tokens, labels = zip(
        *(
            (tokens, task.next_token[classes])
            for classes, tokens in (
                sampling.sample_tokens(task, jax.random.key(k), 24, 30) for k in range(12)
            )
        ),
        strict=True,
    )
    data = sampling.examples_from_tokens(task, np.stack(tokens), np.stack(labels))
    merged = train(task, RULES["momentum"], data=data)
    whole = train(task, RULES["momentum"], data=data, init=whole_start(task))
    np.testing.assert_allclose(merged["loss"], whole["loss"], rtol=1e-9)
    np.testing.assert_allclose(merged.params.Y, whole.params.Y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("K", "M", "counts"), [(2, 6, [1, 1, 4]), (2, 5, None), (6, 6, None)])
def test_outputs_are_merged_if_that_halves_their_number(K: int, M: int, counts: Any) -> None:
    task = dynsim.sequence_classes(np.eye(K, M), query=[0] * K)
    found = gradients.merged_outputs(task, "float32")
    assert (None if found.count is None else found.count.tolist()) == counts
    column = None if found.column is None else found.column.tolist()
    assert column == (counts and [0, 1, 2, 2, 2, 2])


@pytest.mark.parametrize(
    ("terms", "products", "pays"),
    [(32, 128, True), (32, 127, False), (33, 1000, False), (8, 32, True), (8, 31, False)],
)
def test_sums_of_up_to_32_rows_pay_if_products_have_four_times_as_many(
    terms: int, products: int, pays: bool
) -> None:
    assert gradients.support_pays(terms, products) == pays


# Counts of up to T - 1 = 256 take more than a byte.
@pytest.mark.parametrize(("length", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_drawn_batches_hold_whole_sequences(length: int, dtype: str) -> None:
    task = TASKS["few outputs"]
    found = drawn(dynsim.Layer(task, length), jax.random.key(3), 2, 24)
    assert found.counts.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found.counts, int).sum(1), length - 1)


@pytest.mark.full("test_gradient_of_a_merged_column_is_that_of_each_output_in_it")
def test_batches_drawn_beforehand_are_those_of_the_run() -> None:
    task = TASKS["few outputs"]
    found = drawn(dynsim.Layer(task, 30), jax.random.key(3), 2, 24)
    given = train(task, RULES["sgd"], data=found, steps=2, dtype="float32")
    itself = train(task, RULES["sgd"], steps=2, dtype="float32")
    for ours, theirs in zip(jax.tree.leaves(given), jax.tree.leaves(itself), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_batches_of_another_run_are_refused() -> None:
    task = TASKS["few outputs"]
    found = drawn(dynsim.Layer(task, 30), jax.random.key(3), 10, 24)
    with pytest.raises(
        ValueError, match=r"data\.classes: must have a leading axis of length steps"
    ):
        train(task, RULES["sgd"], data=found)
