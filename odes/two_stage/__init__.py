"""Theory of two-stage dynamics (arXiv:2502.20681): the reduced ODE and its stochastic versions.

We reconstructed the model from fragments of the paper and derived the equations ourselves; they are
not the authors' text.

Example:
    >>> task, rule, batch = dynsim.two_stage("fast")
    >>> theory = odes.two_stage.solve(task, rule, [0, 100, 1000], record=["K1", "K2"])
"""

import functools

from odes.theory import Theory
from odes.two_stage import claims, finite_length, thresholds
from odes.two_stage.field import (
    DEFAULT_RECORD,
    DEFAULT_TOLERANCES,
    OBSERVABLES,
    inapplicable,
    solve,
)
from odes.two_stage.loss import ReducedState, Rule
from odes.two_stage.measured import solve_anchored
from odes.two_stage.sde import solve_sde, solve_seed

__all__ = [
    "DEFAULT_RECORD",
    "OBSERVABLES",
    "THEORIES",
    "ReducedState",
    "Rule",
    "claims",
    "finite_length",
    "solve",
    "solve_anchored",
    "solve_sde",
    "solve_seed",
    "thresholds",
]

SOLVER_BYTES = 2**15
"""Bytes of an adaptive solver of a few numbers, including its observables by quadrature."""
# Solves of a few numbers wait for the stiffest run of a batch.
_theory = functools.partial(
    Theory,
    inapplicable=inapplicable,
    tolerances=DEFAULT_TOLERANCES,
    predicts=lambda task: tuple(OBSERVABLES),
    at_once=32,
    memory=lambda *_: SOLVER_BYTES,
)
_infinite = functools.partial(solve, finite_length=False)
_path = functools.partial(_theory, adaptive=False, drawn=True, paths=48)
_ODE, _MEASURED = "isotropic blocks, noise-free a and b", "reduced ODE from measured states"
_FEW = "as ode, and no variance of the outputs at finite L"
_SDE = "isotropic blocks, nominal start; noise on a and b"
_ALL = "isotropic blocks; random start, noise of every number, finite test set"
_SEED = "reduced SDE of what a seed measures"
THEORIES = (
    _theory("ode", "reduced ODE", f"{_ODE}, nominal start", solve),
    _theory("infinite", "reduced ODE, L = ∞", _FEW, _infinite),
    _theory(
        "anchored", _MEASURED, f"{_ODE} within a stage", solve_anchored, needs=("key", "batch")
    ),
    _path("sde", "reduced SDE, mean of paths", _SDE, solve_sde, needs=("key",)),
    _path("seeds", _SEED, _ALL, solve_seed, needs=("key", "num_test")),
)
"""The theories, most exact first. Some need a random `key`, the `batch` of training, or the number
`num_test` of test prompts."""
