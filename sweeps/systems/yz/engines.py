"""The engines of the attention layer: simulation, descent and every theory of the ladder."""

import functools
import math

import jax
from jaxtyping import PRNGKeyArray

import dynsim
from dynsim import Trajectory
from dynsim.precision import on_cpu
from dynsim.yz import finite_length, sampling
from dynsim.yz.batches import Batches
from dynsim.yz.observables import TRAINED
from odes.theory import named
from odes.yz import ladder
from sweeps.systems.base import Engine, Settings, known
from sweeps.systems.yz import memory, reduced
from sweeps.systems.yz.rungs import assemble, check_finite, rung, start_of
from sweeps.systems.yz.scatter import SPREAD
from sweeps.systems.yz.settings import Fixed


def _simulate(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    data: Batches | None = None,
    init: dynsim.YZ | None = None,
) -> Trajectory:
    fixed = settings.fixed
    return dynsim.simulate(
        task,
        optimizer,
        key,
        steps=fixed.steps,
        length=fixed.length,
        batch=fixed.batch,
        init=init or fixed.init,
        times=known(settings.times),
        record=settings.record,
        data=data,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


DRAWN_AT_MOST = 2**24
"""Bytes of the batches of one seed that are worth keeping."""


def _draw(
    settings: Settings[Fixed], task: dynsim.SequenceClasses, key: PRNGKeyArray
) -> Batches | None:
    """The batches, on a CPU, where a tile is few runs that would each time draw them anew."""
    fixed = settings.fixed
    if not on_cpu() or math.isinf(fixed.batch) or math.isinf(fixed.length):
        return None
    shape = {"steps": fixed.steps, "batch": int(fixed.batch), "length": int(fixed.length)}
    drawn = functools.partial(sampling.draw_batches, task, key, **shape)
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(drawn)))
    return drawn() if needed <= DRAWN_AT_MOST else None


def _descend(
    settings: Settings[Fixed],
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    finite: bool,
) -> Trajectory:
    length = settings.fixed.length if finite else math.inf
    infinite = settings.fixed._replace(length=length, batch=math.inf)
    start = start_of(settings.fixed, task, key)
    return _simulate(settings._replace(fixed=infinite), task, optimizer, key, init=start)


def _check(fixed: Fixed, task: dynsim.SequenceClasses, optimizer: dynsim.Rule) -> None:
    del optimizer
    if math.isinf(fixed.batch):
        finite_length.check_length(task, fixed.length)


def registered() -> dict[str, Engine[Fixed]]:
    """Engines of the theories of other packages that need task, optimiser and length alone."""
    return {
        name: rung(each)
        for name, each in ladder.registered().items()
        if set(each.needs) <= {"length"}
    }


def _of_descent(finite: bool) -> Engine[Fixed]:
    length, limit = ("finite", "1/T^2 -> 0") if finite else ("infinite", "T -> infinity")
    engine = Engine(
        functools.partial(_descend, finite=finite),
        assemble,
        TRAINED,
        memory.bytes_of(memory.parameters, memory.classes),
        title=f"descent, T {length}, batch infinite",
        assumes=f"{limit}, batch -> infinity",
        goes_on=True,
    )
    return engine._replace(check=check_finite) if finite else engine


ENGINES: dict[str, Engine[Fixed]] = {
    "simulation": Engine(
        _simulate,
        assemble,
        TRAINED,
        memory.bytes_of(memory.parameters, memory.batch),
        _check,
        trains=True,
        goes_on=True,
        draw=_draw,
    ),
    named("descent", finite=True): _of_descent(finite=True),
    "descent": _of_descent(finite=False),
    **{name: rung(theory) for name, theory in ladder.THEORIES.items()},
    **reduced.engines(True, _of_descent(finite=True)),
    "spread": SPREAD,
    **reduced.engines(False, _of_descent(finite=False)),
}
"""Engines by the name under which a sweep asks for them: training, training with an infinite batch
(on all parameters, or on those that a symmetric task leaves), every rung of the ladder."""
