"""What solvers do where nothing is asked for: the values that their documentation states."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import dynsim
import odes
from odes import batch_noise, decoder, growth, hierarchy, theory
from odes.general import closed_form
from odes.solver.posed import Flow
from odes.solver.tolerances import DEFAULT_TOLERANCES, Tolerances
from odes.system import system
from odes.two_stage import field, loss, sde
from odes.yz import eq10, fixed_attention, population, spread, theorem4

DESCENT = {"length": math.inf, "tails": False, "batch": math.inf, "classes": 2}
BOUND = {"convention": "sgd", "classes_per_query": 1, "printed": False}
FORMULA = {"finite_m": False, "remark_1": False}


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (odes.linear_noise, {"starts": 32, "squares": True, "passes": 16, "draws": 0}),
        (odes.sde, {"order": 1, "substeps": 1, "paths": None, "examples": None}),
        (odes.central_flow, {"follow": 4}),
        (odes.symmetric.solve, {"length": math.inf, "tails": False}),
        (odes.symmetric.descend, DESCENT),
        (odes.symmetric.spread, {"tails": False}),
        (odes.symmetric.instability, {"path": "flow"}),
        (odes.symmetric.overshoot, {"length": math.inf, "path": "flow"}),
        (odes.symmetric.symmetric_profiles, {"num_queries": 1}),
        (spread.solve, {"length": math.inf, "squares": False, "tails": False, "draws": 0}),
        (spread.drift, {"length": math.inf, "squares": False, "draws": 32}),
        (sde.solve_sde, {"num_steps": 1300}),
        (sde.solve_seed, {"num_steps": 1300, "num_test": None}),
        (field.reduced, {"begin": 0, "finite_length": True}),
        (loss.losses, {"finite_length": True, "power": 1}),
        (loss.total, {"finite_length": True, "coupled": True}),
        (loss.auc_Q, {"finite_length": True}),
        (loss.Rule, {"g": 12, "h": 6, "e": 8, "f": 6}),
        (Tolerances, {"rtol": 1e-8, "atol": 1e-10, "max_steps": 2**14}),
        (decoder.gamma_integral, {"K": 1}),
        (decoder.h_star, {"momentum": 0}),
        (growth.bound, BOUND),
        (growth.bound_from_drive, {"classes_per_query": 1, "printed": False}),
        (eq10.solve, {"convention": "sgd", **FORMULA}),
        (theorem4.solve, {"convention": "sgd"}),
        (fixed_attention.solve, {"decoder": "closed"}),
        (population.predict, {"finite_m": False, "B": None}),
        (odes.joma.mixture.velocity, {"residual": 0, "activation": "relu"}),
        (odes.joma.toy.under_softmax, {"temperature": 1}),
        (hierarchy.applicable, {"variants": False, "batch": math.inf}),
        # A theory of one's own runs unless it says otherwise, by an adaptive solver, without
        # noise, and for any number of runs at once.
        (
            theory.Theory,
            {"variant": False, "needs": (), "adaptive": True, "drawn": False, "at_once": 64},
        ),
        (theory.Training, {"batch": math.inf, "steps": None}),
        (closed_form, {"needs": (), "names": (), "variant": False}),
        (system, {"any_rule": False, "needs": ("key",), "names": (), "variant": False}),
        (Flow, {"decays": (), "variant": False}),
    ],
    ids=lambda each: getattr(each, "__qualname__", ""),
)
def test_defaults_are_those_that_are_documented(
    function: Callable[..., Any], values: dict[str, Any]
) -> None:
    known = inspect.signature(function).parameters
    found = {name: known[name].default for name in values}
    assert found == values
    assert [type(each) is bool for each in found.values()] == [
        type(each) is bool for each in values.values()
    ]


def test_tolerances_go_down_to_what_a_precision_can_reach() -> None:
    assert DEFAULT_TOLERANCES == {"float32": (1e-5, 1e-7, 2**14), "float64": (1e-8, 1e-10, 2**14)}
    assert field.DEFAULT_TOLERANCES == (1e-5, 1e-7, 2**14)
    for dtype, least in (("float32", 1e-6), ("float64", 1e-13)):
        assert Tolerances(least, 1e-300, 1).check(dtype) == (least, 1e-300, 1)
        for rtol in (0.99 * least, math.nan):
            with pytest.raises(
                ValueError, match=rf"^rtol = {rtol}: must be >= {least:g} in {dtype}"
            ):
                Tolerances(rtol).check(dtype)
    with pytest.raises(ValueError, match="atol = 0"):
        Tolerances(atol=0.0).check("float64")
    with pytest.raises(ValueError, match="max_steps = 0: must be an integer >= 1"):
        Tolerances(max_steps=0).check("float64")


class Walk(dynsim.Problem):
    """A weight on examples of one number."""

    def init(self, key: Any) -> Any:
        return jnp.zeros(1)

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.mean((params - data) ** 2)


def test_memory_of_linear_noise_is_that_of_its_examples_and_segments() -> None:
    """Derivatives of all observables, and twice the states of a segment of sqrt(steps) steps, each
    with the size of the weights; and the examples of a step."""
    memory = batch_noise.THEORY.memory
    assert memory is not None
    for batch, steps, names, states, examples in (
        (40, 1000, 3, 3 + 2 * 31, 640),
        (4, 0, 5, 7, 512),
    ):
        run = odes.Training(Walk(), dynsim.sgd(0.1), batch, steps)
        # One weight and examples of one number.
        one, all_of_them = (8 * 8 * size + 2**14 for size in (1, 1 + examples))
        assert memory(run, 2, ("loss",) * names) == states * one + 8 * all_of_them
