"""`dynsim explain`: predicts a run from theory, without running it."""

import dataclasses
import json
import math
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

import dynsim
from dynsim import Rule, Trajectory, checks
from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.solve import inapplicable
from odes.symmetric.state import SymmetricTask
from odes.theory import Training
from odes.yz import population
from sweeps import output
from sweeps.commands import strain
from sweeps.commands.regime import final_of, regime, stages_of, strained
from sweeps.compare.stages import Task, check_moves
from sweeps.systems import registry, yz
from sweeps.systems.experiment import Experiment, made

if TYPE_CHECKING:
    from sweeps.commands.outlook import Outlook

DESCENT_STEPS = 100_000
"""Maximum number of steps to solve descent of a symmetric task, which is exact for any rate."""
FLOW = "population flow"
"""The theory of all other tasks; it is compared with descent over the first steps."""
TIMES = 64
"""Number of recorded times of the flow."""


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
    """The predictions of `explain` for the attention layer in Y and Z.

    Attributes:
        theory: title of the theory that computed the final values.
        status: status of its solve.
        stages: t0', peak, gamma at the peak, t0, averaged over classes; None for Adam.
        regime: "scanning at the end", "in transition at the end" or "snapped", by the closed form's
            t0' and t0; or that attention has not moved by then; None for Adam, which the closed
            form does not describe.
        final: observables at the last step, averaged over classes.
        strained: assumptions that hold poorly for this run, one sentence each.
        edge: when the flow of all weights reaches the edge of stability; None if unknown.
    """

    theory: str
    status: str
    stages: dict[str, float] | None
    regime: str | None
    final: dict[str, float]
    strained: tuple[str, ...]
    edge: strain.Reached | None

    def text(self, run: Experiment) -> str:
        """Format the explanation as text."""
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
        run: a `sweeps.Experiment`; or a problem or its name, as in `sweeps.experiment`.
        settings: settings of the run, by name.

    Returns:
        An `Explanation` of the layer in Y and Z, an `Outlook` of any other problem.

    Raises:
        ValueError: naming the setting, its value and what is allowed; or if no theory describes the
            run.

    Example:
        >>> found = sweeps.explain("yz", eta_y=1.0, eta_z=0.1, steps=50)
    """
    asked = made(run, **settings)
    asked.check(rounded=False)
    if registry.system_of(asked).name == "yz":
        return _of_layer(asked)
    # Imported on demand: its imports take half as long as the layer's prediction.
    return pkgutil.resolve_name("sweeps.commands.outlook:outlook")(asked)


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
    """Return the layer that the flow describes. It starts from zero weights and needs no key."""
    return dynsim.layer(task, length=math.inf, start="zero")


def _solve(
    task: Task, optimizer: Rule, steps: int, record: tuple[str, ...]
) -> tuple[str, Trajectory]:
    """Return the most exact prediction available, and the title of its theory."""
    large = isinstance(task, SymmetricTask)
    if large or inapplicable(Training(task, optimizer)) is None:
        reduced = task if large else symmetric.symmetric_task(task)
        if steps <= DESCENT_STEPS:
            run = symmetric.descend(reduced, optimizer, steps=steps, times=[steps], record=record)
            return "symmetric reduction, step by step", run
        solved = symmetric.solve(reduced, optimizer, np.array([0.0, steps]), record=record)
        return "symmetric reduction, flow", solved
    times = dynsim.log_times(steps, TIMES)
    return FLOW, population.solve(task, optimizer, times, record=record)
