"""Reverse mode through every theory of the layer, on tasks of a few tokens, and the central
differences that it has to equal."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

import dynsim
from odes.theory import FINITE
from odes.yz import THEORIES

SMALL = dynsim.Syn(2, 1, num_common=3, num_distinct=3).build()
SINGLE = dynsim.Syn(1, 3, num_common=1, num_distinct=2).build()
END = 20.0

ADAM = {"adam", "matched-adam", "corrected-adam"}
RMSPROP = {"rmsprop", "matched-rmsprop"}
MOMENTUM = {"matched", "heavy-ball", "rescaled"}
IN_Y_AND_Z = {"plain", "corrected", "symmetric"} | MOMENTUM | ADAM | RMSPROP


class Run(NamedTuple):
    """Gradient of the final loss + entropy by both rates and all probabilities, and central
    differences by the rates and `along` a direction of the probabilities."""

    result: dynsim.Trajectory
    by_rates: np.ndarray
    by_probs: np.ndarray
    differences: np.ndarray
    along: np.ndarray


def task_for(name: str) -> dynsim.SequenceClasses:
    return SINGLE if name == "theorem4" else SMALL


def solve(name: str, task: dynsim.SequenceClasses, rates: jax.Array) -> dynsim.Trajectory:
    theory = next(each for each in THEORIES if each.name == name)
    name = name.removesuffix(FINITE)
    if name in ADAM:
        optimizer = dynsim.adam(0.1 * rates[0], 0.1 * rates[1])
    elif name in RMSPROP:
        # Its average starts from zero: without eps the first step of Euler is all there is.
        optimizer = dynsim.rmsprop({"Y": 0.1 * rates[0], "Z": 0.1 * rates[1]}, eps=0.1)
    elif name in MOMENTUM:
        optimizer = dynsim.sgd(0.3 * rates[0], 0.3 * rates[1], momentum=0.9)
    else:
        optimizer = dynsim.sgd(rates[0], rates[1])
    # The solver takes some hundred steps for each of Adam's and RMSProp's.
    times = np.array([0.0, 5.0 if name in ADAM | RMSPROP else END])
    return theory.solve(task, optimizer, times, record=("loss", "entropy"))


@functools.cache
def differentiated(name: str) -> Run:
    """All that is done with a theory, from one compilation."""
    task = task_for(name)
    probs = np.asarray(task.probs)

    def run(rates: jax.Array, probs: jax.Array) -> tuple[jax.Array, dynsim.Trajectory]:
        traced = eqx.tree_at(lambda task: task.probs, task, probs)
        # The symmetric theory looks for its symmetry in a concrete task.
        result = solve(name, task if name.startswith("symmetric") else traced, rates)
        return result["loss"][-1] + result["entropy"][-1], result

    compiled = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))
    value = lambda rates, probs: compiled(rates, probs)[0][0]
    rates, still = np.ones(2), np.zeros(2)
    (_, result), (by_rates, by_probs) = compiled(rates, probs)
    # Proportional to the probabilities, so that those which are zero remain so.
    along = probs * np.random.default_rng(0).normal(size=probs.shape)
    # Adam divides by averages that start from a single gradient, so that gradients of Z which
    # change sign early make it smooth on a scale of 1e-5 only.
    fine = 1e-6 if name.removesuffix(FINITE) in ADAM else 1e-5
    differences = [
        (value(rates + h * a, probs + h * b) - value(rates - h * a, probs - h * b)) / (2 * h)
        for a, b, h in (
            (np.array([1.0, 0]), 0 * probs, 1e-5),
            (np.array([0, 1.0]), 0 * probs, 1e-5),
            (still, along, fine),
        )
    ]
    return Run(result, by_rates, by_probs, np.array(differences), along)


def check(name: str, run: Run) -> None:
    """Assert that derivatives are central differences, and vanish only where nothing depends."""
    got = np.array([*run.by_rates, np.vdot(run.by_probs, run.along)])
    # Measured: below 1e-6, of which most is the solver's error over the step, and for Adam
    # below 1e-4, which is the square of the step over the scale above.
    rtol = 1e-3 if name.removesuffix(FINITE) in ADAM else 1e-5
    np.testing.assert_allclose(got, run.differences, rtol=rtol, atol=1e-9)
    # None is tested where it vanishes, except those that the theory leaves out.
    left_out = {"symmetric": [2], "fixed_attention": [1], "fixed_attention-discrete": [1]}.get(
        name.removesuffix(FINITE), []
    )
    assert np.flatnonzero(np.abs(got) < 1e-4).tolist() == left_out
