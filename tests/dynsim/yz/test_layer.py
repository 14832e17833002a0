"""The layer as a problem: its fast parts against the general ones, its start and its settings."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
from dynsim.precision import compiled_for
from dynsim.problem.base import Problem
from dynsim.yz import model as yz
from dynsim.yz.layer import as_layer
from dynsim.yz.model import Examples, init_uniform

TASK = dynsim.SynMedium(3).build()
KEY = jax.random.key(3)
RULE = dynsim.sgd(1.0, 0.5, momentum=0.9)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("length", [20, 300, math.inf], ids=str)
@pytest.mark.more
def test_batches_are_what_is_drawn(length: float, platform: str) -> None:
    layer = dynsim.Layer(TASK, length)
    with compiled_for(platform):
        # The batch after the last step is for the loss at the end.
        found = jax.jit(lambda key: layer.batches(key, 4, 32)(jnp.int32(4)))(KEY)
    want = jax.jit(lambda key: layer.draw(jax.random.fold_in(key, 4), 32))(KEY)
    if math.isinf(length):
        np.testing.assert_array_equal(found, want.classes)
        return
    dense = found if isinstance(found, Examples) else found.astype("float32").dense(TASK)
    np.testing.assert_array_equal(dense.classes, want.classes)
    np.testing.assert_array_equal(dense.counts, want.counts)


@pytest.mark.parametrize("length", [20, math.inf], ids=str)
def test_batches_of_other_layers_are_what_is_drawn(length: float) -> None:
    problem = dynsim.JoMA(TASK, length=length)
    found = jax.jit(lambda key: problem.batches(key, 4, 32)(jnp.int32(4)))(KEY)
    want = jax.jit(lambda key: problem.draw(jax.random.fold_in(key, 4), 32))(KEY)
    if math.isinf(length):
        np.testing.assert_array_equal(found, want.classes)
        np.testing.assert_allclose(want.counts, TASK.probs[want.classes], rtol=1e-6)
    else:
        assert eqx.tree_equal(found, want)
        np.testing.assert_array_equal(want.counts.sum(1), 19)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("length", "start"),
    [
        (20, "zero"),
        (math.inf, "uniform"),
        pytest.param(20, "uniform", marks=pytest.mark.full),
        pytest.param(math.inf, "zero", marks=pytest.mark.full),
    ],
)
@pytest.mark.more
def test_loss_and_gradient_are_those_of_the_loss(length: float, start: str) -> None:
    layer = dynsim.Layer(TASK.astype("float64"), length, start)
    rng = np.random.default_rng(0)
    first = jax.tree.map(
        lambda x: jnp.asarray(x, "float64"), jax.jit(lambda key: layer.init(key))(KEY)
    )
    params, spread = layer.compact(first, RULE)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), params)
    batch = jax.jit(lambda key: layer.batches(key, 4, 32)(jnp.int32(2)))(KEY)
    loss, grads = jax.jit(lambda *at: layer.loss_and_gradient(*at))(params, batch)
    data = jax.jit(lambda key: layer.draw(jax.random.fold_in(key, 2), 32))(KEY)
    want, slope = jax.jit(jax.value_and_grad(lambda *at: layer.loss(*at)))(spread(params), data)
    # The population of a batch without sampled tokens is known in 32 bits alone when drawn.
    exact = 1e-6 if math.isinf(length) else 1e-10
    np.testing.assert_allclose(loss, want, rtol=exact)
    for ours, theirs in zip(jax.tree.leaves(spread(grads)), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=exact * float(abs(theirs).max()))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("length", [pytest.param(40, marks=pytest.mark.full), math.inf], ids=str)
def test_the_population_gradient_is_that_of_the_loss(length: float) -> None:
    layer = dynsim.Layer(TASK.astype("float64"), length, "uniform")
    params = jax.tree.map(
        lambda x: 3 * np.asarray(x, "float64"), jax.jit(lambda key: layer.init(key))(KEY)
    )
    found = jax.jit(lambda params: layer.population_loss_and_gradient(params))(params)
    want = jax.jit(lambda params: Problem.population_loss_and_gradient(layer, params))(params)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        # Sums of a hundred numbers, in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("start", "rule", "merged"),
    [
        ("zero", RULE, True),
        ("zero", dynsim.adam(0.1), True),
        ("zero", dynsim.sgd(1.0, clip=1.0), False),
        ("zero", dynsim.sgd(1.0, noise=0.1), False),
        ("uniform", RULE, False),
    ],
)
def test_outputs_share_a_column_where_they_stay_equal(
    start: str, rule: dynsim.Rule, merged: bool
) -> None:
    """From equal weights, under rules that treat them one by one."""
    layer = dynsim.Layer(TASK, 20, start)
    few, whole = layer.compact(yz.init_zero(TASK), rule)
    assert few.Y.shape == (TASK.M, TASK.K + 1 if merged else TASK.M)
    assert whole(few).Y.shape == (TASK.M, TASK.M)


def test_a_run_without_a_number_of_steps_sees_the_same_batches() -> None:
    layer, times = dynsim.Layer(dynsim.SynSmall(), 20), [0, 2, 5]
    runs = [
        dynsim.train(layer, RULE, KEY, steps=steps, batch=4, times=times)["loss"]
        for steps in (5, None)
    ]
    # Two programs, which may round differently.
    np.testing.assert_allclose(*runs, rtol=1e-5)


def test_a_run_starts_where_its_key_says() -> None:
    start = jax.jit(lambda key: init_uniform(TASK, jax.random.split(key)[0]))(KEY)
    run = dynsim.train(
        dynsim.Layer(TASK, start="uniform"), RULE, KEY, steps=1, record={"all": _all}
    )
    np.testing.assert_array_equal(run["all"][0], start.Z[TASK.query_index])


def _all(task: dynsim.SequenceClasses, snapshot: object) -> jax.Array:
    return snapshot.z  # type: ignore[attr-defined]


@pytest.mark.usefixtures("unchecked")
def test_a_layer_has_a_task_and_its_settings() -> None:
    layer = dynsim.Layer(TASK)
    assert (layer.length, layer.start) == (128, "zero")
    assert layer.build(RULE) == as_layer(layer) == layer
    described = dynsim.Layer(dynsim.SynMedium(3), 7)
    assert eqx.tree_equal(described.build(RULE), dynsim.Layer(TASK, 7))
    assert eqx.tree_equal(as_layer(dynsim.SynMedium(3)), layer)
    changed = as_layer(described, start="uniform")
    assert (changed.length, changed.start) == (7, "uniform")
    with pytest.raises(ValueError, match=r"task = 3: must be of type dynsim.Layer or dynsim.Task"):
        as_layer(3)  # pyright: ignore[reportArgumentType]
    for bad in ({"length": 1}, {"length": 2.5}, {"start": "one"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            dynsim.Layer(TASK, **bad)
    with pytest.raises(ValueError, match="a step would draw 12800000000 tokens"):
        dynsim.train(dynsim.Layer(TASK), RULE, KEY, steps=1, batch=10**8)


@pytest.mark.parametrize(
    ("described", "built"),
    [
        (
            dynsim.Layer(dynsim.SynMedium(2), 20, "uniform"),
            dynsim.Layer(dynsim.SynMedium(2).build(), 20, "uniform"),
        ),
        pytest.param(
            dynsim.JoMA(), dynsim.JoMA(dynsim.SynMedium(1).build()), marks=pytest.mark.full
        ),
        pytest.param(
            dynsim.Layer(), dynsim.Layer(dynsim.SynSmall().build()), marks=pytest.mark.full
        ),
        pytest.param(
            dynsim.QKV(length=20), dynsim.QKV(dynsim.SynSmall().build(), 20), marks=pytest.mark.full
        ),
    ],
    ids=["settings", "joma", "yz", "qkv"],
)
@pytest.mark.more
def test_a_described_problem_is_trained_as_a_built_one(described: Problem, built: Problem) -> None:
    rule, record = dynsim.sgd({"Y": 1.0, "Z": 0.1}), ["loss", "entropy", "params"]
    options = {"steps": 5, "batch": 8, "record": record}
    run, want = (dynsim.train(each, rule, KEY, **options) for each in (described, built))
    assert eqx.tree_equal(run.observables, want.observables)
    flow, exact = (
        odes.flow(each, rule, [0, 5], key=KEY, record=record) for each in (described, built)
    )
    assert eqx.tree_equal(flow.observables, exact.observables)


@pytest.mark.usefixtures("unchecked")
def test_a_described_problem_is_checked_once_it_is_built() -> None:
    with pytest.raises(ValueError, match=r"width = 33: .* needs at least the vocabulary size 34"):
        dynsim.train(dynsim.QKV(width=33), RULE, KEY, steps=1)
    assert dynsim.QKV(dynsim.SynSmall("paper"), width=33).build(RULE).classes.M == 30
    # Numbers may be those of many runs.
    scale = np.array([0.5, 2.0])
    np.testing.assert_array_equal(dynsim.JoMA(scale=scale).build(RULE).scale, scale)
    with pytest.raises(ValueError, match=r"scale = -0\.5: must be finite and in"):
        dynsim.JoMA(scale=-scale)


def test_a_run_is_summed_up_by_its_largest_speed() -> None:
    """That of the mean over classes."""
    speed = np.array([[0.0, 0.0], [3.0, 1.0], [9.0, -5.5], [0.5, 1.5]])
    found = dynsim.Layer(TASK).summary(np.array([0.0, 1, 4, 9]), {"speed": speed})
    assert found == {"step of the largest speed": 1, "largest speed": 2}
