"""Names of earlier versions, kept for one version: they warn, and call what replaced them."""

import dataclasses
from typing import Any

from jaxtyping import PRNGKeyArray, Real

from dynsim import checks
from dynsim.linear_icl.model import Heads, Model
from dynsim.linear_icl.regression import Regression
from dynsim.precision import DType, Number, precision, settle
from dynsim.problem.train import started, train
from dynsim.training.rule import Rule
from dynsim.trajectory import Trajectory


def simulate_regression(
    task: Regression,
    optimizer: Rule,
    key: PRNGKeyArray,
    *,
    heads: Heads = Heads(),  # noqa: B008  (immutable)
    scale: Real[Number, ""] = 0.01,
    data: Any = "fresh",
    batch: int | float = 256,
    **options: Any,
) -> Trajectory:
    """`dynsim.train`; the shape, the scale and the data are settings of `dynsim.regression`."""
    checks.deprecated("simulate_regression", "train")
    return train(_regression(task, heads, scale, data), optimizer, key, batch=batch, **options)


def initial_regression(
    task: Regression,
    key: PRNGKeyArray,
    heads: Heads = Heads(),  # noqa: B008  (immutable)
    scale: Real[Number, ""] = 0.01,
    dtype: DType = "float32",
) -> Model:
    """The weights from which a run with this `key` starts; theories take the key itself."""
    checks.deprecated("initial_regression", "the argument key of a theory")
    with precision(dtype, task, key, scale):
        problem = _regression(task, heads, scale, "fresh")
        start = started(problem, key, None, dtype)
    return settle(start.whole(start.params))


def _regression(task: Regression, heads: Heads, scale: Any, data: Any) -> Regression:
    shape: dict[str, Any] = heads._asdict()
    if heads.attention != "separate":
        shape["rank"] = None
    return dataclasses.replace(task, **shape, scale=scale, data=data)
