"""The symmetric reduction put back into a full task: weights, and what is measured on them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import observables
from odes import symmetric
from odes.symmetric.state import zero_state
from odes.yz import population

pytestmark = pytest.mark.usefixtures("x64", "quick_theory")

TASK = dynsim.Syn(2, 2, num_common=3, num_distinct=2).build()
TIMES = np.array([0.0, 3.0, 30.0])


def test_what_is_merged_twice_keeps_its_copies() -> None:
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


def test_a_merged_state_stands_for_one_of_single_tokens() -> None:
    # Common tokens of syn are equally likely, and one kind once merged.
    single, merged = symmetric.placed(TASK), symmetric.placed(TASK, merged=True)
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


@pytest.mark.full("test_a_merged_state_stands_for_one_of_single_tokens")
def test_what_takes_full_weights_is_that_of_the_full_flow() -> None:
    optimizer, own = dynsim.sgd(1.0, 0.7), "z_distinct"
    names = tuple(name for name in observables.OBSERVABLES if name != "B")
    placed = symmetric.placed(TASK, merged=True)
    got = symmetric.solve(placed, optimizer, TIMES, record=(*names, own))
    want = population.solve(TASK, optimizer, TIMES, record=names)
    assert got.source == "symmetric"
    assert set(got.observables) == {*names, own}
    for name in names:
        assert got[name].shape == want[name].shape
        # Equal steps of both: sums in another order.
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(got.params.Y, want.params.Y, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got.params.Z, want.params.Z, rtol=0, atol=1e-10)
    assert np.abs(want["z"]).max() > 0.1
    np.testing.assert_allclose(got[own][:, -1], got["z_top_distinct"][:, 0], rtol=0, atol=0)


def test_a_reduced_task_alone_records_no_full_weights() -> None:
    meant = "record = 'attention': did you mean 'attention_common' or 'attention_distinct'?"
    with pytest.raises(ValueError, match=re.escape(meant)):
        symmetric.solve(
            symmetric.symmetric_task(TASK), dynsim.sgd(1.0, 1.0), TIMES, record=["attention"]
        )
