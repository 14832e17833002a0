"""What trains transformers on text."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
from jaxtyping import Array, PRNGKeyArray

from dynsim import LanguageModel, Trajectory, train
from dynsim.problem.checks import table
from dynsim.training.rule import Rule
from dynsim.transformer.model import Transformer, TransformerSpec
from dynsim.transformer.task import Text, text
from sweeps.systems.base import Engine, Settings, known
from sweeps.systems.transformer.settings import Fixed


def _assemble(
    settings: Settings[Fixed], prepared: Text, point: Mapping[str, Array]
) -> tuple[Text, Rule]:
    return prepared, settings.fixed.rule.filled(point, ())


def _simulate(
    settings: Settings[Fixed], task: Text, optimizer: Rule, key: PRNGKeyArray
) -> Trajectory:
    fixed = settings.fixed
    shape = dataclasses.asdict(fixed.sizes)
    del shape["vocabulary"]
    return train(
        LanguageModel(task, **shape, num_held_out=fixed.num_held_out),
        optimizer,
        key,
        steps=fixed.steps,
        batch=fixed.batch,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


@functools.lru_cache(64)
def _weights(spec: TransformerSpec) -> int:
    model = jax.eval_shape(lambda: Transformer(spec, jax.random.key(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model))


def _bytes(task: Text, settings: Settings[Fixed]) -> int:
    fixed = settings.fixed
    spec = fixed.spec(task.vocabulary)
    weights = _weights(spec)
    # Logits and their gradient, on a batch or on the held-out windows; weights, gradient, moments.
    logits = 2 * max(fixed.batch, fixed.num_held_out) * spec.length * task.vocabulary
    maps = 2 * fixed.num_held_out * spec.layers * spec.heads * spec.length**2
    return settings.width * (4 * weights + logits + maps)


TRAINED = table(LanguageModel(text([0] * 36, [0] * 36, 2)))
ENGINES: dict[str, Engine[Fixed]] = {
    "simulation": Engine(_simulate, _assemble, TRAINED, _bytes, tile=1, trains=True, goes_on=True)
}
"""The engine of transformers on text."""
