"""`dynsim explain NAME`: what theory predicts of a run of any system, without training it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from dynsim import Problem, Rule, Status
from dynsim.decoding import Seed
from sweeps.compare import edge, strain
from sweeps.compare.comparison import judged
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import crossings
from sweeps.systems import registry
from sweeps.systems.settings import settings_class

TIMES = 256
"""Recorded times, between which the loss is interpolated."""


@dataclasses.dataclass(frozen=True)
class ExplainOptions:
    """Options that are mixed into the runs of a system.

    Attributes:
        root: root of the random keys; the starting weights use fold_in(key(root), 0), as the first
            run of `dynsim compare` does.
        json: print JSON instead of text.
    """

    SYSTEM: ClassVar[str] = ""

    root: Seed = 0
    json: bool = False


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What `explain` predicts of a run of any system.

    Attributes:
        steps: optimiser steps of the run.
        theory: title of the theory that the losses are from, the first one that applies.
        status: how its solve ended.
        applicable: titles of the theories that describe the run, by name.
        refused: why the others do not, by name.
        start, end: population loss before the first and after the last step.
        half, ninety: optimiser steps after which half, and 90 %, of the fall between these are
            reached; NaN for a loss that does not fall.
        changes: steps at which a schedule turns from one of its parts to the next.
        strained: the assumptions that this run strains, one sentence each.
        edge: when the flow of all weights reaches the edge of stability; None where that is not
            known.
    """

    steps: float
    theory: str
    status: str
    applicable: Mapping[str, str]
    refused: Mapping[str, str]
    start: float
    end: float
    half: float
    ninety: float
    changes: tuple[float, ...]
    strained: tuple[str, ...]
    edge: edge.Reached | None

    def text(self, config: Any) -> str:
        """The outlook as lines to print."""
        given = dict.fromkeys((config.SYSTEM, config.task))
        rule = " ".join(str(config.make_optimizer()).split())
        lines = [f"{': '.join(given)}, {rule}, {self.steps:g} steps", "", "theories that apply:"]
        lines += [f"  {name:<20}{title}" for name, title in self.applicable.items()]
        if self.refused:
            lines += ["", "theories that do not apply:"]
            lines += [f"  {name:<20}{reason}" for name, reason in self.refused.items()]
        if self.changes:
            at = ", ".join(f"{step:g}" for step in self.changes)
            lines += ["", f"the learning rate changes its course at step {at}"]
        rows = {
            "loss at the start": self.start,
            f"loss at step {self.steps:g}": self.end,
            "half of the fall at step": self.half,
            "90 % of the fall at step": self.ninety,
        }
        lines += ["", f"by the {self.theory}, {self.status}:"]
        lines += [
            f"  {label:<28}{'-' if math.isnan(value) else format(value, '.5g'):>12}"
            for label, value in rows.items()
        ]
        if self.edge:
            lines += ["", str(self.edge)]
        lines += ["", "strained assumptions:" if self.strained else "no assumption is strained"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.strained)])


def settings(name: str) -> type[Any]:
    """The settings of `dynsim explain NAME`; `ValueError` for an unknown system."""
    title = f"Predict a run of {name} from theory, without running it."
    return settings_class("Explain", registry.system(name), ExplainOptions, title)


def explain(config: Any) -> Outlook:
    """Predict a run, which an instance of what `settings` returns describes.

    Raises:
        ValueError: naming the setting, its value and what is allowed; for runs that no theory
            describes.
    """
    training: Any = registry.system(config.SYSTEM).run.of(config)
    training.check()
    engines, refused = judged(training)
    found = {name: each for name, each in engines.items() if "loss" in each.observables.names()}
    if not found:
        reasons = dict.fromkeys(("no theory describes its loss", *refused.values()))
        raise ValueError(f"task = {training.task!r}: {'; '.join(reasons)}")
    name, engine = next(iter(found.items()))
    axes = {"seed": {"range": 1}}
    sweep = Sweep(axes, training, name, ("loss",), TIMES, root=config.root)
    solved = run_sweep(sweep).load().isel(seed=0)
    times, loss = solved.time.values, np.asarray(solved.loss.values, np.float64)
    task, rule = training.make_task(), training.make_optimizer()
    changes, strained, reached = (), [], None
    if isinstance(rule, Rule):
        jumps = {float(jump) for each in rule.schedules.values() for jump in each.jumps()}
        changes = tuple(sorted(jump for jump in jumps if 0 < jump < times[-1]))
    # Systems with theories of fewer variables alone have no loss of all weights to descend.
    if isinstance(rule, Rule) and isinstance(task, Problem) and task.has("population_loss"):
        key = jax.random.fold_in(jax.random.key(config.root), 0)
        strained = [
            *strain.too_coarse(task, rule, key, training.steps, engine.title, times, loss),
            *strain.too_noisy(task, key, training.steps, training.batch),
        ]
        reached = edge.reached(task, rule, key, training.steps)
    fallen = [loss[0] - share * (loss[0] - loss[-1]) for share in (0.5, 0.9)]
    falls = loss[-1] < loss[0]
    half, ninety = (float(crossings(times, loss, level)) if falls else math.nan for level in fallen)
    return Outlook(
        float(times[-1]),
        engine.title or name,
        Status(int(solved.status)).name,
        {name: each.title or name for name, each in engines.items()},
        refused,
        float(loss[0]),
        float(loss[-1]),
        half,
        ninety,
        changes,
        tuple(strained),
        reached,
    )
