"""What trains transformers on text."""

import math
from collections.abc import Mapping

import jax
from jaxtyping import Array, PRNGKeyArray

from dynsim import Trajectory
from dynsim.training.descent import Descent
from dynsim.transformer.model import Transformer
from dynsim.transformer.observables import TRAINED
from dynsim.transformer.simulate import simulate_text
from dynsim.transformer.task import Text
from sweeps.systems.base import Engine, Settings
from sweeps.systems.transformer.settings import TextTraining


def _assemble(
    settings: Settings, prepared: Text, point: Mapping[str, Array]
) -> tuple[Text, Descent]:
    return prepared, Descent(**point, kind=settings.run.optimizer)


def _simulate(settings: Settings, task: Text, optimizer: Descent, key: PRNGKeyArray) -> Trajectory:
    run: TextTraining = settings.run
    return simulate_text(
        task,
        run.architecture(task.vocabulary),
        optimizer,
        key,
        steps=run.steps,
        batch=run.batch,
        num_held_out=run.num_held_out,
        times=settings.times,
        record=settings.record,
        dtype=settings.dtype,
    )


def _bytes(task: Text, settings: Settings) -> int:
    run: TextTraining = settings.run
    width = 8 if settings.dtype == "float64" else 4
    sizes = run.architecture(task.vocabulary)
    model = jax.eval_shape(lambda: Transformer(sizes, jax.random.key(0)))
    weights = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model))
    # Logits and their gradient, on a batch or on the held-out windows; weights, gradient, moments.
    logits = 2 * max(run.batch, run.num_held_out) * run.length * task.vocabulary
    maps = 2 * run.num_held_out * run.layers * run.heads * run.length**2
    return width * (4 * weights + logits + maps)


ENGINES: dict[str, Engine] = {
    "text": Engine(
        system=TextTraining,
        run=_simulate,
        assemble=_assemble,
        check=lambda *_: None,
        observables=TRAINED,
        bytes_per_run=_bytes,
        adaptive=False,
        tile=1,
        trains=True,
    ),
}
"""The engine of transformers on text."""
