"""The snapshot of a layer in ordinary parameters, for `dynsim.yz.observables`."""

import dataclasses

import jax
import jax.numpy as jnp

from dynsim.classes.task import SequenceClasses
from dynsim.qkv import model as qkv
from dynsim.qkv.model import Embedded
from dynsim.yz import model as yz
from dynsim.yz import observables
from dynsim.yz.observables import Snapshot

SYSTEMS = ("qkv", "yz")
MEASURED = dataclasses.replace(observables.MEASURED, systems=SYSTEMS)
"""What can be measured on weights at one moment."""
TRAINED = dataclasses.replace(observables.TRAINED, systems=SYSTEMS)
"""What training records: the same, and the losses on its batches."""


def measure(task: SequenceClasses, params: Embedded) -> Snapshot:
    """Snapshot of the layer in the limit T -> infinity, without a positional prior.

    For one head with l2 normalisation by "theory" it is `dynsim.yz.observables.measure` of
    `dynsim.qkv.model.effective`. Otherwise the output logits are still those of the model, and

        z, c, g   are means over the heads, and f = c / |c|
        g         is sent back to norm(a) by "theory"; in "practice" the gradient at norm(a U),
                  taken to the tokens by U

    so that "speed" and "xi" compare with the theory up to the scale of the normalisation.
    """
    examples = yz.population(task)
    z = qkv.attention_logits(params, task)[:, task.query_index]
    c = qkv.attend(params, task, examples)
    x = qkv.read(params, c)
    logits, back = jax.vjp(lambda x: qkv.decode(params, task, x, examples.classes), x)
    (g,) = back(yz.cross_entropy(logits, task.next_token)[1])
    if params.placement == "practice":
        g = g @ params.U.T
    c = jnp.mean(c, axis=0)
    return Snapshot(jnp.mean(z, axis=0), c, yz.normalise(c), logits, jnp.mean(g, axis=0))
