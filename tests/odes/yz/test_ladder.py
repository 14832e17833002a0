"""Theories of the layer: gradients through their solvers; priors on the logits and the residual."""

import numpy as np
import pytest

import dynsim
from dynsim.yz import model as yz
from odes.yz import THEORIES, population
from tests.systems.gradients import check, differentiated

pytestmark = pytest.mark.usefixtures("x64")

# The theories that need no solver, whose loop in reverse takes ten seconds to compile;
# `test_gradients.py` has the arithmetic of the others, by Euler.
KNOWN = {theory.name: theory for theory in THEORIES}
QUICK = {"fixed_attention", "fixed_attention-discrete"}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in KNOWN],
)
def test_reverse_mode_through_the_solver_is_central_differences(name):
    check(name, differentiated(name))


def local_task():
    """Two queries of two classes: tokens 0 and 1 in all classes, 2 and 3 in the first of each
    query, 4 and 5 in the second, two more in each class alone; all equally likely."""
    probs = np.zeros((4, 20))
    probs[:, :2] = 1
    for n in range(4):
        start = 2 + 2 * (n % 2), 6 + 2 * n
        probs[n, np.add.outer(start, [0, 1])] = 1
    return dynsim.sequence_classes(probs / 6, [14, 14, 15, 15], np.arange(16, 20))


# One task, number of times and record: the two models compile once each.
LOCAL = local_task()
RECORD = ("loss", "z", "attention")


@pytest.mark.more
def test_a_prior_on_the_logits_tilts_the_probabilities():
    z0 = np.random.default_rng(0).normal(size=(LOCAL.num_queries, LOCAL.M))
    of_class = z0[np.asarray(LOCAL.query_index)]
    weight = np.asarray(LOCAL.probs) * np.exp(of_class)
    tilted = dynsim.sequence_classes(
        weight / weight.sum(1, keepdims=True), LOCAL.query, LOCAL.next_token
    )
    times, optimizer = np.array([0.0, 10, 100]), dynsim.sgd(1.0, 0.7)
    start = yz.YZ(np.zeros((LOCAL.M, LOCAL.M)), z0)
    prior = population.solve(LOCAL, optimizer, times, init=start, record=RECORD)
    zero = population.solve(tilted, optimizer, times, record=RECORD)
    # Both solvers run at rtol = 1e-8.
    for name in ("loss", "attention"):
        np.testing.assert_allclose(prior[name], zero[name], rtol=0, atol=1e-7, err_msg=name)
    np.testing.assert_allclose(np.asarray(prior["z"]) - of_class, zero["z"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(prior.params.Y, zero.params.Y, rtol=0, atol=1e-7)
    assert np.abs(zero["z"]).max() > 0.1


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.more
def test_the_residual_lets_locally_distinct_tokens_gain(residual):
    start = yz.init_zero(LOCAL, "float64", residual=residual)
    # Each class's logits towards the tokens in all classes, in one of each query, in it alone.
    kinds = [
        np.asarray(LOCAL.common(local=True)),
        np.asarray(LOCAL.distinct(local=True) & LOCAL.common()),
        np.asarray(LOCAL.distinct()),
    ]
    for eta_z in (0.1, 1.0):
        times, optimizer = np.array([0.0, 100, 1000]), dynsim.sgd(1.0, eta_z)
        z = population.solve(LOCAL, optimizer, times, init=start, record=RECORD)["z"]
        common, local, distinct = (np.asarray(z)[:, kind] for kind in kinds)
        moved = np.diff(local, axis=0)
        # Measured at 0.1: 0.02 and 0.03 with the residual, -0.04 and -0.07 without.
        assert (moved > 0.01).all() if residual else (moved < -0.01).all()
        assert (np.diff(common, axis=0) < 0).all()
        assert (np.diff(distinct, axis=0) > 0).all()
