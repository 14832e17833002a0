"""What the theories of JoMA make of the arguments that they share."""

import jax
from jaxtyping import Array, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.joma.model import Joint, Shape
from dynsim.joma.simulate import check_init, check_numbers, check_task
from dynsim.precision import DType, Number, cast
from dynsim.training.rule import Rule
from dynsim.yz.checks import theory_rule


def check_given(
    task: SequenceClasses,
    optimizer: Rule,
    init: Joint | None,
    shape: Shape,
    temperature: Real[Number, ""],
) -> Rule:
    """The rule with rates for Y and Z; raises `ValueError` for arguments that are not what `solve`
    takes. None is a start that is not read."""
    check_task(task, shape)
    optimizer = theory_rule(optimizer)
    checks.scalars("optimizer", optimizer)
    check_init(init, task)
    checks.scalar("temperature", temperature)
    check_numbers(0.0, temperature)
    return optimizer


def started(init: Joint, temperature: Real[Number, ""], dtype: DType) -> tuple[Joint, Array]:
    """Starting weights and temperature as arrays of `dtype`."""
    return jax.tree.map(lambda leaf: cast(leaf, dtype), init), cast(temperature, dtype)
