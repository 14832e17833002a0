"""The quantities that a run records: names and functions are looked up and called here.

    record = "loss" | ["loss", "entropy"] | {"mine": function} | ["loss", {"mine": function}]

A `Table` holds the names that one kind of run supports: its own observables, the quantities that
its loop provides, and observables that other packages register as entry points of the
group `dynsim.observables`. Such an entry point is named "<system>.<observable>" and its value is
the function, for instance in a pyproject.toml

    [project.entry-points."dynsim.observables"]
    "yz.sharpness" = "their_package.measures:sharpness"

Entry points are looked up once, when a name is not built in or when all names are needed. A
function is imported when its name is recorded.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array

from dynsim import checks, plugins

GROUP = "dynsim.observables"
"""Group of the entry points of observables."""
RELATIVE_LOSS = "relative_loss"
"""Name of `dynsim.training.loop.relative_loss`."""
BATCH_LOSS = "batch_loss"
"""Name of the loss of the next step."""

ETA_TIME = "eta_time"
"""Name of the sum of the learning rates so far."""

OF_RUNS = ("time", "status", "first_bad_step")
"""Names that every run has in addition to its observables."""

PARAMS = "params"
"""Name that stands for all weights; each array is recorded as "params.<its path>"."""

NORMS = ("gradient_norm", "update_norm")
"""Euclidean norms, over all weights, of the gradient and the update of a step."""

SHARPNESS = "sharpness"
"""The name of the largest eigenvalue of the Hessian; "sharpness_2" is the second, and so on."""

PRECONDITIONED = "preconditioned_sharpness"
"""Name of the sharpness in units in which the rule's steps begin to oscillate at 2."""

Observable = Callable[..., Array]


class NamedFunction(NamedTuple):
    """A function with its name: a hashable mapping with one entry."""

    name: str
    function: Observable


Record = str | Mapping[str, Observable] | Iterable[str | Mapping[str, Observable] | NamedFunction]
"""A name, functions by name, or any number of both."""


class Recording(NamedTuple):
    """The quantities that a run records; hashable. Call it with a snapshot to get their values by
    name.

    Attributes:
        functions: names and functions of a snapshot.
        provided: names of the quantities that the loop records in addition to the loss.
    """

    functions: tuple[tuple[str, Observable], ...]
    provided: tuple[str, ...] = ()

    @property
    def relative(self) -> bool:
        """Whether the loop records `RELATIVE_LOSS`."""
        return RELATIVE_LOSS in self.provided

    def __call__(self, *snapshot: Any) -> dict[str, Array]:
        """Evaluate all observables on a snapshot, which is the arguments of the functions.

        Raises:
            ValueError: for a user function with other arguments.
        """
        return {
            name: evaluate_observable(name, function, snapshot) for name, function in self.functions
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The names that one kind of run supports.

    Attributes:
        functions: its observables by name.
        systems: names of systems whose registered observables it can evaluate too.
        provided: quantities that the loop itself records on request.
        refused: names that this kind of run cannot record, although others can, with the reason.
    """

    functions: Mapping[str, Observable]
    systems: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Names of all observables that can be requested. `PARAMS` can be requested too, but is not
        among them.

        Raises:
            ValueError: for an entry point without a system in its name, or defined by two packages.
        """
        known = (*self.functions, *self.provided, *_registered(self.systems))
        return tuple(n for n in dict.fromkeys(known) if n not in self.refused and n != PARAMS)

    def resolve(self, record: Record) -> Recording:
        """Look up the requested names and functions.

        Raises:
            ValueError: for an unknown or refused name, a function with the name of a provided
                quantity, two functions with one name, an entry that is neither name nor function, a
                name that no array can have, or an entry point that cannot be loaded.
        """
        functions: dict[str, Observable] = {}
        provided: list[str] = []
        for name, function in _entries(record):
            # "sharpness_2" is the second eigenvalue of what the loop provides as "sharpness".
            base = SHARPNESS if re.fullmatch(rf"{SHARPNESS}_[1-9]\d*", name) else name
            if name in self.provided or base in self.provided:
                if function is not None:
                    raise _reserved(name)
                # The batch loss is always recorded.
                provided += [name] if name != BATCH_LOSS else []
                continue
            if function is None and name in self.refused:
                raise ValueError(f"record = {name!r}: {self.refused[name]}")
            if function is None and name in self.functions:
                function = self.functions[name]
            elif function is None:
                function = self._registered_function(name)
            checks.name("record", name)
            # Datasets have these names already.
            if name in OF_RUNS or (name.startswith(f"{PARAMS}.") and PARAMS in self.provided):
                raise _reserved(name)
            if functions.setdefault(name, function) is not function:
                raise ValueError(f"record = {name!r}: names two functions")
        # Tuples, because a recording is a static argument of programs.
        return Recording(tuple(functions.items()), tuple(dict.fromkeys(provided)))

    def _registered_function(self, name: str) -> Observable:
        points = _registered(self.systems)
        if name not in points:
            weights = {PARAMS} & {*self.provided}
            checks.choice("record", name, (*self.names(), *weights))
        point = points[name]
        function = plugins.load(GROUP, point)
        if not isinstance(function, Callable):
            where = plugins.described(GROUP, point)
            raise ValueError(f"{where}: must be a function, is {function!r}")
        return function


def recorded_names(name: str, names: Iterable[str]) -> list[str]:
    """Return those of the `names` in a run under which the quantity `name` is recorded."""
    if name != PARAMS:
        return [name]
    return [each for each in names if each == PARAMS or each.startswith(f"{PARAMS}.")]


def _entries(record: Record) -> Iterable[tuple[str, Observable | None]]:
    """Yield the names in a record, each with its function, or None for one to be looked up."""
    entries = (record,) if isinstance(record, str | Mapping) else record
    if not isinstance(entries, Iterable):
        raise ValueError(f"record = {record!r}: must be a name, functions by name, or a list")
    for entry in entries:
        if isinstance(entry, str):
            yield entry, None
            continue
        if isinstance(entry, NamedFunction):
            pairs = [tuple(entry)]
        elif isinstance(entry, Mapping):
            pairs = [*entry.items()]
        else:
            raise ValueError(f"record: has {entry!r}, must have names and functions by name")
        for name, function in pairs:
            if not isinstance(name, str) or not isinstance(function, Callable):
                shown = f"{{{name!r}: {function!r}}}"
                raise ValueError(f"record: has {shown}, must have functions by name")
            try:
                hash(function)
            except TypeError:
                raise ValueError(
                    f"record = {name!r}: its function must be hashable, because runs are compiled "
                    "for it"
                ) from None
            yield name, function


def _reserved(name: str) -> ValueError:
    return ValueError(
        f"record = {name!r}: is recorded by the loop itself; a function needs another name"
    )


def evaluate_observable(name: str, function: Observable, snapshot: tuple[Any, ...]) -> Array:
    """Evaluate an observable on a snapshot; `ValueError` if the function has other arguments or
    does not return an array."""
    try:
        # Before the call, so that a TypeError inside of it is not taken for one of the call.
        inspect.signature(function).bind(*snapshot)
    except TypeError as error:
        types = ", ".join(
            "an array" if checks.is_traced(part) and eqx.is_array(part) else type(part).__name__
            for part in snapshot
        )
        raise ValueError(f"record = {name!r}: must take ({types}); {error}") from None
    except ValueError:
        # No signature is available, for instance for a function in C.
        pass
    with checks.code_of_user(f"record = {name!r}", *snapshot[1:]):
        value = checks.call_of_user(function, function, *snapshot)
    if not eqx.is_array_like(value):
        shown = repr(value) if isinstance(value, str | None) else f"a {type(value).__name__}"
        raise ValueError(f"record = {name!r}: must return an array or a number, returned {shown}")
    return value


def _registered(systems: tuple[str, ...]) -> dict[str, str]:
    """Return the entry points of observables of `systems` by name; earlier ones have precedence."""
    points = plugins.entry_points(GROUP) if systems else {}
    for point in points:
        system, _, name = point.partition(".")
        if not system or not name:
            where = plugins.described(GROUP, point)
            raise ValueError(f"{where}: must be named <system>.<observable>")
    return {
        # Later ones are overwritten by earlier ones, as the systems are reversed.
        point.removeprefix(f"{system}."): point
        for system in reversed(systems)
        for point in points
        if point.startswith(f"{system}.")
    }
