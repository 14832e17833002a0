"""Theory of two-stage dynamics (arXiv:2502.20681): the reduced ODE and what follows from it.

We reconstructed its equations from fragments of the paper and derived them ourselves; they are not
the authors' text.

Example:
    >>> task, rule, batch = dynsim.two_stage("fast")
    >>> theory = odes.two_stage.solve(task, rule, [0, 100, 1000], record=["K1", "K2"])
"""

import functools

from odes.theory import Theory
from odes.two_stage.field import (
    DEFAULT_RECORD,
    DEFAULT_TOLERANCES,
    OBSERVABLES,
    inapplicable,
    solve,
    solve_anchored,
)
from odes.two_stage.loss import ReducedState, Rule
from odes.two_stage.sde import solve_sde, solve_seed

__all__ = [
    "DEFAULT_RECORD",
    "OBSERVABLES",
    "THEORIES",
    "ReducedState",
    "Rule",
    "solve",
    "solve_sde",
    "solve_seed",
]

_theory = functools.partial(
    Theory,
    inapplicable=inapplicable,
    tolerances=DEFAULT_TOLERANCES,
    predicts=lambda task: tuple(OBSERVABLES),
)
THEORIES = (
    _theory("ode", "reduced ODE", "isotropic blocks, noise-free a and b, nominal start", solve),
    _theory(
        "infinite",
        "reduced ODE, L = ∞",
        "as ode, and no variance of the outputs at finite L",
        functools.partial(solve, finite_length=False),
    ),
    _theory(
        "anchored",
        "reduced ODE from measured states",
        "isotropic blocks, noise-free a and b within a stage",
        solve_anchored,
        needs=("anchors",),
    ),
    _theory(
        "sde",
        "reduced SDE, mean of paths",
        "isotropic blocks, nominal start; noise on a and b",
        solve_sde,
        needs=("key",),
        adaptive=False,
        drawn=True,
    ),
    _theory(
        "seeds",
        "reduced SDE of what a seed measures",
        "isotropic blocks; random start, noise of every number, finite test set",
        solve_seed,
        needs=("key", "num_test"),
        adaptive=False,
        drawn=True,
    ),
)
"""The theories, most exact first. What they need besides the usual: a random `key`, the `anchors`
that were measured, the number `num_test` of test prompts."""
