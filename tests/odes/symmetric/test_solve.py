"""Symmetric reduction: against the full flow and the full descent; derivatives; placement."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import model as yz
from dynsim.yz import observables
from odes import symmetric
from odes.symmetric.reduction import gradient, measure
from odes.symmetric.state import zero_state
from tests.systems.layers import simulate

pytestmark = pytest.mark.usefixtures("x64")

P, RHO = (0.1, 0.2, 0.3), (0.15, 0.25)
RECORD = ("loss", "entropy", "z_top_distinct")


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((3, 2), {"num_common": 3, "num_distinct": 4}),
        pytest.param((2, 2), {"num_common": 3, "num_distinct": 0}, marks=pytest.mark.full),
        pytest.param((1, 1), {"num_common": 2, "num_distinct": 3}, marks=pytest.mark.full),
        ((1, 2), {"num_common": 0, "num_distinct": 1, "layout": "paper"}),
    ],
    ids=["shared-queries", "no-distinct", "one-class", "no-common-K=M"],
)
def test_entries_of_the_gradient_and_observables_are_those_of_the_full_layer(sizes, options):
    task = dynsim.Syn(*sizes, **options).build()
    reduced = symmetric.symmetric_task(task).astype("float64")
    rng = np.random.default_rng(0)
    zero = zero_state(reduced, "float64")
    state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), zero)

    @jax.jit
    def both(reduced, state):
        full = symmetric.expand(task, state)
        loss, grads = yz.loss_and_grad(full, task, yz.population(task))
        snapshot, now = observables.measure(task, full), measure(reduced, state)
        names = observables.OBSERVABLES.keys() & symmetric.OBSERVABLES.keys()
        theirs = {name: observables.OBSERVABLES[name](task, snapshot) for name in names}
        ours = {name: f(reduced, state, now) for name, f in symmetric.OBSERVABLES.items()}
        expanded = symmetric.expand(task, gradient(reduced, state))
        return (loss, grads, theirs, snapshot.c[0]), (now.loss, expanded, ours)

    (loss, want, theirs, attention), (our_loss, got, ours) = both(reduced, state)
    # Rounding of sums of some hundred numbers of order 1.
    np.testing.assert_allclose(our_loss, loss, rtol=1e-13)
    np.testing.assert_allclose(got.Y, want.Y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(got.Z, want.Z, rtol=0, atol=1e-14)
    for name, value in theirs.items():
        assert ours[name].shape == ((1,) if value.ndim else ())
        our_value = np.broadcast_to(ours[name], value.shape)
        np.testing.assert_allclose(our_value, value, rtol=1e-11, atol=1e-13, err_msg=name)
    # Distinct tokens come by increasing probability.
    distinct, common = np.asarray(task.distinct())[0], np.asarray(task.common())[0]
    order = np.flatnonzero(distinct)[np.argsort(task.probs[0][distinct], kind="stable")]
    np.testing.assert_allclose(ours["attention_distinct"], attention[order], rtol=1e-12)
    np.testing.assert_allclose(ours["attention_common"], attention[common], rtol=1e-12)


@jax.jit
def at_zero(task):
    zero = zero_state(task, "float64")
    return {n: f(task, zero, measure(task, zero)) for n, f in symmetric.OBSERVABLES.items()}


@pytest.mark.parametrize(
    ("p", "rho", "missing"),
    [((), (0.4, 0.6), {"z_top_distinct", "entropy", "xi"}), ((0.4, 0.6), (), {"z_top_common"})],
)
def test_what_a_class_does_not_have_is_not_a_number(p, rho, missing):
    found = at_zero(symmetric.symmetric_profiles(p, rho, K=2, M=4))
    assert {name for name, x in found.items() if np.isnan(x).any()} == missing
    assert [found[name].shape for name in ("entropy", "xi", "z_top_common")] == [(), (1,), (1,)]


@pytest.mark.parametrize(
    ("task", "optimizer"),
    [
        (dynsim.SynSmall(), dynsim.adam(0.1, 0.3)),
        pytest.param(
            dynsim.SynMedium(3), dynsim.sgd(0.2, 2.0, momentum=0.8), marks=pytest.mark.full
        ),
    ],
    ids=["adam", "momentum"],
)
def test_descent_is_the_full_descent(task, optimizer):
    task = task.build()
    settings = {"steps": 100, "times": [0, 1, 2, 20, 100], "record": RECORD}
    ours = symmetric.descend(symmetric.symmetric_task(task), optimizer, **settings)
    full = simulate(task, optimizer, length=math.inf, batch=math.inf, dtype="float64", **settings)
    weights = jax.jit(functools.partial(symmetric.expand, task))(ours.params)
    # The same arithmetic in another order, a hundred times.
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
    close(weights.Y, full.params.Y)
    close(weights.Z, full.params.Z)
    for name in RECORD:
        close(np.broadcast_to(ours[name], np.shape(full[name])), full[name], err_msg=name)


def test_descents_of_many_rates_with_merged_tokens_are_the_single_ones():
    task, times = symmetric.symmetric_task(dynsim.SynSmall().build()), [0, 3, 30]
    rates, record = np.array([0.3, 4.0]), (*RECORD, "speed", "xi", "accuracy")
    run = lambda task, *eta: symmetric.descend(
        task, dynsim.sgd(*eta, momentum=0.9), steps=30, times=times, record=record
    )
    many = run(symmetric.merged(task), rates, rates[::-1])
    assert many["loss"].shape == many.times.shape == (2, 3)
    for i in (0, 1):
        one = run(task, rates[i], rates[1 - i])
        for name in record:
            np.testing.assert_allclose(many[name][i], one[name], rtol=1e-10, atol=1e-14)


@pytest.mark.more
def test_derivatives_by_rates_and_probabilities():
    base = symmetric.symmetric_profiles(P, RHO, 4, 40, 2)

    def run(eta_y, eta_z, p):
        task, rule = dataclasses.replace(base, p=p), dynsim.sgd(eta_y, eta_z)
        options = {"record": "entropy", "derivatives": "forward"}
        return symmetric.solve(task, rule, np.array([0.0, 200.0]), **options)["entropy"][-1]

    x = tuple(map(jnp.asarray, (1.0, 0.5, P)))
    along = tuple(map(jnp.asarray, (1.0, -0.3, (0.1, -0.2, 0.1))))
    pushed = jax.jit(lambda *x: jax.jvp(run, x, along))
    step = lambda h: (a + h * b for a, b in zip(x, along, strict=True))
    difference = (pushed(*step(1e-3))[0] - pushed(*step(-1e-3))[0]) / 2e-3
    assert abs(difference) > 0.01
    # Differences: h^2 and the solver's 1e-8 over h. The derivative: the solver's tolerance.
    np.testing.assert_allclose(pushed(*x)[1], difference, rtol=1e-4)


@pytest.mark.parametrize(
    ("K", "common", "own"), [(1, 3, 3), (1, 0, 2), (2, 3, 3), (2, 1, 1), (3, 3, 3)]
)
def test_the_margin_is_that_of_all_logits(K, common, own):
    """Of random weights, at which any output may have the largest logit: one of other classes, of
    which there may be none, or of tokens that are no class."""
    probs, tokens = np.zeros((K, common + own * K)), np.arange(own * K)
    probs[:, :common], probs[tokens // own, common + tokens] = 0.1, (1 - 0.1 * common) / own
    task = dynsim.sequence_classes(probs, np.arange(K))
    placed = symmetric.with_full_task(task).astype("float64")
    rng = np.random.default_rng(0)
    zero = zero_state(placed.reduced, "float64")
    states = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=(40, *x.shape))), zero)
    found = jax.jit(jax.vmap(lambda state: measure(placed.reduced, state).margin))(states)
    weights = jax.jit(jax.vmap(placed.weights))(states)
    c = np.asarray(probs)[None] * np.exp(np.asarray(weights.Z))[:, np.asarray(task.query_index)]
    f = c / np.linalg.norm(c, axis=2, keepdims=True)
    logits = f @ np.asarray(weights.Y)
    label = np.eye(task.M, dtype=bool)[np.asarray(task.next_token)]
    want = logits[:, label] - np.where(label, -np.inf, logits).max(2)
    np.testing.assert_allclose(np.broadcast_to(found[:, None], want.shape), want, rtol=1e-9)
    assert 5 < np.sum(np.asarray(found) > 0) < 35


TASK = dynsim.Syn(2, 2, num_common=3, num_distinct=2).build()


def test_what_is_merged_twice_keeps_its_copies():
    p, rho = np.array([0.1, 0.1, 0.2]), np.array([0.05, 0.05])
    copies = np.array([2.0, 1, 1]), np.array([4.0, 6])
    task = symmetric.SymmetricTask(p, rho, 4, 40, 2, *copies)
    for _ in range(2):
        task = symmetric.merged(task)
        np.testing.assert_array_equal(task.p, [0.1, 0.2])
        np.testing.assert_array_equal(task.p_copies, [3, 1])
        np.testing.assert_array_equal(task.rho_copies, [10])
        # Probabilities of a class still sum to 1.
        assert task.p @ task.p_copies + task.rho @ task.rho_copies == pytest.approx(1, rel=1e-15)


def test_a_merged_state_stands_for_one_of_single_tokens():
    # Common tokens of syn are equally likely, and one kind once merged.
    single, merged = symmetric.with_full_task(TASK), symmetric.with_full_task(TASK, merged=True)
    assert (single.reduced.rho.size, merged.reduced.rho.size) == (3, 1)
    rng = np.random.default_rng(0)
    zero = zero_state(merged.reduced, "float64")
    state = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), zero)
    copies = jax.tree.map(
        lambda leaf, size: jnp.repeat(leaf, size.shape[0] // leaf.shape[0]),
        state,
        zero_state(single.reduced, "float64"),
    )
    got = jax.jit(lambda state: merged.weights(state))(state)
    want = jax.jit(lambda state: symmetric.expand(TASK, state))(copies)
    np.testing.assert_array_equal(got.Y, want.Y)
    np.testing.assert_array_equal(got.Z, want.Z)
    assert len(np.unique(got.Y)) == 1 + 3 * 2 + 2
