"""Transition times of an attention layer's closed form. This module avoids importing xarray."""

import numpy as np

import dynsim
from dynsim import Ratio, Rule
from odes import decoder
from odes.solver.posed import Rescaled, why_not_described
from odes.symmetric.state import SymmetricTask
from sweeps.systems.experiment import Experiment

Task = dynsim.SequenceClasses | SymmetricTask


def check_moves(run: Experiment) -> None:
    """Raise `ValueError` for an attention layer whose zero weights would not move."""
    rates = run.rule.build().of_groups("Y", "Z").schedules
    if "Y" in rates and rates["Y"].peak == 0:
        given = "ratio" if isinstance(getattr(run.rule, "eta", None), Ratio) else "eta_y"
        raise ValueError(f"{given} = 0: nothing moves from zero weights; must be positive")


def stages_by_class(task: Task, rule: Rule) -> decoder.Stages | None:
    """Return the closed form's transition times, in steps that may follow the end of the run; None
    if it does not apply, or if the rate is a function that knows the steps of the run only."""
    scaled = all(each.is_scaled for each in rule.schedules.values())
    if not scaled or why_not_described(rule, "the closed form") is not None:
        return None
    rescaled = Rescaled.of(rule)
    rate = rescaled.rate * rescaled.eta_y
    return decoder.stages(rate, 1 / prior_of(task), task.M).at(rescaled.steps_at)


def prior_of(task: Task) -> np.ndarray:
    """Return the (K,) prior of the classes; of one class for a reduced task, whose classes are
    alike."""
    return np.ones(1) / int(task.K) if isinstance(task, SymmetricTask) else np.asarray(task.prior)
