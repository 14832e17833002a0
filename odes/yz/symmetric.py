"""The symmetric reduction as a theory of a `SequenceClasses`, with all its observables.

`odes.symmetric` solves for a few numbers; here they stand for the weights of a whole layer, on
which the observables of `dynsim.yz.observables` are measured as on any other. Exact for symmetric
tasks from zero weights; see `odes.symmetric.reduction` for what symmetric means.
"""

from typing import Any

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver.flows import checked_flow
from odes.symmetric.placement import placed
from odes.symmetric.solve import solve as solve_reduced
from odes.theory import refusal


def solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    init: yz.YZ | None = None,
    **options: Any,
) -> Trajectory:
    """Integrate the population flow of a symmetric task in its reduced form.

    Args:
        task: a concrete, symmetric task.
        optimizer, times, **options: as of `odes.symmetric.solve`, `length` among them.
        init: None; the reduction holds from zero weights alone.

    Returns:
        A `Trajectory` with the full weights, the same as `odes.yz.population.solve` returns.

    Raises:
        ValueError: naming the assumption of the reduction that fails, or the argument that is
            wrong.
    """
    checks.kind("task", task, SequenceClasses)
    if init is not None:
        raise ValueError("init: the symmetric reduction starts from zero weights; leave it out")
    return solve_reduced(placed(task), optimizer, times, **{"record": DEFAULT_RECORD, **options})


def inapplicable(task: SequenceClasses, optimizer: Rule) -> str | None:
    """Why the symmetric reduction does not apply, or None."""
    if getattr(task, "start", "zero") != "zero":
        return "it starts from zero weights"
    return refusal(checked_flow, optimizer) or refusal(placed, task)
