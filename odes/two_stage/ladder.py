"""The ladder of two-stage training.

Every theory is `solve(task, optimizer, times, record=..., dtype=...)`; what it needs besides is in
its `needs`: a random `key`, the `anchors` that were measured, the number `num_test` of test
prompts.
"""

import functools

from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.task import Prompts
from odes.theory import Ladder, Theory
from odes.two_stage import anchored
from odes.two_stage.field import inapplicable
from odes.two_stage.sde import solve_sde
from odes.two_stage.solve import solve
from odes.two_stage.spread import solve_seed

LADDER: Ladder[Prompts, NoisySGD] = Ladder(
    "two_stage",
    (
        Theory(
            "ode",
            "reduced ODE",
            "isotropic blocks, noise-free a and b, nominal start",
            functools.partial(solve, finite_length=True),
            inapplicable,
        ),
        Theory(
            "infinite",
            "reduced ODE, L = ∞",
            "as ode, and no variance of the outputs at finite L",
            functools.partial(solve, finite_length=False),
            inapplicable,
        ),
        Theory(
            "anchored",
            "reduced ODE from measured states",
            "isotropic blocks, noise-free a and b within a stage",
            anchored.solve,
            inapplicable,
            needs=("anchors",),
        ),
        Theory(
            "sde",
            "reduced SDE, mean of paths",
            "isotropic blocks, nominal start; noise on a and b",
            solve_sde,
            inapplicable,
            needs=("key",),
        ),
        Theory(
            "seeds",
            "reduced SDE of what a seed measures",
            "isotropic blocks; random start, noise of every number, finite test set",
            solve_seed,
            inapplicable,
            needs=("key", "num_test"),
        ),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
