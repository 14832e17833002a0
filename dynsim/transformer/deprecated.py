"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

import dataclasses
from typing import Any

from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.problem.train import train
from dynsim.training.optax_rule import AnyRule
from dynsim.trajectory import Trajectory
from dynsim.transformer.language import LanguageModel
from dynsim.transformer.model import TransformerSpec
from dynsim.transformer.task import Text


def simulate_text(
    task: Text,
    sizes: TransformerSpec,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    *,
    batch: int = 20,
    num_held_out: int = 64,
    **options: Any,
) -> Trajectory:
    """`dynsim.train`; the text and the sizes are settings of `dynsim.LanguageModel`."""
    checks.deprecated("simulate_text", "train")
    if sizes.vocabulary != task.vocabulary:
        raise ValueError(
            f"sizes.vocabulary = {sizes.vocabulary}: must be the text's, {task.vocabulary}"
        )
    shape = dataclasses.asdict(sizes)
    del shape["vocabulary"]
    problem = LanguageModel(task, **shape, num_held_out=num_held_out)
    return train(problem, optimizer, key, batch=batch, **options)
