"""`dynsim explain NAME`: what theory predicts of a run of any system, without training it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import odes
from dynsim import Problem, Rule, Status
from dynsim.decoding import Seed
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.checks import check_groups
from dynsim.problem.train import problem_in, started
from sweeps.compare.comparison import judged
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import crossings
from sweeps.systems import registry
from sweeps.systems.settings import settings_class

# Where an assumption counts as strained. Curvature: along its direction a step of eta lambda = 0.2
# moves the weights by 10 % less than the flow does. Apart: the loss of descent is that share of the
# fall away from the flow's. Noise: the gradient of a batch is off by that share of its norm.
CURVATURE, APART, NOISE = 0.2, 0.05, 0.5
TIMES = 256
"""Recorded times, between which the loss is interpolated."""
FIRST = 1000
"""Steps over which descent is compared with the flow, at most."""
TURNS = 50
"""Of the power iteration, each a product of the Hessian with a vector."""


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
        reasons = "".join(f"; {name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"task = {training.task!r}: no theory describes its loss{reasons}")
    name, engine = next(iter(found.items()))
    axes = {"seed": {"range": 1}}
    sweep = Sweep(axes, training, name, ("loss",), TIMES, root=config.root)
    solved = run_sweep(sweep).load().isel(seed=0)
    times, loss = solved.time.values, np.asarray(solved.loss.values, np.float64)
    task, rule = training.make_task(), training.make_optimizer()
    changes, strained = (), []
    if isinstance(task, Problem) and isinstance(rule, Rule):
        jumps = {float(jump) for each in rule.schedules.values() for jump in each.jumps()}
        changes = tuple(sorted(jump for jump in jumps if 0 < jump < training.steps))
        key = jax.random.fold_in(jax.random.key(config.root), 0)
        strained = [
            *_too_coarse(task, rule, key, training.steps, engine.title, times, loss),
            *_too_noisy(task, key, training.steps, training.batch),
        ]
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
    )


def _too_coarse(
    problem: Problem,
    rule: Rule,
    key: jax.Array,
    steps: int,
    theory: str,
    times: np.ndarray,
    loss: np.ndarray,
) -> list[str]:
    """What the size of the steps strains: by the curvature, and by descent itself."""
    found = []
    if not rule.is_adaptive:
        size = largest_curvature(problem, rule, key, steps)
        if size > CURVATURE:
            limit = "" if rule.has_inertia else "; descent is unstable above 2"
            found.append(
                f"eta -> 0 (all flows): eta times the largest curvature at the start is {size:.2g},"
                f" above {CURVATURE}{limit}"
            )
    early = times <= FIRST
    # A run that can be resumed may end before its schedule does.
    run = odes.descent(problem, rule, times[early], key=key, record="loss", checkpoint=True)
    apart, fall = (np.abs(each).max() for each in (run["loss"] - loss[early], loss - loss[0]))
    over = f"over the first {int(times[early][-1])} steps"
    if int(run.status) != Status.OK:
        found.append(f"eta -> 0 (all flows): {over} descent at these rates diverges")
    elif apart > APART * fall:
        found.append(
            f"eta -> 0 ({theory}): {over} the loss of descent at these rates is up to "
            f"{100 * apart / fall:.2g} % of the fall away, above {100 * APART:g} %"
        )
    return found


def _too_noisy(problem: Problem, key: jax.Array, steps: int, batch: int | float) -> list[str]:
    """What the size of the batch strains."""
    if math.isinf(batch):
        return []
    share = batch_noise(problem, key, steps, int(batch))
    if share <= NOISE:
        return []
    return [
        f"batch -> infinity (all flows): the gradient of {batch:g} examples at the start is off by "
        f"{share:.2g} of its norm, above {NOISE}; `dynsim compare` also trains on batches"
    ]


def largest_curvature(problem: Problem, rule: Rule, key: jax.Array, steps: int) -> float:
    """Largest eigenvalue of the Hessian of the population loss at the start, times the largest
    learning rates of the run (without unit)."""
    with precision("float64"):
        return float(_curvature(problem, rule.astype("float64"), key, steps=steps))


@eqx.filter_jit
def _curvature(problem: Problem, rule: Rule, key: jax.Array, *, steps: int) -> jax.Array:
    parts, cast = started(problem, key, None, "float64"), problem_in(problem, "float64")
    groups = check_groups(cast, rule, parts)
    rates = jax.tree.map(jnp.max, rule.rate(jnp.arange(steps)))
    start, unravel = ravel_pytree(parts.params)
    gradient = jax.grad(lambda flat: cast.population_loss(parts.whole(unravel(flat))))

    def product(vector: jax.Array) -> jax.Array:
        _, bent = jax.jvp(gradient, (start,), (vector,))
        return -ravel_pytree(rule.descend(unravel(bent), rates, groups))[0]

    def dominant(shift: jax.Array | float) -> jax.Array:
        """Of the eigenvalues, the one farthest from -`shift`."""

        def turn(_: int, vector: jax.Array) -> jax.Array:
            turned = product(vector) + shift * vector
            return turned / jnp.linalg.norm(turned)

        vector = jax.random.normal(jax.random.key(0), start.shape, start.dtype)
        vector = jax.lax.fori_loop(0, TURNS, turn, vector / jnp.linalg.norm(vector))
        return vector @ product(vector)

    # At a saddle the farthest from 0 may be negative; from there the largest one is the farthest.
    return dominant(jnp.abs(dominant(0.0)))


def batch_noise(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Distance of the gradient of a batch from that of the population at the start, over the norm
    of the latter."""
    with precision("float64"):
        cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
        with jax.enable_x64(False):
            data = problem_in(problem, "float32").batches(key, steps, batch)(jnp.int32(0))
        weights = parts.whole(parts.params)
        exact = eqx.filter_grad(cast.population_loss)(weights)
        _, found = cast.loss_and_gradient(weights, narrowed(data, "float64"))
        want, got = (ravel_pytree(gradient)[0] for gradient in (exact, found))
        return float(jnp.linalg.norm(got - want) / jnp.linalg.norm(want))
