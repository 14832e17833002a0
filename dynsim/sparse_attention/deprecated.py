"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

from typing import Any

from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.problem.train import train
from dynsim.sparse_attention.retrieval import Retrieval
from dynsim.training.rule import Rule
from dynsim.trajectory import Trajectory


def simulate_retrieval(
    task: Retrieval, optimizer: Rule, key: PRNGKeyArray | None = None, **options: Any
) -> Trajectory:
    """`dynsim.train(task, optimizer, key, ...)`."""
    checks.deprecated("simulate_retrieval", "train")
    return train(task, optimizer, key, **options)
