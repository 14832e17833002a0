"""Symmetric reduction: against the full flow and the full descent, huge sizes, derivatives."""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.classes.tasks import syn
from dynsim.training.rule import of_layer
from dynsim.yz import model as yz
from dynsim.yz import observables
from odes import symmetric
from odes.run import _compiled
from odes.solver import adaptive
from odes.solver.posed import GroupedRule
from odes.symmetric.reduction import gradient, measure
from odes.symmetric.state import zero_state
from odes.yz import population
from tests.systems.layers import simulate
from tests.systems.runge_kutta import runge_kutta_instead

pytestmark = pytest.mark.usefixtures("x64")

P, RHO = (0.1, 0.2, 0.3), (0.15, 0.25)
# One shape, flow and record for all tests that can share them: compilation takes seconds.
TIMES = np.r_[0, np.geomspace(1, 1e8, 40)]
RECORD = ("loss", "entropy", "z_top_distinct")


def expand(task: dynsim.SequenceClasses, state: symmetric.State) -> yz.YZ:
    """`symmetric.expand` from one compilation instead of one for each of its operations."""
    return jax.jit(functools.partial(symmetric.expand, task))(state)


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
@pytest.mark.more
def test_entries_of_the_gradient_and_observables_are_those_of_the_full_layer(
    sizes: tuple[int, int], options: dict
) -> None:
    task = dynsim.Syn(*sizes, **options).build()
    reduced = symmetric.symmetric_task(task).astype("float64")
    rng = np.random.default_rng(0)
    zero = zero_state(reduced, "float64")
    state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), zero)

    @jax.jit
    def both(reduced: symmetric.SymmetricTask, state: symmetric.State) -> tuple:
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


def test_what_a_class_does_not_have_is_not_a_number() -> None:
    nan = jax.jit(
        lambda task: {
            name: f(task, zero_state(task, "float64"), measure(task, zero_state(task, "float64")))
            for name, f in symmetric.OBSERVABLES.items()
        }
    )
    for p, rho, missing in (([], [0.4, 0.6], "distinct"), ([0.4, 0.6], [], "common")):
        found = nan(symmetric.symmetric_profiles(p, rho, K=2, M=4))
        names = {f"z_top_{missing}"} | ({"entropy", "xi"} if missing == "distinct" else set())
        assert {name for name, x in found.items() if np.isnan(x).any()} == names
        assert [found[name].shape for name in ("entropy", "xi", f"z_top_{missing}")] == [
            (), (1,), (1,)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "options", "optimizer"),
    [
        # Those of `tests/systems/test_yz.py` are held against the equations with sgd as well.
        pytest.param((2, 1), {}, dynsim.sgd(1.0, 0.5), id="sgd-K=2", marks=pytest.mark.full),
        pytest.param(
            *((1, 4), {"num_common": 1, "num_distinct": 3}, dynsim.sgd(0.3, 1.0, momentum=0.9)),
            id="momentum-K=4-one-query",
        ),
        pytest.param(
            *((2, 5), {"num_common": 4, "num_distinct": 2}, dynsim.adam(0.1, 0.02)),
            id="adam-K=10-two-queries",
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_flow_is_the_full_population_flow(
    sizes: tuple[int, int], options: dict, optimizer: dynsim.Rule
) -> None:
    task = dynsim.Syn(*sizes, **options).build()
    times = [0, 0.5, 1, 10, 100, 300]
    # Both take the same equal steps, which compile in a fraction of the time; those of Adam would
    # have to be many.
    with contextlib.nullcontext() if optimizer.name == "adam" else runge_kutta_instead():
        ours = symmetric.solve(symmetric.symmetric_task(task), optimizer, times, record=RECORD)
        full = population.solve(task, optimizer, times, record=RECORD)
    assert (ours.status, full.status) == (0, 0)
    weights = expand(task, ours.params)
    # With Adam both solvers run at rtol = 1e-8, with steps of their own.
    np.testing.assert_allclose(weights.Y, full.params.Y, rtol=0, atol=1e-6)
    np.testing.assert_allclose(weights.Z, full.params.Z, rtol=0, atol=1e-6)
    assert np.abs(weights.Z).max() > 0.1
    for name in RECORD:
        want = np.asarray(full[name])
        got = np.broadcast_to(ours[name], want.shape)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("task", "optimizer"),
    [
        pytest.param(
            dynsim.SynSmall().build(), dynsim.sgd(1.0, 0.5), id="sgd", marks=pytest.mark.full
        ),
        pytest.param(
            dynsim.SynSmall().build(),
            dynsim.sgd(1.0, 0.5, momentum=0.9),
            id="momentum",
            marks=pytest.mark.full,
        ),
        pytest.param(dynsim.SynSmall().build(), dynsim.adam(0.1, 0.3), id="adam"),
        pytest.param(
            dynsim.SynMedium(3).build(),
            dynsim.sgd(0.2, 2.0, momentum=0.8),
            id="syn-medium",
            marks=pytest.mark.full,
        ),
    ],
)
def test_descent_is_the_full_descent(task: dynsim.SequenceClasses, optimizer: dynsim.Rule) -> None:
    settings = {"steps": 100, "times": [0, 1, 2, 20, 100], "record": RECORD}
    ours = symmetric.descend(symmetric.symmetric_task(task), optimizer, **settings)
    full = simulate(task, optimizer, length=math.inf, batch=math.inf, dtype="float64", **settings)
    for name in RECORD:
        want = np.asarray(full[name])
        got = np.broadcast_to(ours[name], want.shape)
        # The same arithmetic in another order, a hundred times.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-10, err_msg=name)
    weights = expand(task, ours.params)
    np.testing.assert_allclose(weights.Y, full.params.Y, rtol=0, atol=1e-10)
    np.testing.assert_allclose(weights.Z, full.params.Z, rtol=0, atol=1e-10)


def test_sums_of_rows_stay_for_any_number_of_classes() -> None:
    K, M, queries = 100_000, 1_000_000, 100
    task = symmetric.symmetric_profiles(P, RHO, K, M, queries).astype("float64")
    rng = np.random.default_rng(0)
    zero = zero_state(task, "float64")
    state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), zero)
    Y, Z = (lambda found: (found.Y, found.Z))(jax.jit(gradient)(task, state))
    sums = (
        (Y.own, (K - 1) * Y.other, (M - K) * Y.rest),
        (K * Y.common_next, (M - K) * Y.common_rest),
        # The distinct tokens of all classes of a query, and the common ones.
        (K / queries * jnp.sum(Z.distinct), jnp.sum(Z.common)),
    )
    for terms in sums:
        # Rounding of some ten operations.
        assert (np.abs(sum(terms)) < 1e-14 * np.abs(terms[0])).all()


@pytest.mark.full(
    "test_sums_of_rows_stay_for_any_number_of_classes",
    "test_the_flow_is_the_full_population_flow",
    "sweeps/commands/test_explain.py::test_no_number_of_classes_is_too_large_for_theory",
)
def test_a_hundred_thousand_classes_to_a_hundred_million_steps() -> None:
    K, M = 100_000, 1_000_000
    task = symmetric.symmetric_profiles(P, RHO, K, M, 100)
    result = symmetric.solve(task, dynsim.sgd(1.0, 1.0), TIMES, record=RECORD)
    assert result.status == dynsim.Status.OK
    loss = np.asarray(result["loss"])
    np.testing.assert_allclose(loss[0], math.log(M), rtol=1e-12)
    assert (np.diff(loss) < 0).all()
    # The residual obeys 1/r' ~ |f|^2 eta_Y / K at the end, so the loss is of order K / t.
    assert 0.1 * K / TIMES[-1] < loss[-1] < 10 * K / TIMES[-1]
    Y, Z = result.params.Y, result.params.Z
    # Linear invariants: a Runge-Kutta method keeps them to rounding.
    scale = np.abs(Y.own).max()
    np.testing.assert_allclose(Y.own + (K - 1) * Y.other + (M - K) * Y.rest, 0, atol=1e-11 * scale)
    scale = K * np.abs(Y.common_next).max()
    np.testing.assert_allclose(K * Y.common_next + (M - K) * Y.common_rest, 0, atol=1e-11 * scale)
    # Z's rows: the distinct tokens of the K / 100 classes of a query, and the common ones.
    total = K / 100 * jnp.sum(Z.distinct) + jnp.sum(Z.common)
    np.testing.assert_allclose(total, 0, atol=1e-11 * np.abs(Z.common).max())
    assert (Z.distinct > 0).all()
    assert (Z.common < 0).all()


# Adam's flow through the solver, for a batch of rates.
@pytest.mark.full(
    "test_descent_is_the_full_descent",
    "test_adams_field_is_smooth_where_a_gradient_vanishes",
    "odes/sparse_attention/test_ladder.py::test_descent_on_all_weights_is_the_flow_of_four_numbers",
)
def test_adams_matched_flow_follows_adam_and_maps_over_rates() -> None:
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    steps, rates = np.array([20, 50, 100]), jnp.array([0.01, 0.03])

    def flow(eta: jax.Array) -> dynsim.Trajectory:
        return symmetric.solve(task, dynsim.adam(eta, eta), steps, record=RECORD)

    def descent(eta: jax.Array) -> dynsim.Trajectory:
        optimizer = dynsim.adam(eta, eta)
        return symmetric.descend(task, optimizer, steps=100, times=steps, record=RECORD)

    want = np.asarray(jax.vmap(descent)(rates)["z_top_distinct"])
    solved = jax.vmap(flow)(rates)
    assert solved.ok.all()
    # Measured: 5e-4 at most. Adam's flow without the exact first step is off by 6e-2.
    np.testing.assert_allclose(solved["z_top_distinct"], want, rtol=1e-3)


def test_one_compilation_serves_all_sizes_and_rates() -> None:
    run = lambda K, eta: symmetric.descend(
        symmetric.symmetric_profiles(P, RHO, K, 10 * K),
        dynsim.sgd(eta, eta),
        steps=3,
        record="loss",
    )
    run(2, 0.1)
    before = _compiled._cached._cache_size()
    run(1000, 0.2)
    assert _compiled._cached._cache_size() == before


@pytest.mark.parametrize("mode", ["forward", pytest.param("reverse", marks=pytest.mark.full)])
@pytest.mark.more
def test_derivatives_by_rates_and_probabilities(mode: str) -> None:
    times = np.array([0.0, 200.0])
    base = symmetric.symmetric_profiles(P, RHO, 4, 40, 2)

    def run(x: dict[str, jax.Array], derivatives: str) -> jax.Array:
        task = dataclasses.replace(base, p=x["p"], rho=x["rho"])
        optimizer = dynsim.sgd(x["eta_y"], x["eta_z"])
        result = symmetric.solve(task, optimizer, times, record="entropy", derivatives=derivatives)
        return result["entropy"][-1]

    x = {"eta_y": 1.0, "eta_z": 0.5, "p": jnp.array(P), "rho": jnp.array(RHO)}
    x = jax.tree.map(jnp.asarray, x)
    direction = {"eta_y": 1.0, "eta_z": -0.3, "p": jnp.array([0.1, -0.2, 0.1]), "rho": jnp.zeros(2)}
    direction = jax.tree.map(jnp.asarray, direction)
    step = lambda h: jax.tree.map(lambda a, b: a + h * b, x, direction)
    if mode == "reverse":
        both = jax.jit(jax.value_and_grad(functools.partial(run, derivatives=mode)))
        value, gradient = lambda x: both(x)[0], both(x)[1]
        derivative = sum(np.vdot(gradient[name], direction[name]) for name in x)
    else:
        pushed = jax.jit(
            lambda x: jax.jvp(functools.partial(run, derivatives=mode), (x,), (direction,))
        )
        value, derivative = lambda x: pushed(x)[0], pushed(x)[1]
    difference = (value(step(1e-3)) - value(step(-1e-3))) / 2e-3
    assert abs(difference) > 0.01
    # Differences: h^2 and the solver's 1e-8 over h. The derivative: the solver's tolerance.
    np.testing.assert_allclose(derivative, difference, rtol=1e-4)


def test_adams_field_is_smooth_where_a_gradient_vanishes() -> None:
    # Without distinct tokens Z never gets a gradient: 0 / (sqrt(0) + eps) throughout.
    task = symmetric.symmetric_profiles((), (0.5, 0.5), 2, 4).astype("float64")
    zero = zero_state(task, "float64")
    optimizer = GroupedRule(dynsim.adam(0.1, 0.1).astype("float64"), of_layer(zero))

    @jax.jit
    def field_and_slopes(t: jax.Array) -> tuple:
        field = lambda state: adaptive._adam(gradient, t, state, (task, optimizer))
        return field((zero, zero, zero)), jax.jacfwd(field)((zero, zero, zero))

    # At t = 0 the quotient is G / (|G| + eps), later the averages count, which are zero here.
    for t, want in ((0.0, 0.1), (2.0, 0.0)):
        field, slopes = field_and_slopes(jnp.asarray(t))
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((field, slopes)))
        assert not field[0].Z.common.any()
        np.testing.assert_allclose(field[0].Y.common_next, want, rtol=1e-6)


SYN = dynsim.Syn(2, 2, num_common=2, num_distinct=3).build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: dynsim.sequence_classes(np.eye(3)[[0, 1]], [2, 2], prior=[0.4, 0.6]),
            "needs equally likely classes; prior of class 1 differs",
        ),
        (
            lambda: dynsim.sequence_classes(np.eye(5)[:3], [3, 3, 4]),
            "needs the same number of classes per query; query number 1 differs",
        ),
        (
            lambda: syn(2, 2, num_common_per_query=1),
            "needs common tokens shared by all classes; token 10 occurs in 2 of 4",
        ),
        (
            lambda: dynsim.sequence_classes([[0.5, 0.5, 0], [0.4, 0, 0.6]], [2, 2]),
            "needs class-independent common tokens; class 1 differs",
        ),
        (lambda: dynsim.sequence_classes(_uneven_row(), SYN.query), "profiles; class 3 differs"),
    ],
)
def test_the_assumption_that_fails_is_named(
    build: Callable[[], dynsim.SequenceClasses], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        symmetric.symmetric_task(build())


def _uneven_row() -> np.ndarray:
    probs = np.array(SYN.probs)
    first, second = np.flatnonzero(np.asarray(SYN.distinct())[3])[:2]
    probs[3, [first, second]] += [0.01, -0.01]
    return probs


TASK = symmetric.symmetric_profiles(P, RHO, 4, 40, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: symmetric.symmetric_profiles(P, RHO, 4, 40, 3), "num_queries = 3: must divide"),
        (lambda: symmetric.symmetric_profiles(P, RHO, 4, 3), "K = 4 classes but M = 3"),
        (lambda: symmetric.symmetric_profiles(P, RHO, 2.5, 9), "K = 2.5: must be an integer"),
        (lambda: symmetric.symmetric_profiles(P, P, 4, 40), "p, rho: sum to 1.2"),
        (lambda: symmetric.symmetric_profiles((-1.0, 2), (), 2, 4), "p = -1.0: must be finite"),
        (lambda: symmetric.symmetric_profiles((0.0, 0.5), (0.5,), 2, 4), "p = 0.0: must be finite"),
        (lambda: symmetric.symmetric_profiles((), (), 2, 4), "a class needs at least one token"),
        (lambda: symmetric.symmetric_profiles([P], RHO, 2, 4), "p: must be one-dimensional"),
        (
            lambda: symmetric.solve(TASK, dynsim.sgd(1.0, 1.0), [1], record=["overlap"]),
            "record = 'overlap': must be one of loss, accuracy",
        ),
        (
            lambda: symmetric.solve(TASK, dynsim.adam(1.0, 1.0), [1], flow="matched"),
            "flow = 'matched': does not describe optimizer = adam",
        ),
        (
            lambda: symmetric.solve(TASK, dynsim.sgd(1.0, 1.0), [1], flow="adam"),
            "flow = 'adam': does not describe optimizer = sgd",
        ),
        (
            lambda: symmetric.solve(TASK, dynsim.adam(1.0, 1.0, b1=0.0), [1]),
            "b1 = 0.0: must be finite and in (0, 1)",
        ),
        (
            lambda: symmetric.descend(TASK, dynsim.sgd(1.0, 1.0), steps=2, times=[3]),
            "must increase within [0, steps = 2]",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.full("test_descent_is_the_full_descent")
def test_a_batch_and_merged_tokens_are_the_single_descents() -> None:
    task, times = symmetric.symmetric_task(dynsim.SynSmall().build()), [0, 3, 30]
    record = ("loss", "entropy", "z_top_distinct", "z_top_common", "speed", "xi", "accuracy")
    merged = symmetric.merged(task)
    assert (merged.p.shape, merged.rho.shape) == ((10,), (1,))
    np.testing.assert_array_equal(merged.rho_copies, [10])
    equal = symmetric.merged(symmetric.symmetric_task(dynsim.Overlapping(3, 0.2).build()))
    np.testing.assert_array_equal(np.r_[equal.p_copies, equal.rho_copies], [5, 5])
    rates = np.array([0.3, 1.0, 4.0])
    many = symmetric.descend(
        merged, dynsim.sgd(rates, rates[::-1], momentum=0.9), steps=30, times=times, record=record
    )
    assert many["loss"].shape == (3, 3)
    assert many.times.shape == (3, 3)
    for i, (eta_y, eta_z) in enumerate(zip(rates, rates[::-1], strict=True)):
        one = symmetric.descend(
            task, dynsim.sgd(eta_y, eta_z, momentum=0.9), steps=30, times=times, record=record
        )
        for name in record:
            np.testing.assert_allclose(many[name][i], one[name], rtol=1e-10, atol=1e-14)
        # The merged common tokens stand for ten equal ones.
        np.testing.assert_allclose(
            np.broadcast_to(many.params.Z.common[i], (10,)), one.params.Z.common, rtol=1e-10
        )
    with pytest.raises(ValueError, match="must be scalars or"):
        symmetric.descend(task, dynsim.sgd(np.ones((2, 2)), 1.0), steps=1)


@pytest.mark.parametrize(
    ("K", "common", "own"), [(1, 3, 3), (1, 0, 2), (2, 3, 3), (2, 1, 1), (3, 3, 3)]
)
def test_the_margin_is_that_of_all_logits(K: int, common: int, own: int) -> None:
    """Of random weights, at which any output may have the largest logit: one of other classes, of
    which there may be none, or of tokens that are no class."""
    probs, tokens = np.zeros((K, common + own * K)), np.arange(own * K)
    probs[:, :common], probs[tokens // own, common + tokens] = 0.1, (1 - 0.1 * common) / own
    task = dynsim.sequence_classes(probs, np.arange(K))
    placed = symmetric.placed(task).astype("float64")
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
