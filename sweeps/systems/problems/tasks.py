"""Settings of a problem that holds a task, chosen by name, from a file, or given as it is."""

import dataclasses
import functools
import hashlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np
from sweeps.systems.problems.options import Options
from sweeps.systems.problems.parts import hints_of

from dynsim import checks
from dynsim.problem.choice import Choice


class NamedTask(NamedTuple):
    """How a task is made of the settings, and which of them it reads, with their defaults."""

    make: Callable[[Any], Any]
    reads: Mapping[str, Any] = {}


class TaskOptions(Options):
    """Settings of a problem that holds what the setting `task` chooses.

    Derive a frozen dataclass from it that has `task`, its default and what tasks read as fields,
    and pass it to `problem_system`. The problem has one field annotated `KIND`, or a base class of
    it, which the task becomes, or derives from `KIND`.

    Attributes:
        TASKS: each `NamedTask` by its name.
        KIND: the class of every task.
        HASHED: names of its arrays, by which a store knows one that a file, a module or a caller
            holds.
        SUFFIXES: of files that `load` reads.
        SAME: pairs of settings of which one says the other, and how.
    """

    TASKS: ClassVar[Mapping[str, Any]]
    KIND: ClassVar[type]
    HASHED: ClassVar[tuple[str, ...]]
    SUFFIXES: ClassVar[tuple[str, ...]] = ()
    SAME: ClassVar[tuple[tuple[tuple[str, str], str], ...]] = ()
    task: Any

    @staticmethod
    def load(path: str) -> Any:
        """The task in a file."""
        raise NotImplementedError

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the task, the problem, the optimiser and the schedule read."""
        named = self.task if isinstance(self.task, str) else "of your own"
        reads = {name: task.reads for name, task in self.TASKS.items()}
        return (Choice("task", named, reads), *super().choices)

    @functools.cached_property
    def held(self) -> Any:
        """The task; `ValueError` for an unknown name, a bad file, or settings of other tasks."""
        self.choices[0].check(self)
        if isinstance(self.task, self.KIND):
            return self.task
        kind = self.KIND.__name__
        if not isinstance(self.task, str):
            raise ValueError(f"task = {self.task!r}: must be a name or a {kind}")
        if self.task in self.TASKS:
            return self.TASKS[self.task].make(self)
        if self.SUFFIXES and self.task.endswith(self.SUFFIXES):
            return self.load(self.task)
        if ":" in self.task:
            return self._referred(self.task)
        hint = checks.hint(self.task, self.TASKS)
        files = f"the path of an {' or '.join(self.SUFFIXES)} file, " if self.SUFFIXES else ""
        raise ValueError(
            f"task = {self.task!r}: {hint}must be {', '.join(self.TASKS)}, {files}or MODULE:NAME "
            f"of a {kind} or of a function that makes one"
        )

    def _referred(self, reference: str) -> Any:
        try:
            found = pkgutil.resolve_name(reference)
        except (ValueError, ImportError, AttributeError) as error:
            raise ValueError(f"task = {reference!r}: cannot be imported ({error})") from None
        task = found() if callable(found) else found
        if not isinstance(task, self.KIND):
            kind = self.KIND.__name__
            raise ValueError(f"task = {reference!r}: must stand for a {kind}, got {task!r}")
        return task

    @functools.cached_property
    def problem(self) -> Any:  # type: ignore[override]
        """The problem with its task in it; `ValueError` for settings that describe none."""
        task, bare = self.held, self.bare
        fields = [n for n, hint in hints_of(bare).items() if hint in self.KIND.__mro__[:-1]]
        if fields:
            # Its numbers may be those of many runs at once, of which no problem is made.
            return eqx.tree_at(lambda problem: getattr(problem, fields[0]), bare, task)
        held = {each.name: getattr(task, each.name) for each in dataclasses.fields(self.KIND)}
        return dataclasses.replace(bare, **held)

    def contents(self) -> dict[str, str]:
        """Hashes of what a store has to know: of the arrays of a task too that a file or module may
        change under its name, as `task_holds`."""
        found = super().contents()
        if isinstance(self.task, str) and self.task in self.TASKS:
            return found
        digest = hashlib.sha256()
        for name in self.HASHED:
            array = np.asarray(getattr(self.held, name))
            exact = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            digest.update(f"{name}{exact.shape}".encode() + exact.tobytes())
        return found | {"task_holds": digest.hexdigest()[:16]}

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those that were left out at their defaults."""
        task = self.task if isinstance(self.task, str) else "of your own"
        return {**super().as_json(), "task": task}

    def check_axes(self, axes: Mapping[str, Sequence[Any]]) -> None:
        """Raise `ValueError` for axes that these runs do not read, or that say the same."""
        for names, same in self.SAME:
            said = [name for name in names if name in axes]
            if len(said) == 2:
                raise ValueError(f"axes: {same}; leave one of {' and '.join(names)} out")
            other = next((name for name in names if name not in axes), "")
            if said and getattr(self, other) is not None:
                raise ValueError(
                    f"run.{other} = {getattr(self, other)!r}: {said[0]} is an axis, and {same}; "
                    "leave one of them out"
                )
        super().check_axes(axes)

    def at(self, chosen: Mapping[str, Any]) -> Self:
        """The run at the `chosen` values of axes; what says the same as one of them in another way
        is left out."""
        others = {
            other: None
            for names, _ in self.SAME
            for name, other in (names, names[::-1])
            if name in chosen
        }
        return super().at({**others, **chosen})
