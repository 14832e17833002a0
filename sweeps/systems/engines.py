"""Engines of a problem: training, descent, and all of its theories."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dynsim import Problem, Trajectory, checks, train
from dynsim.precision import on_cpu
from dynsim.problem.base import ask
from dynsim.problem.checks import flow_table, table
from dynsim.problem.train import drawn, started
from dynsim.schedules import Table
from odes.hierarchy import of_class, theories
from odes.solver.tolerances import DEFAULT_TOLERANCES
from odes.theory import Theory
from sweeps.systems.base import (
    Engine,
    Labels,
    Settings,
    System,
    Template,
    described,
    known,
    of_problem,
    of_rule,
)

BYTES = 2**14
"""Bytes per run besides copies of its weights and its batch."""
COPIES = 8
"""Approximate number of copies of the weights that a step or a solver holds."""
SHARED_COPIES = 3
"""Copies of the shared data of a key: as drawn, with the numbers of a run, and reordered."""


class ProblemKey:
    """A problem as a dictionary key, equal to others of its class with the same observables.
    Compiled programs and engines depend on nothing else of it except their inputs."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.known = problem, (type(problem), tuple(table(problem).functions))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProblemKey) and self.known == other.known

    def __hash__(self) -> int:
        return hash(self.known)


@functools.lru_cache(maxsize=64)
def engines_of(like: ProblemKey, tile: int = 16) -> Mapping[str, Engine]:
    """Return the engines of a problem by name. Equal problems share them, so that compiled programs
    are found again."""
    found = {"simulation": _training(like, tile)}
    if like.problem.has("population_loss"):
        found["descent"] = descent(found["simulation"])
    return found | of_theories(of_class(type(like.problem)), like)


def of_theories(theories: Mapping[str, Theory[Any, Any]], like: ProblemKey) -> dict[str, Engine]:
    """Return the engines of theories that only require a run of the problem."""
    known = {"init", "key", "batch", "steps", *like.problem.__dataclass_fields__}
    return {n: of_theory(each, like) for n, each in theories.items() if {*each.needs} <= known}


def descent(simulation: Engine, at: Callable[[Any], Problem] = lambda problem: problem) -> Engine:
    """Return the engine for training at infinite batch, from the engine of training. `at` maps the
    problem to the one to train."""
    return simulation._replace(
        run=functools.partial(_descend, at=at),
        check=lambda fixed, problem, rule: at(problem).check_population(),
        trains=False,
        draw=None,
        title="descent, batch infinite",
        assumes="batch -> infinity",
        variant=True,
    )


def of_infinite_length(found: Mapping[str, Engine]) -> Mapping[str, Engine]:
    """Replace descent by that of infinitely long sequences."""
    infinite = functools.partial(dataclasses.replace, length=math.inf)
    return {**found, "descent": descent(found["simulation"], infinite)}


def _training(like: ProblemKey, tile: int) -> Engine:
    draw = None if of_problem(like.problem).numbers else _batches
    if like.problem.has("_prepared"):
        draw = _shared
    return Engine(
        _train,
        _assemble,
        table(like.problem),
        functools.partial(_bytes, trains=True),
        tile=tile,
        prepare=_arrays,
        trains=True,
        draw=draw,
        goes_on=True,
        title="training",
    )


DRAWN_AT_MOST = 2**24
"""Maximum bytes of one seed's batches to cache."""


def _batches(settings: Settings, arrays: tuple[Array, ...], key: PRNGKeyArray) -> Any:
    """Draw the batches of a seed, which do not depend on the numbers of a rule. Only on a CPU,
    where small tiles would draw them again and again."""
    fixed = settings.fixed
    # A field that is omitted by default is a number of the problem once it is given.
    numbers = any(isinstance(leaf, str) for leaf in fixed.problem.leaves)
    if numbers or not on_cpu() or math.isinf(fixed.batch):
        return None
    problem = fixed.problem.filled({}, arrays)
    draw = functools.partial(drawn, problem, key, fixed.steps, int(fixed.batch))
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(draw)))
    return {"data": draw()} if needed <= DRAWN_AT_MOST else None


@functools.lru_cache(maxsize=256)
def of_theory(theory: Theory[Any, Any], like: ProblemKey) -> Engine:
    """Return the engine of a theory; repeated calls return the same object."""
    known = flow_table(like.problem, whole=theory.single and theory.predicts is None)
    if theory.predicts is not None:
        names = {name: known.functions.get(name, abs) for name in theory.predicts(like.problem)}
        known = dataclasses.replace(known, functions=names)
    refused = {n: why for n, why in known.refused.items() if n not in known.functions}
    known = dataclasses.replace(known, refused={**refused, **theory.refused})
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        known,
        functools.partial(_bytes_of_theory, theory=theory),
        functools.partial(_check, theory=theory),
        adaptive=theory.adaptive,
        tile=1 if theory.single else 16 if theory.drawn else 64,
        noisy=theory.drawn,
        prepare=_arrays,
        variant=theory.variant,
        seeded=not {"init", "key"}.isdisjoint(theory.needs),
        title=theory.title,
        assumes=theory.assumes,
    )


def _arrays(problem: Problem, record: tuple[str, ...]) -> tuple[Any, ...]:
    del record
    return of_problem(problem).arrays


def _assemble(
    settings: Settings, arrays: tuple[Array, ...], numbers: Mapping[str, Array]
) -> tuple[Problem, Any]:
    fixed = settings.fixed
    return fixed.problem.filled(numbers, arrays), fixed.rule.filled(numbers, ())


def _shared(settings: Settings, arrays: tuple[Array, ...], key: PRNGKeyArray) -> Any:
    """Draw the shared data of a seed's runs, which does not depend on their numbers."""
    with jax.enable_x64(False):
        return {"shared": _any_of(settings.fixed.problem, arrays)._prepared(key)[1]}


def _any_of(template: Template, arrays: tuple[Array, ...]) -> Any:
    """Fill a template with arbitrary numbers."""
    names = (leaf for leaf in template.leaves if isinstance(leaf, str))
    return template.filled(dict.fromkeys(names, 1.0), arrays)


def _times(settings: Settings, rule: Any) -> Any:
    """Return the recording times, which the rule may determine."""
    if isinstance(settings.times, int) and settings.fixed.spread is not None:
        return jax.numpy.rint(jax.numpy.asarray(settings.fixed.spread(rule, settings.times)))
    return np.asarray(known(settings.times))


def _train(
    settings: Settings, problem: Problem, rule: Any, key: PRNGKeyArray, drawn: Any = None
) -> Trajectory:
    fixed = settings.fixed
    return train(
        problem,
        rule,
        key,
        steps=fixed.steps,
        batch=fixed.batch,
        times=_times(settings, rule),
        record=settings.record,
        **(drawn or {}),
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


def _descend(
    settings: Settings,
    problem: Problem,
    rule: Any,
    key: PRNGKeyArray,
    *,
    at: Callable[[Any], Problem],
) -> Trajectory:
    whole = settings.fixed._replace(batch=math.inf)
    return _train(settings._replace(fixed=whole), at(problem), rule, key)


def _solve(
    settings: Settings, problem: Problem, rule: Any, key: PRNGKeyArray, *, theory: Theory[Any, Any]
) -> Trajectory:
    options: dict[str, Any] = {"key": key} if "key" in theory.needs else {}
    if "init" in theory.needs:
        start = started(problem, key, None, settings.dtype)
        options["init"] = start.whole(start.params)
    told = {"batch": settings.fixed.batch, "steps": settings.fixed.steps}
    for name in set(theory.needs) - {"init", "key"}:
        options[name] = told[name] if name in told else getattr(problem, name)
    return solved(theory, settings, problem, rule, **options)


def solved(
    theory: Theory[Any, Any], settings: Settings, task: Any, rule: Any, **options: Any
) -> Trajectory:
    """Solve a theory with the times, observables, precision and tolerance of the settings."""
    if theory.adaptive:
        usual = theory.tolerances or DEFAULT_TOLERANCES[settings.dtype]
        rtol = usual.rtol if settings.rtol is None else settings.rtol
        # Keep the ratio of absolute to relative tolerance.
        options["tolerances"] = usual._replace(rtol=rtol, atol=rtol * (usual.atol / usual.rtol))
    options |= {"record": settings.record, "dtype": settings.dtype}
    return theory.solve(task, rule, _times(settings, rule), **options)


MOST_ASKED = 1000
"""Maximum number of runs to check individually with a theory."""


def _check(fixed: Any, problem: Problem, rule: Any, *, theory: Theory[Any, Any]) -> None:
    given = fixed.batch, fixed.steps
    try:
        runs = [(problem, rule)] if theory.why_not(problem, rule, *given) else []
    except Exception:
        # Numbers of axes are arrays, for which `if problem.a > 1` would be ambiguous.
        runs = _single(problem, rule)
    with checks.code_of_user(f"theory {theory.name!r}, inapplicable"):
        for one in runs:
            theory.check(*one, *given)


def _single(problem: Problem, rule: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the runs of a problem and a rule whose numbers may be arrays that broadcast, each with
    scalars. Of very many, only the first, the last and some between them."""
    given = of_problem(problem), of_rule(rule, problem)
    numbers = {name: np.asarray(v) for each in given for name, v in each.numbers.items()}
    shape = np.broadcast_shapes(*(v.shape for v in numbers.values()))
    size = math.prod(shape)
    for place in np.unique(np.linspace(0, size - 1, min(size, MOST_ASKED)).astype(int)):
        at = {n: np.broadcast_to(v, shape).flat[place].item() for n, v in numbers.items()}
        first, second = (each.template.filled(at, each.arrays) for each in given)
        yield first, second


def _bytes(problem: Problem, settings: Settings, trains: bool = False) -> int:
    """Return the bytes for copies of the weights; in training also of batch and shared data."""
    fixed = settings.fixed
    given = of_problem(problem)
    bare = _any_of(given.template, given.arrays)

    def held(key: PRNGKeyArray) -> tuple[list[Array], Any]:
        (problem, shared), batch = bare._prepared(key), ()
        if trains and not math.isinf(fixed.batch):
            batch = problem.batches(key, fixed.steps, int(fixed.batch))(jax.numpy.int32(0))
        init = ask(problem, "init", key)
        weights = [x for x in jax.tree.leaves((init, batch)) if eqx.is_array(x)]
        return weights, shared if trains else ()

    weights, shared = (
        sum(math.prod(x.shape) for x in jax.tree.leaves(made))
        for made in jax.eval_shape(held, jax.eval_shape(lambda: jax.random.key(0)))
    )
    return settings.width * (COPIES * weights + SHARED_COPIES * shared) + BYTES


def _bytes_of_theory(problem: Problem, settings: Settings, *, theory: Theory[Any, Any]) -> int:
    """Return the bytes of a theory: of its weights, of the rates of all steps, and of the examples
    that it processes, with their losses."""
    schedules = _any_of(settings.fixed.rule, ()).schedules.values()
    tables = sum(not each.is_held for each in schedules) * len(dataclasses.fields(Table))
    rates = settings.width * tables * (settings.fixed.steps or 0)
    if theory.held is None:
        return rates + _bytes(problem, settings, trains=theory.drawn)
    fixed = settings.fixed
    states, batch = theory.held(fixed.batch, fixed.steps, len(settings.record))
    of_examples = settings._replace(fixed=fixed._replace(batch=batch))
    examples = _bytes(problem, of_examples, trains=True)
    return rates + states * _bytes(problem, settings) + COPIES * examples


def system(
    problem: Problem,
    name: str,
    *,
    problems: tuple[type[Problem], ...] = (),
    engines: Callable[[Mapping[str, Engine]], Mapping[str, Engine]] = lambda found: found,
    labels: Labels = Labels(),  # noqa: B008  (immutable)
    tile: int = 16,
    **options: Any,
) -> System:
    """Make the system of a problem: its engines and labels.

    Args:
        problem: the problem as trained.
        name: its name in sweep files and on the command line.
        problems: classes of settings for such a problem; by default the class of the problem.
        engines: function that returns the system's engines, from those of the problem.
        labels: names and units, in addition to those of the docstring.
        tile: runs per batch on a CPU.
        **options: further fields of `System`.
    """
    like = ProblemKey(problem)

    def registered() -> dict[str, Engine]:
        built_in = of_class(type(problem))
        more = {n: each for n, each in theories(problem).items() if n not in built_in}
        return of_theories(more, like)

    labels = labels._replace(about={**described(problem), **labels.about})
    found = engines(engines_of(like, tile))
    return System(name, problems or (type(problem),), found, labels, more=registered, **options)
