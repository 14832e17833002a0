"""`dynsim explain`: predict a run from theory, without running it."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import dynsim
from dynsim import Trajectory, checks
from dynsim.precision import precision
from dynsim.yz import model as yz
from odes import symmetric
from odes.formulas import decoder
from odes.solver.rescaled import Rescaled, undescribed
from odes.symmetric.state import SymmetricTask
from odes.yz import ladder, population
from odes.yz import symmetric as symmetric_layer
from sweeps import output
from sweeps.commands import outlook
from sweeps.compare import edge
from sweeps.systems.settings import given
from sweeps.systems.yz.tasks import ClassOptions as Problem

# Where an assumption counts as strained. Overlap: gamma's error against the population flow
# passes 5 % there (`dynsim validate overlap`). Discreteness: h* - h (Lemma 7) is then a tenth
# of the logit scale. Ratio: Assumption 1(c) of the paper, a decoder faster than the attention.
OVERLAP, KICK, RATIO = 0.3, 0.1, 2.0
MOVED = 0.05
"""Difference of the logits of top distinct and top common token below which attention, which it
changes by as many times, has not moved."""
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
    check_moves(config)
    record = ("loss", "accuracy", "entropy", "z_top_distinct", "z_top_common", "speed")
    with precision("float64"):
        theory, solved = _solve(task, optimizer, steps, record)
        stages = stages_of(task, optimizer)
        reasons = tuple(strained(config, task, optimizer, stages))
        final = final_of(solved)
    return Explanation(
        theory,
        dynsim.Status(int(solved.status)).name,
        stages,
        regime(steps, stages, final),
        {**final, "effective_tokens": math.exp(final["entropy"])},
        reasons,
        _edge(task, optimizer, steps),
    )


def check_moves(config: Any) -> None:
    """Raise `ValueError` for settings at which no weight moves."""
    if config.value("eta_y") == 0:
        given = "eta_y" if config.ratio is None else "ratio"
        raise ValueError(f"{given} = 0: nothing moves from zero weights; must be positive")


def stages_of(task: Task, optimizer: dynsim.Rule) -> dict[str, float] | None:
    """Transition times of the closed form, averaged over classes; None where it does not apply."""
    if undescribed(optimizer, "the closed form") is not None:
        return None
    clock = Rescaled.of(optimizer)
    rate = clock.rate * clock.eta_y
    found = decoder.stages(rate, 1 / jnp.asarray(_prior(task)), task.M)
    return {name: float(np.mean(t)) for name, t in found.at(clock.steps_at)._asdict().items()}


def final_of(solved: Trajectory) -> dict[str, float]:
    """What was recorded last, averaged over classes."""
    return {name: float(np.mean(np.asarray(v)[-1])) for name, v in solved.observables.items()}


def _edge(task: Task, optimizer: dynsim.Rule, steps: int) -> edge.Reached | None:
    """Of zero weights, which no key decides."""
    if isinstance(task, SymmetricTask):
        return None
    layer = dynsim.layer(task, length=math.inf, start="zero")
    return edge.reached(layer, optimizer, jax.random.key(0), steps)


def _prior(task: Task) -> np.ndarray:
    """(K,) prior of the classes; of a reduced task, whose classes are alike, that of one."""
    return np.ones(1) / int(task.K) if isinstance(task, SymmetricTask) else np.asarray(task.prior)


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


def regime(steps: int, stages: dict[str, float] | None, final: dict[str, float]) -> str | None:
    """Where a run is at its end, in words; None where the closed form does not apply."""
    if stages is None:
        return None
    if steps <= stages["rise_end"]:
        return "scanning at the end"
    # Without a t0 (M <= 3) there is no second stage to be in.
    if not steps >= stages["snap"]:
        return "in transition at the end"
    apart = abs(final["z_top_distinct"] - final["z_top_common"])
    if apart < MOVED:
        return f"decoder learned, attention unmoved: its logits are {apart:.2g} apart"
    return "snapped"


def strained(
    config: Any, task: Task, optimizer: dynsim.Rule, stages: dict[str, float] | None
) -> list[str]:
    """The assumptions that a run strains, one sentence each."""
    reasons = []
    overlap, tokens = _overlap(task)
    if overlap > OVERLAP:
        reasons.append(
            f"weak overlap (Theorem 1, Eq. 10): mean f_n.f_n' at the start is {overlap:.2f}, above "
            f"{OVERLAP}"
        )
    if stages is not None:
        clock = Rescaled.of(optimizer)
        kick = float(clock.rate) * clock.eta_y * float(np.max(_prior(task)))
        if kick > KICK * math.log(task.M):
            reasons.append(
                f"eta -> 0 (all flows): a step moves a class's logit by up to {kick:.2g}, above "
                f"{KICK} ln M = {KICK * math.log(task.M):.2g}; gamma peaks after "
                f"{stages['peak']:.2g} steps"
            )
        if config.eta_z > 0 and clock.eta_y / clock.eta_z < RATIO:
            reasons.append(
                f"decoder faster than attention (Assumption 1c): eta_Y / eta_Z = "
                f"{clock.eta_y / clock.eta_z:.3g}, below {RATIO:g}"
            )
        if optimizer.has_inertia:
            reasons.append(
                "no inertia (closed form, Eq. 10): momentum enters them only as eta / (1 - mu)"
            )
    if not math.isinf(config.length) and config.length <= 10 * tokens:
        reasons.append(
            f"T -> infinity (this prediction, and all theories but those of finite T): "
            f"T = {config.length} tokens sample {tokens} possible ones; `dynsim compare` also "
            "solves the finite-T theories"
        )
    return reasons


def _overlap(task: Task) -> tuple[float, int]:
    """Mean of f_n . f_n' over pairs of classes at zero weights, and how many tokens a class has."""
    if isinstance(task, SymmetricTask):
        common = float(task.sum_common(jnp.asarray(task.rho) ** 2))
        tokens = task.sum_distinct(jnp.ones(np.shape(task.p))) + task.sum_common(
            jnp.ones(np.shape(task.rho))
        )
        return common / (common + float(task.sum_distinct(jnp.asarray(task.p) ** 2))), int(tokens)
    f = np.asarray(yz.normalise(jnp.asarray(task.probs)))
    pairs = (f @ f.T - np.eye(task.K)).sum() / max(task.K * (task.K - 1), 1)
    return float(pairs), task.support.shape[1]
