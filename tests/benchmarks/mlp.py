"""A sweep of a small network against a typical loop in JAX with optax."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dynsim
import sweeps
from sweeps.runner.spec import Sweep
from tests.benchmarks.timing import cost, medians

SIZES = (16, 64, 64, 1)
STEPS, BATCH, DECAY = 100, 32, 1e-4
RATES, SEEDS = np.geomspace(1e-4, 1e-2, 8), 32
REPEATED = 5
"""Number of alternating measurements of each, of which the median is taken."""


class Net(dynsim.Problem):
    """A ReLU network that learns the product of two of its inputs."""

    def init(self, key: Any) -> list[Any]:
        pairs = list(itertools.pairwise(SIZES))
        keys = jax.random.split(key, len(pairs))
        return [
            (jax.random.normal(k, pair) * (2 / pair[0]) ** 0.5, jnp.zeros(pair[1]))
            for k, pair in zip(keys, pairs, strict=True)
        ]

    def draw(self, key: Any, batch: int) -> Any:
        x = jax.random.normal(key, (batch, SIZES[0]))
        return x, x[:, 0] * x[:, 1]

    def loss(self, params: list[Any], data: Any) -> Any:
        x, y = data
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b[None])
        w, b = params[-1]
        return jnp.mean(((x @ w + b[None])[:, 0] - y) ** 2) / 2


def report() -> Iterator[str]:
    """Yield the times of both, cold and warm, their ratios, and their losses."""
    # Programs cached by an earlier run would hide the compilation.
    jax.config.update("jax_enable_compilation_cache", False)
    planned = sweep(SEEDS)
    runs, losses = len(RATES) * SEEDS, {}

    def swept(out: Path | None = None) -> None:
        found = sweeps.run(planned, out, progress=False)
        losses["sweep"] = np.asarray(found.batch_loss).ravel()

    keys = jax.random.split(jax.random.key(1), SEEDS)
    each = jnp.tile(keys, len(RATES)), jnp.repeat(jnp.asarray(RATES, "float32"), SEEDS)
    loop = jax.jit(jax.vmap(plain))

    def looped() -> None:
        losses["loop"] = np.asarray(loop(*each))

    name = "-".join(map(str, SIZES))
    yield (
        f"{runs} runs of {STEPS} steps of AdamW, {name}, batch {BATCH}; "
        f"{len(jax.devices())} devices for the sweep, one for the loop"
    )
    cold = {"sweep": cost(swept), "loop": cost(looped)}
    warm: dict[str, list[list[float]]] = {"sweep": [], "loop": [], "stored": []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(REPEATED):
            warm["sweep"].append(cost(swept))
            warm["loop"].append(cost(looped))
            warm["stored"].append(cost(lambda i=i: swept(Path(folder) / str(i))))
    middle = {name: medians(costs) for name, costs in warm.items()}
    lines = {"sweep, cold": cold["sweep"], "loop, cold": cold["loop"]}
    lines |= {f"{name}, warm": found for name, found in middle.items()}
    for name, found in lines.items():
        yield f"  {name:<14} {found[0]:7.3f} s by the clock {found[1]:7.3f} s of CPU"
    yield "the loop takes, in units of the sweep:"
    for name, loops, swept_ in (
        ("cold", cold["loop"], cold["sweep"]),
        ("warm", middle["loop"], middle["sweep"]),
        ("warm, stored", middle["loop"], middle["stored"]),
    ):
        clock, cpu = (a / b for a, b in zip(loops, swept_, strict=True))
        yield f"  {name:<14} {clock:.2f} by the clock, {cpu:.2f} of CPU"
    # Runs of one seed share their data, so the error comes from the means over rates.
    by_seed = {name: x.reshape(len(RATES), SEEDS).mean(0) for name, x in losses.items()}
    text = ", ".join(
        f"{x.mean():.4f} ± {x.std(ddof=1) / SEEDS**0.5:.4f} ({name})" for name, x in by_seed.items()
    )
    yield f"loss of the last batch, mean over the runs: {text}"


def sweep(seeds: int, shift: float = 1.0) -> Sweep:
    trained = sweeps.Experiment(Net(), dynsim.adamw(1e-3, decay=DECAY), STEPS, BATCH)
    axes = {"eta": RATES * shift, "seed": range(seeds)}
    return Sweep(trained, axes, record=("batch_loss",), times="end")


def plain(key: Any, eta: Any) -> Any:
    """Train one run and return the loss of its last batch."""
    problem, optimizer = Net(), optax.adamw(eta, weight_decay=DECAY)
    start, draws = jax.random.split(key)
    params = problem.init(start)

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        loss, gradient = jax.value_and_grad(problem.loss)(params, problem.draw(key, BATCH))
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    carry = params, optimizer.init(params)
    (params, _), _ = jax.lax.scan(step, carry, jax.random.split(draws, STEPS))
    return problem.loss(params, problem.draw(jax.random.fold_in(draws, STEPS), BATCH))
