"""The reduced loss of finite T against that of the full layer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import finite_length as full
from odes import spread, symmetric
from odes.symmetric import finite_length
from odes.symmetric.state import Attention, Decoder, State

CONTEXT = 40.0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("task", "merged"),
    # The last has no other classes, and one other output.
    [
        (dynsim.SynMedium(2).build(), False),
        (dynsim.SynMedium(2).build(), True),
        pytest.param(
            dynsim.sequence_classes([[0.4, 0.6]], [0], [1]), False, marks=pytest.mark.full
        ),
    ],
)
@pytest.mark.more
def test_loss_and_gradient_are_those_of_the_full_layer(
    task: dynsim.SequenceClasses, merged: bool
) -> None:
    placed = symmetric.placed(task, merged=merged).astype("float64")
    rng = np.random.default_rng(0)
    size = {True: placed.reduced.p.size, False: placed.reduced.rho.size}
    draw = lambda of_p: jnp.asarray(rng.normal(size=size[of_p]))
    decoder = Decoder(draw(True), draw(True), draw(True), draw(False), draw(False))
    state = State(decoder, Attention(draw(True), draw(False)))
    context = jnp.asarray(CONTEXT)
    weights = jax.jit(lambda state: placed.weights(state))
    want = jax.jit(full.expand)(weights(state), placed.full, context)
    loss = jnp.sum(placed.full.prior * want.losses)
    reduced = jax.jit(lambda *now: (finite_length.loss(*now), finite_length.gradient(*now)))(
        placed.reduced, state, context
    )
    np.testing.assert_allclose(reduced[0], loss, rtol=1e-12)
    got = weights(reduced[1])
    np.testing.assert_allclose(got.Y, want.gradient.Y, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(got.Z, want.gradient.Z, rtol=1e-9, atol=1e-15)


def test_the_same_lengths_are_refused() -> None:
    task = symmetric.symmetric_profiles([0.1] * 5, [0.1] * 5, K=1000, M=10_000)
    with pytest.raises(ValueError, match=r"length = 10: .* = 10 here: length >= 11"):
        symmetric.descend(task, dynsim.sgd(1.0, 1.0), steps=1, length=10)
    with pytest.raises(ValueError, match=r"length = 10: .* = 10 here: length >= 11"):
        symmetric.solve(symmetric.merged(task), dynsim.sgd(1.0, 1.0), [1], length=10)


@pytest.mark.full("test_loss_and_gradient_are_those_of_the_full_layer")
def test_large_tasks_have_finite_length_at_the_same_cost() -> None:
    task = symmetric.symmetric_profiles([0.05] * 10, [0.05] * 10, K=100_000, M=1_000_000)
    rates = dynsim.sgd(1e5, 1e3)
    found = symmetric.descend(task, rates, steps=20, length=128, times=[20])
    limit = symmetric.descend(task, rates, steps=20, length=1e9, times=[20])
    infinite = symmetric.descend(task, rates, steps=20, length=math.inf, times=[20])
    # 1e9 tokens leave a correction of 1e-8, relative to a loss that is less by 1/10 at 128.
    assert abs(limit["loss"][-1] / infinite["loss"][-1] - 1) < 1e-6
    assert abs(found["loss"][-1] / infinite["loss"][-1] - 1) > 0.01


@pytest.mark.more
def test_a_run_diverges_above_ten_times_the_loss_of_guessing() -> None:
    """Which is 16.1. Decay beyond its edge turns all weights round in each step, and doubles
    them: the loss is 8 after two steps, and 26 after four."""
    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 0])
    rule, reduced = dynsim.sgd(10.0, 0.1, decay=0.25), symmetric.symmetric_task(task)
    found = symmetric.spread(reduced, rule, [0, 2, 4], batch=4, length=9, record=["loss"])
    assert 7 < found["loss"][1] < 10 * math.log(5) < found["loss"][2]
    assert (found.status, found.first_bad_step) == (dynsim.Status.DIVERGED, 4)
    found = symmetric.descend(reduced, rule, steps=2, times=[2], record=["loss"])
    assert 7 < found["loss"][0] < 10 * math.log(5)
    assert found.status == dynsim.Status.OK


@pytest.mark.parametrize("kind", ["momentum", pytest.param("adam", marks=pytest.mark.full)])
@pytest.mark.more
def test_spread_is_that_of_the_full_layer(kind: str) -> None:
    own, common = [0.15, 0.15, 0.2], [0.25, 0.25, 0]
    task = dynsim.sequence_classes([own + 3 * [0] + common, 3 * [0] + own + common], [8, 8])
    rule = dynsim.sgd(0.5, 0.7, momentum=0.8) if kind == "momentum" else dynsim.adam(0.02, 0.03)
    # As short as sequences may be, where L and T differ most.
    settings = {"batch": 16, "length": 6, "record": ["loss", "entropy"]}
    want = spread.solve(task, rule, [0, 4, 12], **settings)
    reduced = symmetric.merged(symmetric.symmetric_task(task))
    np.testing.assert_array_equal(np.r_[reduced.p_copies, reduced.rho_copies], [2, 1, 2])
    got = symmetric.spread(reduced, rule, [0, 4, 12], **settings)
    # Far above the rounding that is allowed below.
    assert (want.std["entropy"][1:] > 1e-4).all()
    for name in settings["record"]:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-10)
    np.testing.assert_allclose(got.covariance, want.covariance, rtol=1e-8, atol=1e-20)
