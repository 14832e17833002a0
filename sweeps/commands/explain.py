"""`dynsim explain`: predict a run from theory, without running it."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

import dynsim
from dynsim import Trajectory, checks
from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.state import SymmetricTask
from odes.yz import ladder, population
from odes.yz import symmetric as symmetric_layer
from sweeps import output
from sweeps.commands import outlook
from sweeps.compare import edge, strain
from sweeps.systems.settings import given
from sweeps.systems.yz.tasks import ClassOptions as Problem

Task = dynsim.SequenceClasses | SymmetricTask
DESCENT_STEPS = 100_000
"""Horizon up to which a symmetric task is descended step by step, which is exact for any rate."""


@dataclasses.dataclass(frozen=True)
class Explain(Problem):
    """Predict a run from theory, without running it: its transition times, its final values, and
    the assumptions that it strains. The prediction is for T, batch -> infinity.

    Attributes:
        steps: optimiser steps of the run.
        length: sequence length T of the run. The prediction does not depend on it; a warning is
            printed where T is too short for T -> infinity.
        json: print JSON instead of text.
    """

    SYSTEM: ClassVar[str] = "yz"

    steps: int = 1000
    length: int | float = 128
    json: bool = False


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` predicts.

    Attributes:
        theory: title of the theory that the final values are from.
        status: how its solve ended.
        stages: t0', peak, its gamma, t0, averaged over classes; None for Adam.
        regime: "scanning at the end", "in transition at the end" or "snapped", by the closed
            form's t0' and t0; that attention has not moved, where it has not by then; or None for
            Adam, which the closed form does not describe.
        final: observables at the last step, averaged over classes.
        strained: the assumptions that this run strains, one sentence each.
        edge: when the flow of all weights reaches the edge of stability; None where that is not
            known.
    """

    theory: str
    status: str
    stages: dict[str, float] | None
    regime: str | None
    final: dict[str, float]
    strained: tuple[str, ...]
    edge: edge.Reached | None


def command(name: str) -> tuple[type[Any], Callable[[Any], None]]:
    """Settings of `dynsim explain NAME`, and what runs them; `ValueError` for an unknown system."""
    return Explain if name == Explain.SYSTEM else outlook.settings(name), run


def run(config: Explain | outlook.ExplainOptions) -> None:
    """Predict and print."""
    found = explain(config)
    if config.json:
        print(json.dumps(output.as_json(dataclasses.asdict(found)), indent=2))
    else:
        print(text(config, found) if isinstance(config, Explain) else found.text(config))


def explain(config: Any = None, /, **settings: Any) -> Any:
    """Predict a run from the closed form and the best applicable theory.

    Args:
        config: the name of a system, or PACKAGE.MODULE:NAME of a problem; by default, the layer in
            Y and Z. Settings as the command line makes them are taken as they are.
        settings: the options of `dynsim explain`, by name.

    Returns:
        An `Explanation` of the layer in Y and Z, an `Outlook` of any other system.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    if config is None or isinstance(config, str):
        config = given(command(config or Explain.SYSTEM)[0], "explain", **settings)
    checks.kind("config", config, str, Explain, outlook.ExplainOptions)
    return _of_layer(config) if isinstance(config, Explain) else outlook.explain(config)


def _of_layer(config: Explain) -> Explanation:
    steps = checks.steps("steps", config.steps)
    checks.count_or_inf("length", config.length, 2)
    task = config.make_reduced() or config.make_task()
    optimizer = config.make_optimizer()
    strain.check_moves(config)
    record = ("loss", "accuracy", "entropy", "z_top_distinct", "z_top_common", "speed")
    with precision("float64"):
        theory, solved = _solve(task, optimizer, steps, record)
        stages = strain.stages_of(task, optimizer)
        reasons = tuple(strain.strained(config, task, optimizer, stages))
        final = strain.final_of(solved)
    return Explanation(
        theory,
        dynsim.Status(int(solved.status)).name,
        stages,
        strain.regime(steps, stages, final),
        {**final, "effective_tokens": math.exp(final["entropy"])},
        reasons,
        _edge(task, optimizer, steps),
    )


def _edge(task: Task, optimizer: dynsim.Rule, steps: int) -> edge.Reached | None:
    """Of zero weights, which no key decides."""
    if isinstance(task, SymmetricTask):
        return None
    layer = dynsim.layer(task, length=math.inf, start="zero")
    return edge.reached(layer, optimizer, jax.random.key(0), steps)


def _solve(
    task: Task, optimizer: dynsim.Rule, steps: int, record: tuple[str, ...]
) -> tuple[str, Trajectory]:
    """The most exact prediction there is, and what it is by."""
    large = isinstance(task, SymmetricTask)
    if large or symmetric_layer.inapplicable(task, optimizer) is None:
        reduced = task if large else symmetric.symmetric_task(task)
        if steps <= DESCENT_STEPS:
            run = symmetric.descend(reduced, optimizer, steps=steps, times=[steps], record=record)
            return "symmetric reduction, step by step", run
        solved = symmetric.solve(reduced, optimizer, np.array([0.0, steps]), record=record)
        return "symmetric reduction, flow", solved
    solved = population.solve(task, optimizer, np.array([0.0, steps]), record=record)
    return ladder.THEORIES[solved.source].title, solved


def text(config: Explain, found: Explanation) -> str:
    """The explanation as lines to print."""
    task = config.make_reduced() or config.make_task()
    lines = [
        f"{config.task}: K = {int(task.K)}, M = {int(task.M)}, {config.make_optimizer()}, "
        f"{config.steps} steps",
        "",
    ]
    if found.stages:
        rows = {
            "gamma peaks at t (exact)": found.stages["peak"],
            "  where gamma is": found.stages["peak_gamma"],
            "rise ends, about (t0')": found.stages["rise_end"],
            "decay begins, about (t0)": found.stages["snap"],
        }
        lines += [f"{label:<28}{value:>12.4g}" for label, value in rows.items()]
        lines += [f"{'regime':<28}{found.regime}", ""]
    lines.append(f"at step {config.steps}, by the {found.theory}, {found.status}:")
    labels = {
        "loss": "loss (nat)",
        "accuracy": "accuracy",
        "entropy": "entropy on distinct tokens",
        "effective_tokens": "  effective number of tokens",
        "z_top_distinct": "logit, top distinct token",
        "z_top_common": "logit, top common token",
        "speed": "speed coefficient",
    }
    lines += [f"  {label:<28}{found.final[field]:>12.5g}" for field, label in labels.items()]
    if found.edge:
        lines += ["", str(found.edge)]
    lines += ["", "strained assumptions:" if found.strained else "no assumption is strained"]
    return "\n".join([*lines, *(f"  - {reason}" for reason in found.strained)])
