"""The attention layer in Y and Z (Scan and Snap) in sweeps: training, and all theories.

Most theories follow from the problem. This module adds descent at finite T, the theories of the
symmetric reduction, and the standard deviation across seeds.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import PRNGKeyArray

from dynsim import Layer, Rule, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.memory import COPIES
from dynsim.training import loop
from dynsim.training.recording import Table
from dynsim.trajectory import Times
from dynsim.yz.model import YZ
from dynsim.yz.observables import DEFAULT_RECORD, OBSERVABLES
from odes.batch_noise import STD
from odes.general import WHOLE
from odes.solver.linear_noise import check_described
from odes.theory import AnyTheory, Training, error_message, named
from odes.yz import THEORIES, spread
from sweeps.systems.base import RecordEntries, names_of
from sweeps.systems.reduction import (
    NOISE,
    AnyLayer,
    NoisyDescent,
    ReducedDescent,
    ReducedFlow,
    at_finite_length,
    count_weights,
    solve_reduced,
)
from sweeps.systems.training import of_infinite_length

DRIFT = "_drift"
"""Suffix for the shift of a mean by noise."""
DRAWS = 1
"""Noise draws per start for the average of a drift; a sweep also averages over its starts."""


@dataclasses.dataclass(frozen=True)
class Spread(AnyTheory):
    """Linear noise, which records noise-free means, and with suffixes `STD` and `DRIFT` the effects
    of noise. Each recorded time costs a backward pass."""

    records: ClassVar[int | None] = 9

    def observables(self, problem: AnyLayer) -> Table:
        """Return the default observables of the layer, each with both suffixes."""
        del problem
        functions = {name: OBSERVABLES[name] for name in DEFAULT_RECORD}
        suffixes = ("", STD, DRIFT)
        return Table({name + end: f for end in suffixes for name, f in functions.items()})


def _solve_spread(
    layer: Layer,
    rule: Rule,
    times: Times,
    *,
    init: YZ,
    key: PRNGKeyArray,
    batch: int,
    record: RecordEntries,
    dtype: DType,
    squares: bool,
) -> Trajectory:
    # Mean, standard deviation and drift of one observable come from the same solution.
    means = dict.fromkeys(
        entry.removesuffix(STD).removesuffix(DRIFT) if isinstance(entry, str) else entry
        for entry in record
    )
    options: dict[str, Any] = {
        "batch": batch,
        "length": layer.length,
        "init": init,
        "record": tuple(means),
        "dtype": dtype,
        "squares": squares,
    }
    solved = spread.solve(layer, rule, times, **options)
    values = {**solved.observables, **{name + STD: std for name, std in solved.std.items()}}
    names = names_of(record)
    if any(name.endswith(DRIFT) for name in names):
        # Split from the key that draws the batches in training.
        noise_key = loop.split_key(key)[1]
        drift = spread.drift(layer, rule, times, noise_key, draws=DRAWS, **options)
        values |= {name + DRIFT: shift for name, shift in drift.observables.items()}
    observables = {name: values[name] for name in names}
    return dataclasses.replace(solved, observables=observables, covariance=None)


def _spread_inapplicable(training: Training) -> str | None:
    return (
        error_message(checks.integer, "batch", training.batch, 1)
        or error_message(training.problem.check_population)
        or error_message(check_described, training.rule)
    )


def _spread_memory(training: Training, times: int, record: RecordEntries) -> int:
    del times
    # Per recorded number, its derivative by all weights; and the states between checkpoints.
    task, states = training.problem.classes, 2 * math.isqrt(training.steps or 1)
    return 8 * COPIES * (len(record) * task.K + states) * count_weights(task)


SPREAD = Spread(
    "spread",
    "descent, T finite, batch infinite, and spread over seeds",
    "1/T^2 -> 0, noise of batches to first order",
    functools.partial(_solve_spread, squares=False),
    _spread_inapplicable,
    needs=("init", "key", "batch"),
    adaptive=False,
    at_once=16,
    memory=_spread_memory,
)
SPREAD_SQUARES = dataclasses.replace(
    SPREAD,
    name="spread-squares",
    title=f"{SPREAD.title}, noise in Adam's denominator",
    solve=functools.partial(_solve_spread, squares=True),
    variant=True,
)


def theories(known: Mapping[str, AnyTheory]) -> dict[str, AnyTheory]:
    """Return training, descent at infinite batch (of all parameters, or of the reduced ones of a
    symmetric task), all theories, and those of finite-batch effects."""
    infinite = dataclasses.replace(
        of_infinite_length(known)["descent"],
        variant=False,
        title="descent, T infinite, batch infinite",
        assumes="T -> infinity, batch -> infinity",
    )
    finite = dataclasses.replace(
        infinite,
        title="descent, T finite, batch infinite",
        assumes="1/T^2 -> 0, batch -> infinity",
        at=at_finite_length,
    )
    symmetry = "symmetric task, zero weights at the start"
    reduced_finite, reduced_infinite = (
        ReducedDescent(
            named("symmetric-descent", descent is finite),
            f"{descent.title}, reduced",
            f"{descent.assumes}, {symmetry}",
        )
        for descent in (finite, infinite)
    )
    noisy = NoisyDescent(
        NOISE,
        "descent of each class with the noise of batches, reduced",
        f"1/T^2 -> 0, normal noise, classes share no noise, {symmetry}",
    )
    flows = {theory.name: theory for theory in THEORIES}
    for name in (named("symmetric", finite=True), named("symmetric", finite=False)):
        flows[name] = ReducedFlow(**{**vars(flows[name]), "solve": solve_reduced})
    # In the order of tables; `theory = "best"` is the first that applies.
    return {
        "simulation": known["simulation"],
        named("descent", finite=True): finite,
        "descent": infinite,
        **flows,
        reduced_finite.name: reduced_finite,
        WHOLE.name: known[WHOLE.name],
        SPREAD.name: SPREAD,
        SPREAD_SQUARES.name: SPREAD_SQUARES,
        reduced_infinite.name: reduced_infinite,
        NOISE: noisy,
        "central": known["central"],
    }
