"""`dynsim explain PROBLEM`: predicts a run of any problem from theory, without training it."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import numpy as np

from dynsim import Status
from dynsim.training.recording import BATCH_LOSS
from dynsim.trajectory import crossings
from sweeps.commands import strain
from sweeps.compare.comparison import applicable_engines
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment

TIMES = 256
"""Number of recorded times; the loss is interpolated between them."""


@dataclasses.dataclass(frozen=True)
class Outlook:
    """The predictions of `explain` for a run of any problem.

    Attributes:
        steps: optimiser steps of the run.
        theory: title of the theory that computed the losses, the first applicable one.
        status: status of its solve.
        applicable: titles of the theories that describe the run, by name.
        refused: reasons why the others do not apply, by name.
        start, end: population loss before the first and after the last step.
        half, ninety: optimiser steps after which 50 % and 90 % of the total decrease are reached;
            NaN if the loss does not decrease.
        changes: steps at which one part of a schedule ends and the next begins.
        strained: assumptions that hold poorly for this run, one sentence each.
        edge: when the flow of all weights reaches the edge of stability; None if unknown.
        noise: standard deviation across seeds over the first steps; None if unknown.
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
    edge: strain.Reached | None
    noise: strain.Noise | None

    def text(self, run: Experiment) -> str:
        """Format the outlook as text."""
        rule = " ".join(str(run.rule.build()).split())
        lines = [f"{run.about}, {rule}, {self.steps:g} steps", "", "theories that apply:"]
        lines += [f"  {name:<20}{title}" for name, title in self.applicable.items()]
        if self.refused:
            lines += ["", "theories that do not apply:"]
            lines += [f"  {name:<20}{reason}" for name, reason in self.refused.items()]
        if self.changes:
            at = ", ".join(f"{step:g}" for step in self.changes)
            lines += ["", f"the learning-rate schedule has kinks or jumps at step {at}"]
        rows = {
            "loss at the start": self.start,
            f"loss at step {self.steps:g}": self.end,
            "half of the decrease by step": self.half,
            "90 % of the decrease by step": self.ninety,
        }
        lines += ["", f"by the {self.theory}, {self.status}:"]
        lines += [
            f"  {label:<28}{'-' if math.isnan(value) else format(value, '.5g'):>12}"
            for label, value in rows.items()
        ]
        lines += [line for each in (self.edge, self.noise) if each for line in ("", str(each))]
        lines += ["", "strained assumptions:" if self.strained else "no assumption is strained"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.strained)])


def outlook(run: Experiment) -> Outlook:
    """Predict a run.

    Raises:
        ValueError: if no theory describes the run.
    """
    engines, refused = applicable_engines(run)
    known = {name: each.observables.names() for name, each in engines.items()}
    # If the population loss is unknown, use the loss of the next batch, which has the same mean.
    every = {name for names in known.values() for name in names}
    wanted = next((name for name in ("loss", BATCH_LOSS) if name in every), "")
    found = {name: each for name, each in engines.items() if wanted in known[name]}
    if not found:
        reasons = dict.fromkeys(("no theory describes its loss", *refused.values()))
        raise ValueError(f"{run.about}: {'; '.join(reasons)}")
    name, engine = next(iter(found.items()))
    sweep = Sweep(run, {"seed": [run.seed]}, name, (wanted,), TIMES)
    solved = run_sweep(sweep).load().isel(seed=0)
    times, loss = solved.time.values, np.asarray(solved[wanted].values, np.float64)
    problem, rule = run.built
    jumps = {float(jump) for each in rule.schedules.values() for jump in each.jumps()}
    strained, reached, scattered = [], None, None
    # Problems whose theories all use reduced variables have no loss of all weights to descend.
    if run.steps is not None and problem.has("population_loss"):
        key = jax.random.fold_in(jax.random.key(0), run.seed)
        # A theory that depends on the batch is not a limit of large batches and small steps.
        if not any(each.name == name and "batch" in each.needs for each in problem.theories()):
            strained = [
                *strain.too_coarse(problem, rule, key, run.steps, engine.title, times, loss),
                *strain.too_noisy(problem, key, run.steps, run.batch),
            ]
        reached = strain.reached(problem, rule, key, run.steps)
    if run.steps is not None:
        key = jax.random.fold_in(jax.random.key(0), run.seed)
        scattered = strain.measured(problem, rule, key, run.steps, run.batch)
        strained += scattered.strained if scattered else []
        strained += strain.few_squares(problem, rule, key, run.steps, run.batch)
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
        tuple(sorted(jump for jump in jumps if 0 < jump < times[-1])),
        tuple(strained),
        reached,
        scattered,
    )
