"""Hidden nodes and attention (JoMA) on sequence classes: settings, engines and labels."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, ArrayLike, PRNGKeyArray

import dynsim
from dynsim import Trajectory
from dynsim.decoding import CountOrInf, Length, NotNegative, Positive, Rate
from dynsim.joma.model import Activation, Attention, Head, Shape
from dynsim.joma.observables import TABLE, TRAINED
from dynsim.joma.simulate import check_numbers, check_sizes, initial_joma, simulate_joma
from dynsim.joma.task import fig2
from odes.joma import eliminated, ladder
from odes.theory import Theory
from sweeps.systems.base import Engine, Labels, Settings, System, known
from sweeps.systems.solving import integrate
from sweeps.systems.yz.settings import Fixed as LayerFixed
from sweeps.systems.yz.settings import LayerTraining
from sweeps.systems.yz.tasks import TASKS, Given

SCALES = ("scale", "temperature")


class Fixed(NamedTuple):
    """What runs of one program share besides the arrays of their task and their numbers."""

    training: LayerFixed
    shape: Shape


@dataclasses.dataclass(frozen=True)
class JoMA(LayerTraining):
    """Training of an MLP layer with a node a class and of the attention below it.

    Attributes:
        task: a task of the system yz; or joma: 20 classes of one query with distinct tokens in
            bumps, as in the paper's Fig. 2.
        num_queries: for syn-medium and syn: number of queries; 1 if omitted, as in Theorem 1.
        eta_y: learning rate of the MLP's weights V; 0.1 if omitted.
        eta_z: learning rate of the attention logits Z.
        attention: kind of attention.
        activation: activation of the hidden nodes.
        head: cross-entropy of the nodes, or a fixed signal.
        scale: standard deviation of the starting weights.
        temperature: temperature T of the attention.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        batch: sequences per step; inf, which requires an infinite length, for the population loss.
    """

    AXES: ClassVar = LayerTraining.AXES._replace(traced=(*LayerTraining.AXES.traced, *SCALES))

    DEFAULT_ETA_Y: ClassVar[float] = 0.1

    task: Given = "syn-medium"
    eta_z: Rate = 0.1
    length: Length = math.inf
    batch: CountOrInf = math.inf
    attention: Attention = "softmax"
    activation: Activation = "linear"
    head: Head = "cross-entropy"
    scale: NotNegative = 0.01
    temperature: Positive = 1.0

    @functools.cached_property
    def held(self) -> dynsim.SequenceClasses:
        """As of `LayerTraining`, and the paper's own."""
        if self.task != "joma":
            return super().held
        self.choices[0].check(self)
        return fig2()

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        if self.init != "zero":
            raise ValueError(
                f"init = {self.init!r}: the system joma does not read it, yz does; its weights "
                "start by scale"
            )
        check_sizes(self.length, self.batch)
        self.fixed()

    def value(self, name: str) -> Any:
        """As of `LayerTraining`, but for a single query."""
        own = name == "num_queries" and self.num_queries is None and self.K is None
        return 1 if own else super().value(name)

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser, the scale and the temperature by name."""
        check_numbers(self.scale, self.temperature)
        return {**super().numbers(), **{name: getattr(self, name) for name in SCALES}}

    def reads(self, field: str, axes: Any) -> bool:
        """As of `LayerTraining`, but weights start by the scale, not as `init`."""
        return field != "init" and super().reads(field, axes)

    def fixed(self) -> Fixed:
        """What its program takes for granted."""
        return Fixed(self.shared(), Shape(self.attention, self.activation, self.head).check())


def _assemble(
    settings: Settings[Fixed], task: dynsim.SequenceClasses, numbers: Mapping[str, Array]
) -> tuple[dynsim.SequenceClasses, tuple[dynsim.Rule, dict[str, Array]]]:
    rule = settings.fixed.training.rule(numbers)
    return task, (rule, {name: numbers[name] for name in SCALES})


def _simulate(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    rules: tuple[dynsim.Rule, dict[str, Array]],
    key: PRNGKeyArray,
) -> Trajectory:
    fixed = settings.fixed.training
    optimizer, scales = rules
    return simulate_joma(
        task,
        optimizer,
        key,
        shape=settings.fixed.shape,
        steps=fixed.steps,
        length=fixed.length,
        batch=fixed.batch,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
        scale=scales["scale"],
        temperature=scales["temperature"],
    )


def _solve(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    rules: tuple[dynsim.Rule, dict[str, Array]],
    key: PRNGKeyArray,
    *,
    theory: Theory[Any, Any],
) -> Trajectory:
    optimizer, scales = rules
    shape, dtype = settings.fixed.shape, settings.fixed.training.dtype
    # Drawn in the precision of the simulation.
    options = {"init": initial_joma(task, key, shape, scales["scale"], dtype), "shape": shape}
    return integrate(
        theory.solve, settings, task, optimizer, temperature=scales["temperature"], **options
    )


def _described(
    fixed: Fixed, task: dynsim.SequenceClasses, optimizer: dynsim.Rule, *, theory: Any
) -> None:
    ladder.theory(theory, task, optimizer)
    problem = None
    if theory.name == "erf":
        problem = eliminated.inapplicable(task, optimizer, shape=fixed.shape, erf=True)
    if problem:
        raise ValueError(f"theory 'erf' does not apply: {problem}")


def _bytes(task: dynsim.SequenceClasses, settings: Settings[Fixed]) -> int:
    batch = settings.fixed.training.batch
    examples = task.K if math.isinf(batch) else int(batch)
    return settings.width * _numbers(task, examples)


def _bytes_solved(task: dynsim.SequenceClasses, settings: Settings[Fixed]) -> int:
    # The examples are the classes. A solver holds arrays of several stages.
    return settings.width * 2 * _numbers(task, task.K)


def _numbers(task: dynsim.SequenceClasses, examples: int) -> int:
    return (8 * (task.K + task.num_queries) + 6 * examples) * task.M


def _rung(theory: Theory[Any, Any]) -> Engine[Fixed]:
    closed = theory.name == "erf"
    return Engine(
        functools.partial(_solve_closed if closed else _solve, theory=theory),
        _assemble,
        TABLE,
        _bytes_solved,
        functools.partial(_described, theory=theory),
        adaptive=not closed,
        tile=32,
        title=theory.title,
        assumes=theory.assumes,
    )


def _solve_closed(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    rules: tuple[dynsim.Rule, dict[str, Array]],
    key: PRNGKeyArray,
    *,
    theory: Theory[Any, Any],
) -> Trajectory:
    # A closed form has no tolerance.
    return _solve(settings._replace(rtol=None), task, rules, key, theory=theory)


SYSTEM = System(
    name="joma",
    tasks=(*TASKS, "joma"),
    run=JoMA,
    engines={
        "simulation": Engine(  # pyright: ignore[reportArgumentType]
            _simulate, _assemble, TRAINED, _bytes, tile=32, trains=True, goes_on=True
        ),
        **{name: _rung(theory) for name, theory in ladder.THEORIES.items()},
    },
    labels=Labels(
        about={
            "eta_y": ("learning rate of the MLP", "1/step"),
            "eta_z": ("learning rate of the attention logits", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "temperature": ("temperature of the attention", "1"),
            "steps": ("optimiser steps", "step"),
            "loss": ("population loss", "nat"),
            "batch_loss": ("loss of the next batch", "nat"),
            "entropy": ("entropy of attention", "nat"),
            "correlation": ("correlation of both sides of Theorem 1", "1"),
            "weight": ("norm of the weights of a token", "1"),
        },
        inner_dims={
            **dict.fromkeys(("conserved", "weight"), ("token",)),
            "logits": ("query", "token"),
            "attended": ("class", "token"),
        },
    ),
)
