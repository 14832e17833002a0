"""The attention layer in ordinary parameters U, W_Q, W_K and W_V: settings and engine."""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
from jaxtyping import Array, ArrayLike, PRNGKeyArray

import dynsim
from dynsim import EmbeddedSpec, Trajectory
from dynsim.decoding import NotNegative, Size
from dynsim.qkv.init import Embedding, draw
from dynsim.qkv.model import Normalisation, Placement
from dynsim.qkv.observables import MEASURED, TRAINED
from dynsim.yz import finite_length
from odes.qkv import factors, ladder
from odes.theory import Theory
from sweeps.systems.base import Engine, Settings, System, known
from sweeps.systems.solving import integrate
from sweeps.systems.yz.labels import LABELS
from sweeps.systems.yz.settings import Fixed as YZFixed
from sweeps.systems.yz.settings import LayerTraining, check_finite
from sweeps.systems.yz.tasks import TASKS

SCALES = ("scale", "value_scale")
SIZES = ("width", "heads")


class Fixed(NamedTuple):
    """What trainings of one program share besides the arrays of their task.

    Attributes:
        training: as of the layer in Y and Z.
        spec: the architecture; its scales are traced numbers.
        frozen: weights that stay as they are.
    """

    training: YZFixed
    spec: EmbeddedSpec
    frozen: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class QKVTraining(LayerTraining):
    """Training of U, W_Q, W_K and W_V in place of Y and Z, on the same tasks.

    Attributes:
        width: width d of the embedding.
        heads: number of heads.
        scale: W_Q and W_K start normal with standard deviation scale / sqrt(d).
        value_scale: the same for W_V, and for an untied decoder.
        embedding: initial embedding matrix U.
        tied: use U as the decoder.
        normalisation: kind of normalisation.
        placement: where to normalise: theory (X^T b) or practice (the attended embedding).
        residual: add the embedding of the query.
        train_embedding: train U as well.
    """

    AXES: ClassVar = LayerTraining.AXES._replace(
        traced=(*LayerTraining.AXES.traced, *SCALES),
        static=(*LayerTraining.AXES.static, *SIZES),
        whole=(*LayerTraining.AXES.whole, *SIZES),
    )

    width: Size = 64
    heads: Size = 1
    scale: NotNegative = 1.0
    value_scale: NotNegative = 1.0
    embedding: Embedding = "orthogonal"
    tied: bool = True
    normalisation: Normalisation = "l2"
    placement: Placement = "theory"
    residual: bool = False
    train_embedding: bool = False

    def check(self) -> None:
        """As of `LayerTraining`; its `init` is of Y and Z, and nobody reads it here."""
        super().check()
        if self.init != "zero":
            raise ValueError(
                f"init = {self.init!r}: the system qkv does not read it, yz does; its weights "
                "start by scale, value_scale and embedding"
            )

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser and the scales by name."""
        return {**super().numbers(), **{name: getattr(self, name) for name in SCALES}}

    def reads(self, field: str, axes: Collection[str]) -> bool:
        """As of `LayerTraining`, but weights start as the fields here say, not as `init`."""
        return field != "init" and super().reads(field, axes)

    def fixed(self) -> Fixed:
        """What its program takes for granted: neither the task, whose arrays say all, nor rates
        and scales."""
        spec = EmbeddedSpec(
            width=self.width,
            heads=self.heads,
            embedding=self.embedding,
            tied=self.tied,
            normalisation=self.normalisation,
            placement=self.placement,
            residual=self.residual,
        )
        return Fixed(self.shared(), spec, () if self.train_embedding else ("U",))


def _assemble(
    settings: Settings[Fixed], task: dynsim.SequenceClasses, numbers: Mapping[str, Array]
) -> tuple[dynsim.SequenceClasses, tuple[dynsim.Rule, EmbeddedSpec]]:
    scales = {name: numbers[name] for name in SCALES}
    rule = settings.fixed.training.rule(numbers)
    return task, (rule, dataclasses.replace(settings.fixed.spec, **scales))


def _simulate(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    rules: tuple[dynsim.Rule, EmbeddedSpec],
    key: PRNGKeyArray,
) -> Trajectory:
    fixed = settings.fixed.training
    optimizer, spec = rules
    return dynsim.simulate_embedded(
        task,
        optimizer,
        key,
        init=spec,
        steps=fixed.steps,
        frozen=settings.fixed.frozen,
        length=fixed.length,
        batch=fixed.batch,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


def _solve(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    rules: tuple[dynsim.Rule, EmbeddedSpec],
    key: PRNGKeyArray,
    *,
    theory: Theory[Any, Any],
) -> Trajectory:
    optimizer, spec = rules
    fixed = settings.fixed.training
    # Drawn in the precision of the simulation.
    options: dict[str, Any] = {"init": dynsim.initial_embedded(task, spec, key, fixed.dtype)}
    if "length" in theory.needs:
        options["length"] = fixed.length
    return integrate(theory.solve, settings, task, optimizer, **options)


def _described(
    fixed: Fixed,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Rule,
    *,
    theory: Theory[Any, Any],
) -> None:
    _check(fixed, task, optimizer)
    if "length" in theory.needs:
        check_finite(fixed.training, task)
    # Any weights of these shapes do; only the U = I of adaptive rules has to be looked at.
    weights = (
        dynsim.initial_embedded(task, fixed.spec, jax.random.key(0))
        if optimizer.is_adaptive
        else jax.eval_shape(functools.partial(draw, task, fixed.spec), jax.random.key(0))
    )
    factors.check(task, optimizer, weights, fixed.frozen)


def _check(fixed: Fixed, task: dynsim.SequenceClasses, optimizer: dynsim.Rule) -> None:
    del optimizer
    fixed.spec.check(task)
    if math.isinf(fixed.training.batch):
        finite_length.check_length(task, fixed.training.length)


def _bytes(task: dynsim.SequenceClasses, settings: Settings[Fixed]) -> int:
    spec = settings.fixed.spec
    weights = task.M * spec.width + 3 * spec.heads * spec.width**2
    return settings.width * (4 * weights + 4 * task.K * task.M)


def _rung(theory: Theory[Any, Any]) -> Engine[Fixed]:
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        MEASURED,
        _bytes,
        functools.partial(_described, theory=theory),
        adaptive=True,
        tile=8,
        title=theory.title,
        assumes=theory.assumes,
    )


SYSTEM = System(
    name="qkv",
    tasks=tuple(TASKS),
    run=QKVTraining,
    engines={
        "simulation": Engine(  # pyright: ignore[reportArgumentType]
            _simulate, _assemble, TRAINED, _bytes, _check, tile=8, trains=True, goes_on=True
        ),
        **{name: _rung(theory) for name, theory in ladder.THEORIES.items()},
    },
    labels=LABELS,
)
