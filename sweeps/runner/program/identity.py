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
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from dynsim import Layer, Problem
from dynsim.precision import compiled_for, precision
from dynsim.problem.base import call_user
from dynsim.problem.build import split
from dynsim.problem.checks import NO_KEY, NOT_REPEATED
from dynsim.training.keys import has_keys
from dynsim.training.recording import NamedFunction
from odes.theory import Training
from sweeps.runner import tiles
from sweeps.runner.program import code, jobs, traces
from sweeps.runner.spec import Sweep
from sweeps.runner.store import SHORT, sha
from sweeps.runner.store.records import CALLS
from sweeps.systems.experiment import Experiment
from sweeps.systems.training import Runs, names_of_numbers, partition, path_of

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


class ProgramText(NamedTuple):
    """The text of a program: its hash, and the names of the user's functions that it calls while it
    runs."""

    digest: str
    calls: tuple[str, ...]


StaticValues = tuple[tuple[str, Any], ...]
"""Values of the static axes by name, hashable."""


class Identity:
    """The programs of a sweep. At some values of static axes, `entering` returns all runs with the
    arrays that enter their program, and `program` the hash of its text and of all that enters, for
    a platform as in `text`."""

    def __init__(self, sweep: Sweep, platform: str) -> None:
        self.sweep, self.platform = sweep, platform
        self.entering = functools.lru_cache(maxsize=16)(self._entering)
        self._texts = functools.lru_cache(maxsize=None)(self._text)
        self.program = functools.lru_cache(maxsize=None)(self._program)
        self._first: StaticValues = tuple(next(sweep.slices()).items())
        self._batch = sweep.first.batch
        self._has_seeds = len(sweep.fields.get("seed", ())) > 1

    @functools.cached_property
    def outside(self) -> set[str]:
        """Packages with code in this sweep other than dynsim and the libraries in `KNOWN`. Their
        code may change while this process runs."""
        run, method, recorded = self.sweep.first, self.sweep.method, self.sweep.recorded
        used = [run.problem, run.rule, run.bare, run.rule.build(), method]
        used += [each.function for each in recorded if isinstance(each, NamedFunction)]
        used += [function for _, function in self.sweep.observables.resolve(recorded).functions]
        return {code.package_of(each) for value in used for each in code.code_in(value)} - {""}

    def _entering(self, chosen: StaticValues) -> Runs:
        with precision(self.sweep.dtype):
            runs = self.sweep.runs(dict(chosen))
            return dataclasses.replace(runs, arrays=jax.tree.map(jnp.asarray, runs.arrays))

    def text(self, chosen: StaticValues, platform: str = "") -> ProgramText:
        """Return the text of the program at some values of static axes, lowered for a platform
        (default: that of the devices that run it)."""
        return self._texts(chosen, platform or self.platform)

    def _text(self, chosen: StaticValues, platform: str) -> ProgramText:
        runs = self.entering(chosen)
        if self.outside:
            # Code of others may have changed since it was traced. JAX keeps every trace.
            _TRACES[0] += 1
            if _TRACES[0] % MOST_TRACES == 0:
                _HASHES.clear()
                jobs.release()
            code.clear_outdated_caches()
            with traces.without_trace_cache():
                return _program_text(runs, platform)
        # Code of this project is the same as long as the process lives.
        leaves, structure = jax.tree.flatten(runs.arrays)
        shapes = tuple((each.shape, str(each.dtype)) for each in leaves)
        key = shapes, structure, jax.tree.structure(runs.numbers), runs.call, platform
        if key not in _TEXTS:
            _TEXTS[key] = _program_text(runs, platform)
        return _TEXTS[key]

    def _program(self, chosen: StaticValues, platform: str = "") -> str:
        inputs = sorted(self._inputs(chosen).items())
        return sha(repr((self.text(chosen, platform).digest, inputs)))

    def _inputs(self, chosen: StaticValues) -> dict[str, str]:
        runs = self.entering(chosen)
        return hash_inputs(runs.arrays, partition(runs.training)[0], self.sweep.dtype)

    @property
    def _problem(self) -> PyTree:
        return _with_jax_arrays(self.sweep.first.bare)

    @functools.cached_property
    def _methods(self) -> dict[str, Method]:
        return trace_methods(self._problem, self._batch)

    def parts(self) -> dict[str, str]:
        """Return what a message about another program can name: versions of other packages, and
        hashes of their problem's methods and of all that enters the first program."""
        parts = {}
        for package in sorted(self.outside):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                parts[package] = importlib.metadata.version(package)
        if calls := self.text(self._first).calls:
            parts[CALLS] = ", ".join(calls)
        parts |= self._inputs(self._first)
        if code.package_of(type(self._problem)):
            parts |= hash_methods(self._methods)
        return parts

    def check(self) -> None:
        """Raise `ValueError`, naming the method, for a problem that draws the same random numbers
        for every key, or different ones in each trace. Each program is checked once per process."""
        if not self.outside:
            return
        text, trains = self.text(self._first), self.sweep.method.trains
        checked = text.digest, trains, self._has_seeds
        if checked in _CHECKED:
            return
        # Build and trace everything a second time.
        again = Identity(dataclasses.replace(self.sweep), self.platform)
        inputs = self._inputs(self._first)
        if text != again.text(self._first):
            second = trace_methods(self._problem, self._batch)
            names = [n for n, each in self._methods.items() if each.text != second[n].text]
            raise ValueError(f"{', '.join(names) or 'a function of this sweep'}: {NOT_REPEATED}")
        if changed := [n for n, each in again._inputs(self._first).items() if each != inputs[n]]:
            raise ValueError(
                f"{', '.join(changed)}: {type(self._problem).__name__} has another value each time "
                "it is built, so no later process could resume this sweep. Draw with a fixed seed"
            )
        problem = self._problem
        if trains and isinstance(problem, Problem) and "draw" in self._check_keys(problem):
            # Whether all examples are the same depends on the arrays of the problem: check again.
            return
        _CHECKED.add(checked)

    def _check_keys(self, problem: Problem) -> set[str]:
        """Return which of `init` and `draw` ignore their key; `ValueError` if they should not."""
        name, methods = type(problem).__name__, self._methods
        keyed = {n: methods[f"{name}.{n}"] for n in ("init", "draw") if f"{name}.{n}" in methods}
        frozen = {n for n, method in keyed.items() if not method.reads_first}
        random = {n for n in frozen if keyed[n].draws}
        if "draw" in frozen and "draw" not in random:
            # Fixed examples, such as random numbers of NumPy, are the same in every batch, which
            # matters unless all are equal.
            examples = problem.draw(jax.random.key(0), int(self._batch))
            leaves = map(np.asarray, jax.tree.leaves(examples))
            if any(leaf.ndim and (leaf != leaf[:1]).any() for leaf in leaves):
                random.add("draw")
        if "draw" in random:
            raise ValueError(
                f"{name}.draw: {NO_KEY}. Use the key; for a fixed set of examples, use "
                "dynsim.full_batch"
            )
        if "init" in random and self._has_seeds:
            raise ValueError(
                f"{name}.init: draws random weights without its key, so all seeds start from the "
                "same weights. Use the key, or make fixed weights a field of the problem"
            )
        # Without random numbers, all seeds are one run.
        alike = "init" in frozen and ("draw" in frozen or np.isinf(self._batch))
        if self._has_seeds and alike and not problem.has("prepare"):
            rule = self.sweep.first.rule.build()
            key = jax.eval_shape(lambda: jax.random.key(0))
            params = eqx.filter(eqx.filter_eval_shape(problem.init, key), _is_array)
            if rule.noise is None and not has_keys(rule, params):
                raise ValueError(
                    f"axes.seed: neither {name}.init nor {name}.draw uses its key, so all seeds "
                    "are the same run; use a single seed"
                )
        return frozen


def problem_hashes(run: Experiment) -> dict[str, str]:
    """Return short hashes of the methods, arrays and numbers of a run's problem, if another package
    defines it."""
    problem = run.bare
    if not code.package_of(type(problem)):
        return {}
    numbers, arrays, _ = partition(run.training(problem))
    methods = trace_methods(_with_jax_arrays(problem), run.batch)
    return hash_methods(methods) | hash_inputs(arrays, numbers, run.dtype)


def _with_jax_arrays(problem: PyTree) -> PyTree:
    # As in a program: what is traced can index them.
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, problem)


def hash_methods(methods: Mapping[str, Method]) -> dict[str, str]:
    """Return short hashes of methods, by name."""
    return {name: sha(method.text)[:SHORT] for name, method in methods.items()}


def hash_inputs(arrays: Training, numbers: Training, dtype: str) -> dict[str, str]:
    """Return the numbers that enter a program, and short hashes of arrays, by name."""
    # Stores have the arrays of a layer's classes without the name of its task.
    task = "task." if isinstance(arrays.problem, Layer) else ""
    inputs: list[tuple[str, jax.Array | np.ndarray]] = [
        (f"array {path_of(path[1:]).removeprefix(task)}", leaf)
        for path, leaf in jax.tree.leaves_with_path(arrays)
    ]
    values = jax.tree.leaves(numbers)
    for name, value in zip(names_of_numbers(numbers), values, strict=True):
        inputs.append((f"number {name}", np.asarray(value, dtype)))
    hashes = {}
    for name, value in inputs:
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if is_key else value)
        if name.startswith("number") and array.size == 1:
            # A message shows it.
            hashes[name] = repr(array.item())
        else:
            head = f"{array.shape} {array.dtype}".encode()
            hashes[name] = hashlib.sha256(head + array.tobytes()).hexdigest()[:SHORT]
    return hashes


def trace_methods(problem: PyTree, batch: float) -> dict[str, Method]:
    """Trace anew the methods of a problem that training uses. Returns {} for other objects."""
    if not isinstance(problem, Problem):
        return {}
    numbers, rest = split(problem)
    name, key = type(problem).__name__, jax.eval_shape(lambda: jax.random.key(0))

    def call(method: str) -> Callable[..., PyTree]:
        return lambda *arguments: eqx.filter(
            call_user(eqx.combine(numbers, rest), method, *arguments), eqx.is_array
        )

    def trace(function: Callable[..., PyTree], *arguments: PyTree) -> Method:
        # Functions among the weights cannot be arguments.
        arrays, others = eqx.partition(arguments, _is_array)
        traced = jax.jit(lambda leaves: function(*eqx.combine(leaves, others))).trace(arrays)
        draws = "random_bits" in traces.operations(traced.jaxpr.jaxpr)
        reads_first = next(iter(traces.reads(traced)), True)
        return Method(_without_names(traced.lower().as_text()), reads_first, draws)

    with precision("float32"), traces.without_trace_cache():
        methods = {f"{name}.init": trace(call("init"), key)}
        params = eqx.filter_eval_shape(problem.init, key)
        if problem.has("population_loss"):
            methods[f"{name}.population_loss"] = trace(call("population_loss"), params)
        if not np.isinf(batch) and problem.has("draw"):
            draw = call("draw")
            methods[f"{name}.draw"] = trace(lambda key: draw(key, int(batch)), key)
            data = eqx.filter_eval_shape(lambda key: problem.draw(key, int(batch)), key)
            methods[f"{name}.loss"] = trace(call("loss"), params, data)
    return methods


def _is_array(leaf: object) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


_TEXTS: dict[Hashable, ProgramText] = {}
"""Texts of programs that contain only code of this project."""
_CHECKED: set[tuple[str, bool, bool]] = set()
"""Programs whose use of keys has been checked, with whether they train and have several seeds."""
_HASHES: dict[Hashable, str] = {}
"""Hashes of program texts, by the fingerprint of the trace."""
_TRACES = [0]
"""Number of traced programs with code of other packages."""


def _program_text(runs: Runs, platform: str) -> ProgramText:
    """Trace the program of a single run, and lower it unless an equal trace has been lowered."""
    call = runs.call

    def run(arrays: PyTree, numbers: PyTree, seed: Int[Array, ""], root: Int[Array, ""]) -> PyTree:
        key = jax.random.fold_in(jax.random.key(root, impl="threefry2x32"), seed)
        shared = call.draw(arrays, key) if call.draws else None
        result = call.run(tiles.unflat(runs.numbers, numbers), arrays, key, shared)
        return result.observables, result.status, result.first_bad_step, result.checkpoint

    # The shapes of a single run do not depend on tiles, devices or other axes.
    number = np.zeros((1,) * call.theory.batched, call.dtype)
    numbers = [number] * len(jax.tree.leaves(runs.numbers))
    arguments = runs.arrays, numbers, np.uint32(0), np.uint32(0)
    native = platform == jax.default_backend()
    with precision(call.dtype), compiled_for(platform):
        # A fresh function: JAX would reuse the trace of a function that it has seen.
        traced = jax.jit(lambda *inputs: run(*inputs)).trace(*arguments)
        fingerprint = traces.jaxpr_fingerprint(traced)
        known = (fingerprint, platform, str(sorted(jax.config.values.items(), key=str)))
        if fingerprint is None or known not in _HASHES:
            lowered = traced.lower(
                lowering_platforms=None if native else (LOWERED.get(platform, platform),)
            )
            _HASHES[known] = sha(_without_names(lowered.as_text()))
    calls = {
        f"{each.__module__}.{each.__qualname__}"
        for function in traces.callbacks(traced.jaxpr)
        for each in code.code_in(function)
        if code.package_of(each)
    }
    return ProgramText(_HASHES[known], tuple(sorted(calls)))


def _without_names(text: str) -> str:
    """Replace the names of functions in a program's text, which may be a user's variable names."""
    order = {name: f"@{i}" for i, name in enumerate(dict.fromkeys(SYMBOL.findall(text)))}
    return re.sub(r'@("[^"]*"|[\w.$-]+)', lambda each: order.get(each[1], each[0]), text)
