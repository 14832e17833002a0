"""Identifies a computation by a hash of the text of the program that JAX compiles.

The text of one run, at fixed shapes, contains every constant, every array that a function closes
over and every function that it calls, whatever file, cell or package they come from. It does not
contain comments, layout or variable names. The numbers of a sweep, its seeds and the arrays of its
problem are arguments; a store compares them by value. Code outside the program, such as a Python
callback or a C library, is not in the text.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from dynsim import Problem
from dynsim.precision import compiled_for, precision
from dynsim.problem.base import ask, split
from dynsim.problem.checks import NO_KEY, NOT_REPEATED
from dynsim.training.keys import has_keys
from dynsim.training.recording import NamedFunction, traced_anew
from sweeps.runner import tiles, traces
from sweeps.runner.spec import Sweep
from sweeps.runner.store import SHORT
from sweeps.systems.base import Engine, Settings
from sweeps.systems.experiment import Experiment

KNOWN = {
    *("dynsim", "odes", "sweeps", "jax", "jaxlib", "numpy", "optax", "equinox", "diffrax"),
    *("abc", "builtins", "dataclasses", "functools", "math", "types", "typing"),
}
"""Packages whose code does not change within a process and is identified by its version."""
SYMBOL = re.compile(r'func\.func \w+ @("[^"]*"|[\w.$-]+)')
LOWERED = {"gpu": "cuda"}
"""The compiler's names of JAX platforms, where they differ."""
MOST_TRACES = 64
"""Number of traced programs with code of other packages after which JAX's caches are cleared, as
JAX keeps each trace."""


class Method(NamedTuple):
    """A method of a problem as JAX traces it: its operations, and the text of its program."""

    operations: str
    text: str


class Identity:
    """The programs of a sweep. `program` returns the hash for one run at given values of static
    axes, lowered for a platform (default: that of the devices that run it)."""

    def __init__(self, sweep: Sweep, platform: str) -> None:
        self.sweep, self.platform = sweep, platform
        self.program = functools.lru_cache(maxsize=None)(self._program)

    @functools.cached_property
    def outside(self) -> set[str]:
        """Packages with code in this sweep other than dynsim and the libraries in `KNOWN`. Their
        code may change while this process runs."""
        return {top for each in _named(self.sweep) if (top := _top(each)) not in KNOWN}

    def _program(self, chosen: tuple[tuple[str, Any], ...], platform: str = "") -> str:
        return self._traced(dict(chosen), platform or self.platform)

    def _traced(self, chosen: Mapping[str, Any], platform: str) -> str:
        with precision(self.sweep.dtype):
            problem = self.sweep.problem(chosen)
            task = self.sweep.rules.prepare(problem.task, self.sweep.recorded)
        if self.outside:
            _count_trace()
            with traced_anew():
                found = _hash(self.sweep.rules, problem.settings, task, problem.numbers, platform)
            if not isinstance(self._task, Problem):
                found.update(_held(task).encode())
            return found.hexdigest()
        leaves, structure = jax.tree.flatten(task)
        shapes = tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
        key = self.sweep.rules, problem.settings, shapes, structure, problem.numbers, platform
        if key not in _PROGRAMS:
            _PROGRAMS[key] = _hash(*key[:2], task, *key[-2:]).hexdigest()
        return _PROGRAMS[key]

    @property
    def _task(self) -> Any:
        return self.sweep.first.bare

    def parts(self) -> dict[str, str]:
        """Return the versions of other packages, and hashes of their problem's methods."""
        found = {}
        for top in sorted(self.outside):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[top] = importlib.metadata.version(top)
        return found | (hashes(self._methods) if _top(type(self._task)) not in KNOWN else {})

    def check(self) -> None:
        """Raise `ValueError`, naming the method, for a problem that draws the same random numbers
        for every key, or different ones in each trace. Each program is checked once per process."""
        if not self.outside:
            return
        chosen = next(self.sweep.slices())
        program, trains = self.program(tuple(chosen.items())), self.sweep.rules.trains
        checked = program, trains, self._several
        if checked in _CHECKED:
            return
        if program != self._traced(chosen, self.platform) and self._differs(chosen):
            again = methods(self._task, self._batch)
            names = [n for n, each in self._methods.items() if each.text != again[n].text]
            raise ValueError(f"{', '.join(names) or 'a function of this sweep'}: {NOT_REPEATED}")
        if trains and isinstance(self._task, Problem) and "draw" in self._check_keys():
            # Whether all examples are the same depends on the arrays of the problem: check again.
            return
        _CHECKED.add(checked)

    def _differs(self, chosen: Mapping[str, Any]) -> bool:
        """Return whether two traces with empty caches differ. In a long session JAX may drop a
        function from its caches between two uses; the program then contains it twice."""
        texts = set()
        for _ in range(2):
            tiles.release()
            texts.add(self._traced(chosen, self.platform))
        return len(texts) > 1

    def _check_keys(self) -> set[str]:
        """Return which of `init` and `draw` ignore their key; `ValueError` if they should not."""
        problem, batch, several = self._task, self._batch, self._several
        name, found = type(problem).__name__, self._methods
        frozen = {n for n in ("init", "draw") if _ignores_key(found.get(f"{name}.{n}"))}
        drawn = {n for n in frozen if "random_bits" in found[f"{name}.{n}"].operations}
        if "draw" in frozen and "draw" not in drawn and _many(problem, int(batch)):
            drawn.add("draw")
        if "draw" in drawn:
            raise ValueError(
                f"{name}.draw: {NO_KEY}. Use the key; for a fixed data set, return all of it "
                "regardless of `batch`, or use dynsim.full_batch"
            )
        if "init" in drawn and several:
            raise ValueError(
                f"{name}.init: draws random weights without its key, so all seeds start from the "
                "same weights. Use the key, or make fixed weights a field of the problem"
            )
        alike = "init" in frozen and ("draw" in frozen or np.isinf(batch))
        if several and alike and not problem.has("_prepared") and not self._rule_draws():
            raise ValueError(
                f"axes.seed: neither {name}.init nor {name}.draw uses its key, so all seeds are "
                "the same run; use a single seed"
            )
        return frozen

    def _rule_draws(self) -> bool:
        """Return whether the update rule is random."""
        rule = self.sweep.first.rule.build()
        start = eqx.filter_eval_shape(self._task.init, jax.eval_shape(lambda: jax.random.key(0)))
        return rule.noise is not None or has_keys(rule, eqx.filter(start, _is_array))

    @property
    def _several(self) -> bool:
        return len(self.sweep.fields.get("seed", ())) > 1

    @property
    def _batch(self) -> float:
        return self.sweep.first.batch

    @functools.cached_property
    def _methods(self) -> dict[str, Method]:
        return methods(self._task, self._batch)


def code(run: Experiment) -> dict[str, str]:
    """Return short hashes of the methods of a run's problem, if another package defines it."""
    problem = run.bare
    if _top(type(problem)) in KNOWN:
        return {}
    return hashes(methods(problem, run.batch))


def hashes(found: Mapping[str, Method]) -> dict[str, str]:
    """Return short hashes of methods, by name."""
    return {name: digest(each.text)[:SHORT] for name, each in found.items()}


def methods(problem: Any, batch: float) -> dict[str, Method]:
    """Trace anew the methods of a problem that training uses. Returns {} for other objects."""
    if not isinstance(problem, Problem):
        return {}
    numbers, rest = split(problem)
    name, key = type(problem).__name__, jax.eval_shape(lambda: jax.random.key(0))

    def at(method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> PyTree:
            found = ask(eqx.combine(numbers, rest), method, *arguments)
            return eqx.filter(found, eqx.is_array)

        return call

    def traced(function: Callable[..., Any], *arguments: Any) -> Method:
        # Functions among the weights cannot be arguments.
        arrays, others = eqx.partition(arguments, _is_array)
        found = jax.jit(lambda given: function(*eqx.combine(given, others))).trace(arrays)
        return Method(str(found.jaxpr), _unnamed(found.lower().as_text()))

    with precision("float32"), traced_anew():
        found = {f"{name}.init": traced(at("init"), key)}
        params = eqx.filter_eval_shape(problem.init, key)
        if problem.has("population_loss"):
            found[f"{name}.population_loss"] = traced(at("population_loss"), params)
        if not np.isinf(batch) and problem.has("draw"):
            draw = at("draw")
            found[f"{name}.draw"] = traced(lambda key: draw(key, int(batch)), key)
            data = eqx.filter_eval_shape(lambda key: problem.draw(key, int(batch)), key)
            found[f"{name}.loss"] = traced(at("loss"), params, data)
    return found


_PROGRAMS: dict[Any, str] = {}
"""Hashes of programs that contain only code of this project."""
_CHECKED: set[tuple[str, bool, bool]] = set()
"""Programs whose use of keys has been checked, with whether they train and have several seeds."""
_HASHES: dict[Any, Any] = {}
"""Hashes of program texts, by the form of the trace."""
_TRACES = [0]
"""Number of traced programs with code of other packages."""


def _hash(
    engine: Engine,
    settings: Settings,
    task: PyTree,
    names: tuple[str, ...],
    platform: str,
) -> Any:
    """Return the hash object of a run's program text; callers may add to it."""

    def run(
        task: PyTree, numbers: Mapping[str, Array], seed: Int[Array, ""], root: Int[Array, ""]
    ) -> PyTree:
        key = jax.random.fold_in(jax.random.key(root, impl="threefry2x32"), seed)
        shared = None if engine.draw is None else engine.draw(settings, task, key)
        made = engine.assemble(settings, task, numbers)
        found = engine.run(settings, *made, key, *(() if shared is None else (shared,)))
        return found.observables, found.status, found.first_bad_step, found.checkpoint

    number = np.zeros((1,) * engine.batched, settings.dtype)
    arguments = task, dict.fromkeys(names, number), np.uint32(0), np.uint32(0)
    native = platform == jax.default_backend()
    with precision(settings.dtype), compiled_for(platform):
        # A fresh function: JAX would reuse the trace of a function that it has seen.
        traced = jax.jit(lambda *given: run(*given)).trace(*arguments)
        form = traces.form(traced)
        known = (form, platform, str(sorted(jax.config.values.items(), key=str)))
        if form is None or known not in _HASHES:
            lowered = traced.lower(
                lowering_platforms=None if native else (LOWERED.get(platform, platform),)
            )
            _HASHES[known] = hashlib.sha256(_unnamed(lowered.as_text()).encode())
    return _HASHES[known].copy()


def _unnamed(text: str) -> str:
    """Replace the names of functions in a program's text, which may be a user's variable names."""
    order = {name: f"@{i}" for i, name in enumerate(dict.fromkeys(SYMBOL.findall(text)))}
    return re.sub(r'@("[^"]*"|[\w.$-]+)', lambda each: order.get(each[1], each[0]), text)


def digest(text: str) -> str:
    """Return the hash of a program's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _held(task: PyTree) -> str:
    """Return hashes of the arrays of a third-party task, which its settings may not determine."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(task)]
    return " ".join(hashlib.sha256(leaf.tobytes()).hexdigest() for leaf in leaves)


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _ignores_key(method: Method | None) -> bool:
    """Return whether the result of a function is independent of its key. JAX drops arguments that a
    program does not read."""
    return method is not None and "func.func public @0()" in method.text


def _many(problem: Problem, batch: int) -> bool:
    """Return whether `draw` returns `batch` examples that are not all the same, and another number
    of them on request, so that they are drawn and not a fixed set."""

    def shapes(number: int) -> list[tuple[int, ...]]:
        made = eqx.filter_eval_shape(lambda: problem.draw(jax.random.key(0), number))
        return [leaf.shape for leaf in jax.tree.leaves(made) if _is_array(leaf)]

    if shapes(batch) == shapes(batch + 1):
        return False
    leaves = map(np.asarray, jax.tree.leaves(problem.draw(jax.random.key(0), batch)))
    return any(leaf.ndim and (leaf != leaf[:1]).any() for leaf in leaves)


def _count_trace() -> None:
    _TRACES[0] += 1
    if _TRACES[0] % MOST_TRACES == 0:
        _HASHES.clear()
        tiles.release()


def _named(sweep: Sweep) -> Iterator[Any]:
    """Yield the classes and functions that a sweep uses."""
    run, engine = sweep.first, sweep.rules
    parts: list[Any] = [run.problem, run.rule, run.bare, run.rule.build()]
    parts += [engine.run, engine.assemble, engine.task]
    parts += [each.function for each in sweep.recorded if isinstance(each, NamedFunction)]
    parts += [function for _, function in engine.observables.resolve(sweep.recorded).functions]
    for part in parts:
        yield from _within(part)


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            yield from _within(each)
    elif isinstance(value, MethodType):
        yield from _within(value.__func__)
        yield from _within(value.__self__)
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        yield value
    elif dataclasses.is_dataclass(value):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _within(getattr(value, field.name, None))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _within(each)
    elif isinstance(value, Mapping):
        yield from _within(list(value.values()))
    elif callable(value):
        yield from _within(getattr(value, "__wrapped__", type(value)))


def _top(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]
