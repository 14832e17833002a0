"""The attention layer in ordinary parameters as the sweep engine sees it: settings and engine."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from jaxtyping import Array, ArrayLike, PRNGKeyArray

import dynsim
from dynsim import EmbeddedSpec, Trajectory
from dynsim.qkv.init import Embedding
from dynsim.qkv.model import Normalisation, Placement
from dynsim.qkv.observables import TRAINED
from sweeps.systems.base import Engine, Settings
from sweeps.systems.yz.settings import Training

SCALES = ("scale", "value_scale")
SIZES = ("width", "heads")


@dataclasses.dataclass(frozen=True)
class EmbeddedTraining(Training):
    """Training of U, W_Q, W_K and W_V in place of Y and Z, on the same tasks.

    Attributes:
        width: width d of the embedding.
        heads: number of heads.
        scale: W_Q and W_K start normal with standard deviation scale / sqrt(d).
        value_scale: the same for W_V, and for the decoder where it is untied.
        embedding: of U: identity, orthogonal or gaussian.
        tied: whether the decoder is U.
        normalisation: l2, rms, layer or none.
        placement: of it: theory (on X^T b) or practice (on the attended embedding).
        residual: add the embedding of the query.
        train_embedding: train U as well.
    """

    AXES: ClassVar = Training.AXES._replace(
        traced=(*Training.AXES.traced, *SCALES),
        static=(*Training.AXES.static, *SIZES),
        whole=(*Training.AXES.whole, *SIZES),
    )

    width: int = 64
    heads: int = 1
    scale: float = 1.0
    value_scale: float = 1.0
    embedding: Embedding = "orthogonal"
    tied: bool = True
    normalisation: Normalisation = "l2"
    placement: Placement = "theory"
    residual: bool = False
    train_embedding: bool = False

    def spec(self, **scales: ArrayLike) -> EmbeddedSpec:
        """What decides the starting weights; `scales` replace those of the fields."""
        names = [field.name for field in dataclasses.fields(EmbeddedSpec)]
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return EmbeddedSpec(**{**given, **scales})

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser and the scales by name."""
        scales = {name: getattr(self, name) for name in SCALES}
        for name, value in scales.items():
            dynsim.checks.real(name, value, 0)
        return {**super().numbers(), **scales}

    def reads(self, field: str, axes: Collection[str]) -> bool:
        """As of `Training`, but weights start as the fields here say, not as `init`."""
        return field != "init" and super().reads(field, axes)

    def compiled(self) -> Self:
        """The run without its task, whose arrays say all, and without its rates and scales."""
        own = {field.name for field in dataclasses.fields(self)} - {*SCALES}
        own -= {field.name for field in dataclasses.fields(Training)}
        kept = {name: getattr(self, name) for name in own}
        return EmbeddedTraining(**vars(super().compiled()), **kept)


def _assemble(
    settings: Settings, task: dynsim.SequenceClasses, numbers: Mapping[str, Array]
) -> tuple[Any, tuple[dynsim.Optimizer, EmbeddedSpec]]:
    rates = {name: value for name, value in numbers.items() if name not in SCALES}
    optimizer = dataclasses.replace(settings.run.make_optimizer(), **rates)
    return task, (optimizer, settings.run.spec(**{name: numbers[name] for name in SCALES}))


def _simulate(
    settings: Settings,
    task: dynsim.SequenceClasses,
    rules: tuple[dynsim.Optimizer, EmbeddedSpec],
    key: PRNGKeyArray,
) -> Trajectory:
    run: EmbeddedTraining = settings.run
    optimizer, spec = rules
    return dynsim.simulate_embedded(
        task,
        optimizer,
        key,
        init=spec,
        steps=run.steps,
        frozen=() if run.train_embedding else ("U",),
        length=run.length,
        batch=run.batch,
        times=settings.times,
        record=settings.record,
        dtype=settings.dtype,
    )


def _check(run: EmbeddedTraining, task: dynsim.SequenceClasses, optimizer: Any) -> None:
    del optimizer
    run.spec().check(task)


def _bytes(task: dynsim.SequenceClasses, settings: Settings) -> int:
    run: EmbeddedTraining = settings.run
    width = 8 if settings.dtype == "float64" else 4
    weights = task.M * run.width + 3 * run.heads * run.width**2
    return width * (4 * weights + 4 * task.K * task.M)


ENGINES: dict[str, Engine] = {
    "embedded": Engine(
        system=EmbeddedTraining,
        run=_simulate,
        assemble=_assemble,
        check=_check,
        observables=TRAINED,
        bytes_per_run=_bytes,
        adaptive=False,
        tile=8,
        trains=True,
    )
}
"""The engine of the layer in ordinary parameters."""
