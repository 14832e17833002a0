"""Reverse mode through every theory of the layer, on tasks of a few tokens, against central
differences.

The loop of the solver is the same for all of them and takes ten seconds to compile in reverse.
Equal steps stand for it by default, whose derivatives are those of as many of its steps.
"""

import equinox as eqx
import jax
import numpy as np
import pytest

import dynsim
from odes.theory import FINITE
from odes.yz import THEORIES
from tests.systems.runge_kutta import runge_kutta_instead

pytestmark = pytest.mark.usefixtures("x64")

SMALL = dynsim.Syn(2, 1, num_common=3, num_distinct=3).build()
SINGLE = dynsim.Syn(1, 3, num_common=1, num_distinct=2).build()
ADAM = {"adam", "matched-adam", "corrected-adam"}
RMSPROP = {"rmsprop", "matched-rmsprop"}
MOMENTUM = {"matched", "heavy-ball", "rescaled"}
KNOWN = {theory.name: theory for theory in THEORIES}
LEFT_OUT = {"symmetric": [2], "fixed_attention": [1], "fixed_attention-discrete": [1]}
"""What a theory does not depend on: the probabilities, or the rate of Z."""


def solve(name, task, rates):
    kind = name.removesuffix(FINITE)
    if kind in ADAM:
        optimizer = dynsim.adam(0.1 * rates[0], 0.1 * rates[1])
    elif kind in RMSPROP:
        # Its average starts from zero: without eps the first step is all there is.
        optimizer = dynsim.rmsprop({"Y": 0.1 * rates[0], "Z": 0.1 * rates[1]}, eps=0.1)
    elif kind in MOMENTUM:
        optimizer = dynsim.sgd(0.3 * rates[0], 0.3 * rates[1], momentum=0.9)
    else:
        optimizer = dynsim.sgd(rates[0], rates[1])
    # The solver takes some hundred steps for each of Adam's and RMSProp's.
    times = np.array([0.0, 5.0 if kind in ADAM | RMSPROP else 20.0])
    return KNOWN[name].solve(task, optimizer, times, record=("loss", "entropy"))


def check(name):
    """Of the final loss + entropy, by both rates and along a direction of the probabilities."""
    task, kind = SINGLE if name == "theorem4" else SMALL, name.removesuffix(FINITE)
    rates, probs = np.ones(2), np.asarray(task.probs)

    def run(rates, probs):
        traced = eqx.tree_at(lambda task: task.probs, task, probs)
        # The symmetric theory looks for its symmetry in a concrete task.
        result = solve(name, task if name.startswith("symmetric") else traced, rates)
        return result["loss"][-1] + result["entropy"][-1]

    compiled = jax.jit(jax.value_and_grad(run, (0, 1)))
    value = lambda rates, probs: compiled(rates, probs)[0]
    by_rates, by_probs = compiled(rates, probs)[1]
    # Proportional to the probabilities, so that those which are zero remain so.
    along = probs * np.random.default_rng(0).normal(size=probs.shape)
    got = np.array([*by_rates, np.vdot(by_probs, along)])
    # Adam divides by averages that start from a single gradient, so that gradients of Z which
    # change sign early make it smooth on a scale of 1e-5 only.
    fine = 1e-6 if kind in ADAM else 1e-5
    differences = [
        (value(rates + h * a, probs + h * b) - value(rates - h * a, probs - h * b)) / (2 * h)
        for a, b, h in (
            (np.array([1.0, 0]), 0 * probs, 1e-5),
            (np.array([0, 1.0]), 0 * probs, 1e-5),
            (np.zeros(2), along, fine),
        )
    ]
    # Measured: below 1e-6, of which most is the solver's error over the step, and for Adam
    # below 1e-4, which is the square of the step over the scale above.
    np.testing.assert_allclose(got, differences, rtol=1e-3 if kind in ADAM else 1e-5, atol=1e-9)
    # None is tested where it vanishes, except those that the theory leaves out.
    assert np.flatnonzero(np.abs(got) < 1e-4).tolist() == LEFT_OUT.get(kind, [])


def shown(names, few):
    return [name if name in few else pytest.param(name, marks=pytest.mark.full) for name in names]


# All flows of finite T have the gradient of one loss, full or reduced; of others that differ
# in numbers alone one stands for the others. By default one is taken of each kind of state.
NAMES = [name for name in KNOWN if not name.endswith(FINITE)]
NAMES += ["corrected" + FINITE, "symmetric" + FINITE]


@pytest.mark.parametrize("name", shown(NAMES, {"adam", "fixed_attention"}))
@pytest.mark.more
def test_reverse_mode_is_central_differences(name):
    with runge_kutta_instead():
        check(name)


# By default theories that need no solver.
@pytest.mark.parametrize("name", shown(KNOWN, {"fixed_attention", "fixed_attention-discrete"}))
def test_reverse_mode_through_the_solver_is_central_differences(name):
    check(name)
