"""Identifies a computation by a hash of the program that JAX compiles and of all that enters it.

The text of one run, at fixed shapes, contains every constant, every array that a function closes
over and every function that it calls, whatever file, cell or package they come from. It does not
contain comments, layout or variable names. The numbers of the problem and its rule, at all values
of the axes, and the arrays of the problem are arguments of the program, and are compared by value.
Code outside the program, such as a Python callback or a C library, is not in the text.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from dynsim import Layer, Problem
from dynsim.precision import compiled_for, precision
from dynsim.problem.base import call_user, split
from dynsim.problem.checks import NO_KEY, NOT_REPEATED
from dynsim.training.keys import has_keys
from dynsim.training.recording import NamedFunction
from odes.theory import Training
from sweeps.runner import tiles
from sweeps.runner.program import code, jobs, traces
from sweeps.runner.spec import Sweep
from sweeps.runner.store import SHORT
from sweeps.runner.store.records import CALLS
from sweeps.systems.experiment import Experiment
from sweeps.systems.training import Runs, divided, names_of_numbers, path_of

SYMBOL = re.compile(r'func\.func \w+ @("[^"]*"|[\w.$-]+)')
LOWERED = {"gpu": "cuda"}
"""The compiler's names of JAX platforms, where they differ."""
MOST_TRACES = 64
"""Number of traced programs with code of other packages after which JAX's caches are cleared, as
JAX keeps each trace."""


class Method(NamedTuple):
    """A method of a problem as JAX traces it: the text of its program, whether its results depend
    on its first argument, and whether it draws random numbers."""

    text: str
    reads_first: bool
    draws: bool


class Text(NamedTuple):
    """The text of a program: its hash, and the names of the user's functions that it calls while it
    runs."""

    digest: str
    calls: tuple[str, ...]


class Identity:
    """The programs of a sweep. At some values of static axes, `entering` returns all runs with the
    arrays that enter their program, and `program` the hash of its text and of all that enters, for
    a platform as in `text`."""

    def __init__(self, sweep: Sweep, platform: str) -> None:
        self.sweep, self.platform = sweep, platform
        self.entering = functools.lru_cache(maxsize=16)(self._entering)
        self._texts = functools.lru_cache(maxsize=None)(self._traced)
        self.program = functools.lru_cache(maxsize=None)(self._program)

    @functools.cached_property
    def outside(self) -> set[str]:
        """Packages with code in this sweep other than dynsim and the libraries in `KNOWN`. Their
        code may change while this process runs."""
        return {code.package(each) for each in _named(self.sweep)} - {""}

    def _entering(self, chosen: tuple[tuple[str, Any], ...]) -> Runs:
        with precision(self.sweep.dtype):
            runs = self.sweep.runs(dict(chosen))
            return dataclasses.replace(runs, arrays=jax.tree.map(jnp.asarray, runs.arrays))

    def text(self, chosen: tuple[tuple[str, Any], ...], platform: str = "") -> Text:
        """Return the text of the program at some values of static axes, lowered for a platform
        (default: that of the devices that run it)."""
        return self._texts(chosen, platform or self.platform)

    def _traced(self, chosen: tuple[tuple[str, Any], ...], platform: str) -> Text:
        runs = self.entering(chosen)
        if self.outside:
            _count_trace()
            code.renew()
            with traces.anew():
                return _hash(runs, platform)
        leaves, structure = jax.tree.flatten(runs.arrays)
        shapes = tuple((each.shape, str(each.dtype)) for each in leaves)
        key = shapes, structure, jax.tree.structure(runs.numbers), runs.call, platform
        if key not in _PROGRAMS:
            _PROGRAMS[key] = _hash(runs, platform)
        return _PROGRAMS[key]

    def _program(self, chosen: tuple[tuple[str, Any], ...], platform: str = "") -> str:
        entering = sorted(self._contents(chosen).items())
        return digest(repr((self.text(chosen, platform).digest, entering)))

    def _contents(self, chosen: tuple[tuple[str, Any], ...]) -> dict[str, str]:
        runs = self.entering(chosen)
        return contents(runs.arrays, divided(runs.training)[0], self.sweep.dtype)

    @property
    def _task(self) -> Any:
        return _of_jax(self.sweep.first.bare)

    @property
    def _first(self) -> tuple[tuple[str, Any], ...]:
        return tuple(next(self.sweep.slices()).items())

    def parts(self) -> dict[str, str]:
        """Return what a message about another program can name: versions of other packages, and
        hashes of their problem's methods and of all that enters the first program."""
        found = {}
        for top in sorted(self.outside):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[top] = importlib.metadata.version(top)
        if calls := self.text(self._first).calls:
            found[CALLS] = ", ".join(calls)
        own = hashes(self._methods) if code.package(type(self._task)) else {}
        return found | self._contents(self._first) | own

    def check(self) -> None:
        """Raise `ValueError`, naming the method, for a problem that draws the same random numbers
        for every key, or different ones in each trace. Each program is checked once per process."""
        if not self.outside:
            return
        text, trains = self.text(self._first), self.sweep.method.trains
        checked = text.digest, trains, self._several
        if checked in _CHECKED:
            return
        again = Identity(dataclasses.replace(self.sweep), self.platform)
        before = self._contents(self._first)
        if text != again.text(self._first):
            second = methods(self._task, self._batch)
            names = [n for n, each in self._methods.items() if each.text != second[n].text]
            raise ValueError(f"{', '.join(names) or 'a function of this sweep'}: {NOT_REPEATED}")
        if changed := [n for n, each in again._contents(self._first).items() if each != before[n]]:
            raise ValueError(
                f"{', '.join(changed)}: {type(self._task).__name__} has another value each time it "
                "is built, so no later process could resume this sweep. Draw with a fixed seed"
            )
        if trains and isinstance(self._task, Problem) and "draw" in self._check_keys():
            # Whether all examples are the same depends on the arrays of the problem: check again.
            return
        _CHECKED.add(checked)

    def _check_keys(self) -> set[str]:
        """Return which of `init` and `draw` ignore their key; `ValueError` if they should not."""
        problem, batch, several = self._task, self._batch, self._several
        name, found = type(problem).__name__, self._methods
        keyed = {n: found[f"{name}.{n}"] for n in ("init", "draw") if f"{name}.{n}" in found}
        frozen = {n for n, method in keyed.items() if not method.reads_first}
        drawn = {n for n in frozen if keyed[n].draws}
        if "draw" in frozen and "draw" not in drawn and _many(problem, int(batch)):
            drawn.add("draw")
        if "draw" in drawn:
            raise ValueError(
                f"{name}.draw: {NO_KEY}. Use the key; for a fixed set of examples, use "
                "dynsim.full_batch"
            )
        if "init" in drawn and several:
            raise ValueError(
                f"{name}.init: draws random weights without its key, so all seeds start from the "
                "same weights. Use the key, or make fixed weights a field of the problem"
            )
        alike = "init" in frozen and ("draw" in frozen or np.isinf(batch))
        if several and alike and not problem.has("prepare") and not self._rule_draws():
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


def of_run(run: Experiment) -> dict[str, str]:
    """Return short hashes of the methods, arrays and numbers of a run's problem, if another package
    defines it."""
    problem = run.bare
    if not code.package(type(problem)):
        return {}
    numbers, arrays, _ = divided(run.training(problem))
    entering = contents(arrays, numbers, run.dtype)
    return hashes(methods(_of_jax(problem), run.batch)) | entering


def _of_jax(problem: PyTree) -> PyTree:
    """Return a problem with arrays of JAX, which a program has: what is traced can index them."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, problem)


def hashes(found: Mapping[str, Method]) -> dict[str, str]:
    """Return short hashes of methods, by name."""
    return {name: digest(each.text)[:SHORT] for name, each in found.items()}


def contents(arrays: Training, numbers: Training, dtype: str) -> dict[str, str]:
    """Return the numbers that enter a program, and short hashes of arrays, by name."""
    # Stores have the arrays of a layer's classes without the name of its task.
    task = "task." if isinstance(arrays.problem, Layer) else ""
    entering: list[tuple[str, Any]] = [
        (f"array {path_of(path[1:]).removeprefix(task)}", leaf)
        for path, leaf in jax.tree.leaves_with_path(arrays)
    ]
    values = jax.tree.leaves(numbers)
    for name, value in zip(names_of_numbers(numbers), values, strict=True):
        entering.append((f"number {name}", np.asarray(value, dtype)))
    found = {}
    for name, value in entering:
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if is_key else value)
        if name.startswith("number") and array.size == 1:
            found[name] = repr(array.item())
            continue
        head = f"{array.shape} {array.dtype}".encode()
        found[name] = hashlib.sha256(head + array.tobytes()).hexdigest()[:SHORT]
    return found


def methods(problem: Any, batch: float) -> dict[str, Method]:
    """Trace anew the methods of a problem that training uses. Returns {} for other objects."""
    if not isinstance(problem, Problem):
        return {}
    numbers, rest = split(problem)
    name, key = type(problem).__name__, jax.eval_shape(lambda: jax.random.key(0))

    def at(method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> PyTree:
            found = call_user(eqx.combine(numbers, rest), method, *arguments)
            return eqx.filter(found, eqx.is_array)

        return call

    def traced(function: Callable[..., Any], *arguments: Any) -> Method:
        # Functions among the weights cannot be arguments.
        arrays, others = eqx.partition(arguments, _is_array)
        found = jax.jit(lambda given: function(*eqx.combine(given, others))).trace(arrays)
        draws = "random_bits" in traces.operations(found.jaxpr.jaxpr)
        reads_first = next(iter(traces.reads(found)), True)
        return Method(_unnamed(found.lower().as_text()), reads_first, draws)

    with precision("float32"), traces.anew():
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


_PROGRAMS: dict[Any, Text] = {}
"""Texts of programs that contain only code of this project."""
_CHECKED: set[tuple[str, bool, bool]] = set()
"""Programs whose use of keys has been checked, with whether they train and have several seeds."""
_HASHES: dict[Any, str] = {}
"""Hashes of program texts, by the form of the trace."""
_TRACES = [0]
"""Number of traced programs with code of other packages."""


def _hash(runs: Runs, platform: str) -> Text:
    """Return the text of the program of a run."""
    call = runs.call

    def run(arrays: PyTree, given: Any, seed: Int[Array, ""], root: Int[Array, ""]) -> PyTree:
        key = jax.random.fold_in(jax.random.key(root, impl="threefry2x32"), seed)
        shared = call.draw(arrays, key) if call.draws else None
        found = call.run(tiles.unflat(runs.numbers, given), arrays, key, shared)
        return found.observables, found.status, found.first_bad_step, found.checkpoint

    number = np.zeros((1,) * call.theory.batched, call.dtype)
    given = [number] * len(jax.tree.leaves(runs.numbers))
    arguments = runs.arrays, given, np.uint32(0), np.uint32(0)
    native = platform == jax.default_backend()
    with precision(call.dtype), compiled_for(platform):
        # A fresh function: JAX would reuse the trace of a function that it has seen.
        traced = jax.jit(lambda *given: run(*given)).trace(*arguments)
        form = traces.form(traced)
        known = (form, platform, str(sorted(jax.config.values.items(), key=str)))
        if form is None or known not in _HASHES:
            lowered = traced.lower(
                lowering_platforms=None if native else (LOWERED.get(platform, platform),)
            )
            _HASHES[known] = digest(_unnamed(lowered.as_text()))
    calls = {
        f"{each.__module__}.{each.__qualname__}"
        for function in traces.called(traced.jaxpr)
        for each in code.within(function)
        if code.package(each)
    }
    return Text(_HASHES[known], tuple(sorted(calls)))


def _unnamed(text: str) -> str:
    """Replace the names of functions in a program's text, which may be a user's variable names."""
    order = {name: f"@{i}" for i, name in enumerate(dict.fromkeys(SYMBOL.findall(text)))}
    return re.sub(r'@("[^"]*"|[\w.$-]+)', lambda each: order.get(each[1], each[0]), text)


def digest(text: str) -> str:
    """Return the hash of a program's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _many(problem: Problem, batch: int) -> bool:
    """Return whether `draw` returns examples that are not all the same."""
    leaves = map(np.asarray, jax.tree.leaves(problem.draw(jax.random.key(0), batch)))
    return any(leaf.ndim and (leaf != leaf[:1]).any() for leaf in leaves)


def _count_trace() -> None:
    _TRACES[0] += 1
    if _TRACES[0] % MOST_TRACES == 0:
        _HASHES.clear()
        jobs.release()


def _named(sweep: Sweep) -> Iterator[Any]:
    """Yield the classes and functions that a sweep uses."""
    run, method = sweep.first, sweep.method
    parts: list[Any] = [run.problem, run.rule, run.bare, run.rule.build()]
    parts += [method]
    parts += [each.function for each in sweep.recorded if isinstance(each, NamedFunction)]
    parts += [function for _, function in sweep.observables.resolve(sweep.recorded).functions]
    for part in parts:
        yield from code.within(part)
