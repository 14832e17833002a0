"""The part of the distance between central flow and training that comes from bursts: `make tables
TABLES=bursts`.

GELU networks 4-12-1 with 73 weights learn 24 examples at a rate of 0.8, where some of them have
bursts: the oscillation grows and collapses. The effects of the averaging width, of nearly equal
starts and of the first burst are properties of the runs, not errors of a flow. To exclude the last
one, both flows also start again from averaged weights after the first burst.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Num

import dynsim
import odes
from dynsim.precision import AnyArray
from dynsim.problem.sharpness import EDGE
from sweeps import output
from sweeps.runner import progress
from sweeps.studies.edge import SMOOTH, averaged

INPUTS, WIDTH, EXAMPLES, SCALE = 4, 12, 24, 0.6
SEEDS = (0, 1, 4)
ETA, STEPS, AGAIN = 0.8, 900, 200
"""Rate, steps, and the earliest step from which the flows start again."""
WINDOWS = (SMOOTH, 200)
"""Steps over which weights are averaged."""
RUNS, NUDGE = 8, 1e-3
"""Number of runs, and standard deviation of the differences between their starts."""
EVERY = 20
"""Steps between recorded times of the flows."""


class Gelu(dynsim.Problem):
    """A network with biases on its own examples, with weights as one array.

    Attributes:
        x: inputs.
        y: targets.
        begin: starting weights.
    """

    x: Num[AnyArray, "n d"]
    y: Num[AnyArray, " n"]
    begin: Num[AnyArray, " P"]

    def init(self, key):
        return jnp.asarray(self.begin, "float32")

    def population_loss(self, params):
        ends = np.cumsum([INPUTS * WIDTH, WIDTH, WIDTH])
        first, bias, last, shift = jnp.split(params, ends)
        hidden = self.x @ first.reshape(WIDTH, INPUTS).T + bias[None]
        found = jax.nn.gelu(hidden, approximate=False) @ last + shift
        return jnp.mean((found - self.y) ** 2) / 2


def network(seed: int) -> Gelu:
    """Return the network of a seed, with the targets sin(2 x_1) + x_1 x_2 / 2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(EXAMPLES, INPUTS))
    first = rng.normal(size=INPUTS * WIDTH) / math.sqrt(INPUTS)
    last = rng.normal(size=WIDTH) / math.sqrt(WIDTH)
    begin = SCALE * np.concatenate([first, np.zeros(WIDTH), last, np.zeros(1)])
    return Gelu(x, np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] / 2, begin)


def trained(problem: Gelu) -> Float[np.ndarray, "R S P"]:
    """Train from nearly equal starts, the first run from `begin` itself; return all weights."""
    nudges = NUDGE * np.random.default_rng(0).normal(size=(RUNS, len(problem.begin)))
    nudges[0] = 0
    steps = STEPS + max(WINDOWS)
    options: dict[str, Any] = {"times": range(steps + 1), "record": {"w": lambda _, w: w}}

    def run(begin):
        given = dataclasses.replace(problem, begin=begin)
        return odes.descent(given, dynsim.sgd(ETA), key=jax.random.key(0), **options)["w"]

    with jax.enable_x64(True):
        return np.asarray(jax.vmap(run)(jnp.asarray(problem.begin + nudges)))


class Flow(NamedTuple):
    """Weights (S, P) at the times of a flow, and its predicted oscillation (S,)."""

    weights: Float[np.ndarray, "S P"]
    oscillation: Float[np.ndarray, " S"]


def flows(problem: Gelu, begin: Float[np.ndarray, " P"], steps: int) -> tuple[Flow, Flow]:
    """Solve the central flow (NaN where it fails) and the gradient flow from given weights."""
    given, times = dataclasses.replace(problem, begin=begin), np.arange(0, steps + 1, EVERY)
    own, record = ["oscillation"], {"w": lambda _, w: w}
    options: dict[str, Any] = {"key": jax.random.key(0)}
    central = odes.central_flow(given, dynsim.sgd(ETA), times, record=[*own, record], **options)
    failed = central.status != dynsim.Status.OK
    plain = odes.flow(given, dynsim.sgd(ETA), times, record=record, **options)
    held = np.where(failed, np.nan, central["w"])
    return Flow(held, np.asarray(central["oscillation"])), Flow(np.asarray(plain["w"]), 0 * times)


def sharpness(problem: Gelu, weights: Float[np.ndarray, "S P"]) -> Float[np.ndarray, " S"]:
    """Return the rate times the largest eigenvalue of the Hessian."""
    with jax.enable_x64(True):
        hessian = jax.jit(jax.vmap(jax.hessian(problem.population_loss)))
        return ETA * np.linalg.eigvalsh(hessian(jnp.asarray(weights)))[:, -1]


def row(seed: int) -> tuple[str, ...]:
    """Measure a network and return its row of the table."""
    problem = network(seed)
    runs = trained(problem)
    times = np.arange(STEPS // 2, STEPS + 1, EVERY)

    def means(values, window):
        """Return averages centred on the times."""
        return averaged(values, window)[times - window // 2]

    def off(flow, begin=0, of=runs[0]):
        """Return the mean distance of a flow that began at step `begin` from averaged weights."""
        at = flow.weights[(times - begin) // EVERY]
        return np.linalg.norm(at - means(of, SMOOTH), axis=1).mean()

    sharp = {window: sharpness(problem, means(runs[0], window)) for window in WINDOWS}
    central, plain = flows(problem, np.asarray(problem.begin), STEPS)
    # The first step after a burst: no flow can begin beyond the edge.
    possible = np.arange(AGAIN, STEPS // 2, EVERY)
    middles = averaged(runs[0], SMOOTH)[possible - SMOOTH // 2]
    chosen = int(np.argmax(sharpness(problem, middles) < EDGE))
    again = int(possible[chosen])
    later = flows(problem, middles[chosen], STEPS - again)
    apart = runs - runs.mean(0, keepdims=True)
    swing = np.sum((np.diff(runs[0], axis=0) / 2) ** 2, axis=1)
    share = swing[STEPS // 2 : STEPS].mean() / central.oscillation[times // EVERY].mean()
    ranges = (
        f"{each.mean():.2f} ({each.min():.2f} to {each.max():.2f})" for each in sharp.values()
    )
    numbers = (
        off(plain),
        off(central),
        np.linalg.norm(apart[:, times], axis=-1).mean(),
        off(central, of=runs.mean(0)),
        *(off(flow, again) for flow in reversed(later)),
        share,
    )
    return str(seed), *ranges, *(f"{number:.2f}" for number in numbers)


def markdown() -> str:
    """Return the table of the networks."""
    head = (
        "network",
        *(f"sharpness, {window} steps" for window in WINDOWS),
        "gradient flow off",
        "central flow off",
        "runs from their mean",
        "central flow off their mean",
        "gradient flow off, begun again",
        "central flow off",
        "variance over predicted",
    )
    return "\n".join(output.markdown_table(head, map(row, progress.track(SEEDS, "network"))))


if __name__ == "__main__":
    print(markdown())
