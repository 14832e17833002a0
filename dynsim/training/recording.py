"""What a run records: names and functions are looked up and called here.

    record = "loss" | ["loss", "entropy"] | {"mine": function} | ["loss", {"mine": function}]

A `Table` holds the names that one kind of run knows: its own observables, the quantities that its
loop records always or on request, and those that other packages register as entry points of the
group `dynsim.observables`. Such an entry point is named "<system>.<observable>" and its value is
the function, for instance in a pyproject.toml

    [project.entry-points."dynsim.observables"]
    "yz.sharpness" = "their_package.measures:sharpness"

Entry points are looked up once, when a name is not built in or when all names are wanted, and a
function is imported when its name is recorded.
"""

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array

from dynsim import checks, plugins

GROUP = "dynsim.observables"
"""Group of the entry points."""
RELATIVE_LOSS = "relative_loss"
"""The name under which a loop records `dynsim.training.loop.relative_loss`."""
BATCH_LOSS = "batch_loss"
"""The name under which it records the loss of the next step."""

ETA_TIME = "eta_time"
"""The name under which it records the sum of the learning rates so far."""

OF_RUNS = ("time", "status", "first_bad_step")
"""What every run has besides observables, by these names."""

PARAMS = "params"
"""The name that stands for all weights; each of their arrays is recorded as "params.<its path>"."""

NORMS = ("gradient_norm", "update_norm")
"""Euclidean norms over all weights that a step may record."""

SHARPNESS = "sharpness"
"""The name of the largest eigenvalue of the Hessian; "sharpness_2" is the second, and so on."""

PRECONDITIONED = "preconditioned_sharpness"
"""The name of the sharpness in units in which the rule's steps begin to oscillate at 2."""

Observable = Callable[..., Array]
_TRACE: ContextVar[Hashable] = ContextVar("dynsim_trace", default=None)


class NamedFunction(NamedTuple):
    """A function with its name: a mapping with one entry, but hashable."""

    name: str
    function: Observable


Record = str | Mapping[str, Observable] | Iterable[str | Mapping[str, Observable] | NamedFunction]
"""What can be asked for: a name, functions by name, or any number of both."""


class Recording(NamedTuple):
    """The quantities that a run records, hashable. Call it with a snapshot to get the values by
    name.

    Attributes:
        functions: names and functions of a snapshot.
        provided: names of what the loop records in addition to the loss.
        trace: differs from one `traced_anew` to the next, so that no cached trace matches.
    """

    functions: tuple[tuple[str, Observable], ...]
    provided: tuple[str, ...] = ()
    trace: Hashable = None

    @property
    def relative(self) -> bool:
        """Whether the loop records `RELATIVE_LOSS`."""
        return RELATIVE_LOSS in self.provided

    def __call__(self, *snapshot: Any) -> dict[str, Array]:
        """All observables of a snapshot, given as the arguments that the functions take.

        Raises:
            ValueError: for a function of the user's own that takes others.
        """
        return {name: evaluated(name, function, snapshot) for name, function in self.functions}


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The names that one kind of run knows.

    Attributes:
        functions: its observables by name.
        systems: names of systems whose registered observables it can evaluate too.
        provided: quantities that the loop itself records, requested like observables.
        refused: names that this kind of run cannot record though others can, with the reason.
    """

    functions: Mapping[str, Observable]
    systems: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """All names of observables that can be requested; `PARAMS` is not among them, but can be
        requested too.

        Raises:
            ValueError: for an entry point whose name lacks a system, or that two packages define.
        """
        known = (*self.functions, *self.provided, *_registered(self.systems))
        return tuple(n for n in dict.fromkeys(known) if n not in self.refused and n != PARAMS)

    def resolve(self, record: Record) -> Recording:
        """Look up what the user asked to record.

        Raises:
            ValueError: for an unknown or refused name, a function with the name of a provided
                quantity, two functions with one name, an entry that is neither name nor function, a
                name that no array can have, or an entry point that cannot be loaded.
        """
        found: dict[str, Observable] = {}
        provided: list[str] = []
        for name, function in _entries(record):
            if name in self.provided or _numbered(name) in self.provided:
                if function is not None:
                    raise _taken(name)
                # The loss is recorded whether it is asked for or not.
                provided += [name] if name != BATCH_LOSS else []
                continue
            function = self._function(name) if function is None else function
            checks.name("record", name)
            if name in OF_RUNS or (name.startswith(f"{PARAMS}.") and PARAMS in self.provided):
                raise _taken(name)
            if found.setdefault(name, function) is not function:
                raise ValueError(f"record = {name!r}: names two functions")
        return Recording(tuple(found.items()), tuple(dict.fromkeys(provided)), _TRACE.get())

    def _function(self, name: str) -> Observable:
        if name in self.refused:
            raise ValueError(f"record = {name!r}: {self.refused[name]}")
        if name in self.functions:
            return self.functions[name]
        points = _registered(self.systems)
        if name not in points:
            weights = {PARAMS} & {*self.provided}
            checks.choice("record", name, (*self.names(), *weights))
        return _loaded(points[name])


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Trace the enclosed entry points again, whatever JAX remembers of them.

    JAX caches a trace by the functions that it was made of. It does not notice when a global that
    one of them reads has changed.
    """
    token = _TRACE.set(object())
    try:
        yield
    finally:
        _TRACE.reset(token)


def recorded_as(name: str, found: Iterable[str]) -> list[str]:
    """The names among `found` under which the quantity requested as `name` is recorded."""
    if name != PARAMS:
        return [name]
    return [each for each in found if each == PARAMS or each.startswith(f"{PARAMS}.")]


def _numbered(name: str) -> str:
    """The name of the first of several, for one of them."""
    return SHARPNESS if re.fullmatch(rf"{SHARPNESS}_[1-9]\d*", name) else name


def _entries(record: Record) -> Iterable[tuple[str, Observable | None]]:
    """Names with the functions that came with them, one after the other."""
    entries = (record,) if isinstance(record, str | Mapping) else record
    if not isinstance(entries, Iterable):
        raise ValueError(f"record = {record!r}: must be a name, functions by name, or a list")
    for entry in entries:
        if isinstance(entry, str):
            yield entry, None
        elif isinstance(entry, NamedFunction):
            yield _own(*entry)
        elif isinstance(entry, Mapping):
            yield from (_own(name, function) for name, function in entry.items())
        else:
            raise ValueError(f"record: has {entry!r}, must have names and functions by name")


def _taken(name: str) -> ValueError:
    return ValueError(
        f"record = {name!r}: is recorded by the loop itself; a function needs another name"
    )


def _own(name: Any, function: Any) -> tuple[str, Observable]:
    if not isinstance(name, str) or not isinstance(function, Callable):
        raise ValueError(f"record: has {{{name!r}: {function!r}}}, must have functions by name")
    try:
        hash(function)
    except TypeError:
        raise ValueError(
            f"record = {name!r}: its function must be hashable, because runs are compiled for it"
        ) from None
    return name, function


def evaluated(name: str, function: Observable, snapshot: tuple[Any, ...]) -> Array:
    """An observable of a snapshot; `ValueError` for a function that takes other arguments or does
    not return an array."""
    try:
        inspect.signature(function).bind(*snapshot)
    except TypeError as error:
        given = ", ".join(
            "an array" if checks.is_traced(each) and eqx.is_array(each) else type(each).__name__
            for each in snapshot
        )
        raise ValueError(f"record = {name!r}: must take ({given}); {error}") from None
    except ValueError:
        # A function without a signature, such as one in C.
        pass
    with checks.code_of_user(f"record = {name!r}", *snapshot[1:]):
        found = function(*snapshot)
    if not eqx.is_array_like(found):
        what = repr(found) if isinstance(found, str | None) else f"a {type(found).__name__}"
        raise ValueError(f"record = {name!r}: must return an array or a number, returned {what}")
    return found


def _registered(systems: tuple[str, ...]) -> dict[str, str]:
    """The entry points of the observables of `systems`, the first of them first, by name."""
    points = plugins.entry_points(GROUP) if systems else {}
    for point in points:
        system, _, name = point.partition(".")
        if not system or not name:
            described = plugins.described(GROUP, point)
            raise ValueError(f"{described}: must be named <system>.<observable>")
    return {
        point.removeprefix(f"{system}."): point
        for system in reversed(systems)
        for point in points
        if point.startswith(f"{system}.")
    }


def _loaded(point: str) -> Observable:
    function = plugins.load(GROUP, point)
    if not isinstance(function, Callable):
        described = plugins.described(GROUP, point)
        raise ValueError(f"{described}: must be a function, is {function!r}")
    return function
