"""`dynsim explain`: predict a run from theory, without training it: the transition times of the
attention layer in Y and Z, and of any other problem how its loss falls."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np

import dynsim
from dynsim import Rule, Status, Trajectory, checks
from dynsim.precision import precision
from dynsim.training.recording import BATCH_LOSS
from dynsim.trajectory import crossings
from odes import symmetric
from odes.symmetric.solve import inapplicable
from odes.symmetric.state import SymmetricTask
from odes.theory import Training
from odes.yz import population
from sweeps import output
from sweeps.commands import strain
from sweeps.commands.regime import final_of, regime, stages_of, strained
from sweeps.compare.comparison import judged
from sweeps.compare.layer import Task, check_moves
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.systems import registry, yz
from sweeps.systems.experiment import Experiment, made

LOSS_TIMES = 256
"""Recorded times, between which the loss is interpolated."""


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What `explain` predicts of a run of any problem.

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
        noise: how far seeds scatter over the first steps; None where that is not known.
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
        """The outlook as lines to print."""
        rule = " ".join(str(run.rule.build()).split())
        lines = [f"{run.about}, {rule}, {self.steps:g} steps", "", "theories that apply:"]
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
        lines += [line for each in (self.edge, self.noise) if each for line in ("", str(each))]
        lines += ["", "strained assumptions:" if self.strained else "no assumption is strained"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.strained)])


def outlook(run: Experiment) -> Outlook:
    """Predict a run.

    Raises:
        ValueError: for one that no theory describes.
    """
    engines, refused = judged(run)
    known = {name: each.observables.names() for name, each in engines.items()}
    # The loss of the next batch has the mean of the population's, where that is not known.
    every = {name for names in known.values() for name in names}
    wanted = next((name for name in ("loss", BATCH_LOSS) if name in every), "")
    found = {name: each for name, each in engines.items() if wanted in known[name]}
    if not found:
        reasons = dict.fromkeys(("no theory describes its loss", *refused.values()))
        raise ValueError(f"{run.about}: {'; '.join(reasons)}")
    name, engine = next(iter(found.items()))
    sweep = Sweep(run, {"seed": [run.seed]}, name, (wanted,), LOSS_TIMES)
    solved = run_sweep(sweep).load().isel(seed=0)
    times, loss = solved.time.values, np.asarray(solved[wanted].values, np.float64)
    problem, rule = run.built
    jumps = {float(jump) for each in rule.schedules.values() for jump in each.jumps()}
    strained, reached, scattered = [], None, None
    # Problems with theories of fewer variables alone have no loss of all weights to descend.
    if run.steps is not None and problem.has("population_loss"):
        key = jax.random.fold_in(jax.random.key(0), run.seed)
        # A theory that reads the batch is no limit of large batches and small steps.
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


DESCENT_STEPS = 100_000
"""Horizon up to which a symmetric task is descended step by step, which is exact for any rate."""
FLOW = "population flow"
"""What predicts all other tasks; it is compared with descent over the first steps."""
FLOW_TIMES = 64
"""Recorded times of the flow."""


@dataclasses.dataclass(frozen=True)
class Explain:
    """Predict a run from theory, without running it: its loss, its transition times, and the
    assumptions that it strains. Of the attention layer in Y and Z the prediction is for T, batch
    -> infinity.

    Attributes:
        run: what is predicted.
        json: print JSON instead of text.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz"}

    run: Experiment
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
    edge: strain.Reached | None

    def text(self, run: Experiment) -> str:
        """The explanation as lines to print."""
        task, rule = yz.classes_of(run), run.rule.build()
        sizes = f"K = {int(task.K)}, M = {int(task.M)}"
        lines = [f"{run.about}: {sizes}, {rule}, {run.steps} steps", ""]
        if self.stages:
            rows = {
                "gamma peaks at t (exact)": self.stages["peak"],
                "  where gamma is": self.stages["peak_gamma"],
                "rise ends, about (t0')": self.stages["rise_end"],
                "decay begins, about (t0)": self.stages["snap"],
            }
            lines += [f"{label:<28}{value:>12.4g}" for label, value in rows.items()]
            lines += [f"{'regime':<28}{self.regime}", ""]
        lines.append(f"at step {run.steps}, by the {self.theory}, {self.status}:")
        labels = {
            "loss": "loss (nat)",
            "accuracy": "accuracy",
            "entropy": "entropy on distinct tokens",
            "effective_tokens": "  effective number of tokens",
            "z_top_distinct": "logit, top distinct token",
            "z_top_common": "logit, top common token",
            "speed": "speed coefficient",
        }
        lines += [f"  {label:<28}{self.final[field]:>12.5g}" for field, label in labels.items()]
        if self.edge:
            lines += ["", str(self.edge)]
        lines += ["", "strained assumptions:" if self.strained else "no assumption is strained"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.strained)])


def run(config: Explain) -> None:
    """Predict and print."""
    found = explain(config.run)
    if config.json:
        print(json.dumps(output.as_json(dataclasses.asdict(found)), indent=2))
    else:
        print(found.text(config.run))


def explain(run: Any = "yz", /, **settings: Any) -> "Explanation | Outlook":
    """Predict a run from the closed form and the best applicable theory.

    Args:
        run: a `sweeps.Experiment`; or a problem or its word, as `sweeps.experiment` takes it.
        settings: of the run, by name.

    Returns:
        An `Explanation` of the layer in Y and Z, an `Outlook` of any other problem.

    Raises:
        ValueError: naming the setting, its value and what is allowed; for runs that no theory
            describes.

    Example:
        >>> found = sweeps.explain("yz", eta_y=1.0, eta_z=0.1, steps=50)
    """
    asked = made(run, **settings)
    asked.check(rounded=False)
    return _of_layer(asked) if registry.system_of(asked).name == "yz" else outlook(asked)


def _of_layer(run: Experiment) -> Explanation:
    steps, rule = checks.steps("steps", run.steps), run.rule.build()
    layer = run.bare
    if layer.start != "zero":
        raise ValueError(f"start = {layer.start!r}: the prediction starts from zero weights")
    check_moves(run)
    task = yz.classes_of(run)
    record = ("loss", "accuracy", "entropy", "z_top_distinct", "z_top_common", "speed")
    with precision("float64"):
        theory, solved = _solve(task, rule, steps, record)
        stages = stages_of(task, rule)
        reasons = strained(layer.length, task, rule, stages)
        final = final_of(solved)
        if theory == FLOW:
            assert not isinstance(task, SymmetricTask)
            whole, key = _without_limits(task), jax.random.key(0)
            times, loss = np.asarray(solved.times), np.asarray(solved["loss"])
            reasons += strain.too_coarse(whole, rule, key, steps, theory, times, loss)
    edge = None
    if not isinstance(task, SymmetricTask):
        edge = strain.reached(_without_limits(task), rule, jax.random.key(0), steps)
    return Explanation(
        theory,
        dynsim.Status(int(solved.status)).name,
        stages,
        regime(steps, stages, final),
        {**final, "effective_tokens": math.exp(final["entropy"])},
        tuple(reasons),
        edge,
    )


def _without_limits(task: dynsim.SequenceClasses) -> dynsim.Layer:
    """The layer that the flow is of. It starts from zero weights, so that no key decides them."""
    return dynsim.layer(task, length=math.inf, start="zero")


def _solve(
    task: Task, optimizer: Rule, steps: int, record: tuple[str, ...]
) -> tuple[str, Trajectory]:
    """The most exact prediction there is, and what it is by."""
    large = isinstance(task, SymmetricTask)
    if large or inapplicable(Training(task, optimizer)) is None:
        reduced = task if large else symmetric.symmetric_task(task)
        if steps <= DESCENT_STEPS:
            run = symmetric.descend(reduced, optimizer, steps=steps, times=[steps], record=record)
            return "symmetric reduction, step by step", run
        solved = symmetric.solve(reduced, optimizer, np.array([0.0, steps]), record=record)
        return "symmetric reduction, flow", solved
    times = dynsim.log_times(steps, FLOW_TIMES)
    return FLOW, population.solve(task, optimizer, times, record=record)
