"""What training and theory of the attention layer require of their arguments."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.training.checkpoint import Checkpoint, checked_start
from dynsim.training.course import Legs, legs_of
from dynsim.training.optax_rule import AnyRule, OptaxRule
from dynsim.training.recording import Record, Recording, Table
from dynsim.training.rule import Rule
from dynsim.training.run_checks import check_rule, checked_times
from dynsim.trajectory import Times
from dynsim.yz import finite_length
from dynsim.yz import model as yz
from dynsim.yz.sampling import MOST_TOKENS


class Arguments(NamedTuple):
    """What training in either parametrisation makes of the arguments that both have."""

    rule: AnyRule
    key: PRNGKeyArray
    steps: int
    length: int | float
    batch: int | float
    times: Times
    record: Recording
    checkpoint: Checkpoint | None
    legs: Legs | None


def checked_arguments(
    task: SequenceClasses,
    rule: AnyRule,
    key: PRNGKeyArray | None,
    *,
    steps: int,
    length: int | float,
    batch: int | float,
    times: Times | None,
    record: Record,
    data: yz.Examples | None,
    table: Table,
    drawn: str | None,
    checkpoint: Checkpoint | bool,
) -> Arguments:
    """Check what `simulate` documents, and fill in what was left out.

    Args:
        table: what can be recorded.
        drawn: what makes the starting weights random; None if they are not.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    checks.kind("task", task, SequenceClasses)
    steps = checks.steps("steps", steps)
    rule = checked_rule(rule, steps, key, resumable=bool(checkpoint))
    if key is not None:
        checks.key("key", key)
    length = checks.count_or_inf("length", length, 2)
    batch = checks.count_or_inf("batch", batch, 1)
    if math.isinf(batch) and data is None:
        finite_length.check_length(task, length)
    tokens = 0 if data is not None else batch * length
    if MOST_TOKENS < tokens < math.inf:
        raise ValueError(
            f"batch = {batch}, length = {length}: a step would draw {tokens} tokens, at most "
            f"{MOST_TOKENS} are possible; batch = inf and length = inf are their limits"
        )
    recording = table.resolve(record)
    start = checked_start(checkpoint)
    times = checked_times(times, steps, recording, start)
    check_data(data, task, steps)
    if key is None:
        if drawn is not None:
            raise ValueError(f"key = None: {drawn} draws weights and needs a key")
        if data is None and not math.isinf(batch):
            raise ValueError(f"key = None: sampling batch = {batch} sequences needs a key")
        key = jax.random.key(0)
    legs = legs_of(times, steps, start)
    return Arguments(rule, key, steps, length, batch, times, recording, start, legs)


def checked_rule(
    rule: AnyRule, steps: int, key: PRNGKeyArray | None, *, resumable: bool
) -> AnyRule:
    """The rule of a training with rates for Y and Z; raises `ValueError` for what is no rule or
    several, for rates of other groups, and for noise without a key."""
    checks.kind("optimizer", rule, Rule, OptaxRule)
    checks.scalars("optimizer", rule)
    check_rule(rule, steps, resumable)
    if rule.noise is not None and key is None:
        raise ValueError("key = None: the noise of the optimizer needs one")
    return rule.of_groups("Y", "Z")


def theory_rule(rule: Rule) -> Rule:
    """The rule of a theory with rates for Y and Z; raises `ValueError` as `checked_rule`."""
    checks.kind("optimizer", rule, Rule)
    return rule.of_groups("Y", "Z")


def check_data(data: yz.Examples | None, task: SequenceClasses, steps: int) -> None:
    """Raise `ValueError` unless `data`, if given, hold `steps` batches of `task`."""
    if data is None:
        return
    shape = np.shape(data.counts)
    if len(shape) != 3 or shape[0] != steps or shape[2] != task.M:
        raise ValueError(
            f"data.counts: must have shape (steps = {steps}, E, M = {task.M}), got {shape}"
        )
    for name in ("classes", "weight"):
        if np.shape(getattr(data, name)) != shape[:2]:
            got = np.shape(getattr(data, name))
            raise ValueError(
                f"data.{name}: must have shape {shape[:2]} like data.counts, got {got}"
            )
