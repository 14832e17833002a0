"""The registry of systems: built-in ones, and those that other packages register."""

import pkgutil
import warnings
from collections.abc import Collection, Iterator

from dynsim import Problem, checks, plugins
from odes.theory import refusal
from sweeps.language.describe import name_of
from sweeps.systems.base import Engine, System
from sweeps.systems.engines import system as of_problem
from sweeps.systems.experiment import Experiment
from sweeps.systems.kinds import BUILT_IN, GROUP

BEST = "best"
"""Name that selects the most exact theory that describes the runs."""

_KNOWN: dict[str, System] = {}


def register(system: System) -> None:
    """Register your own system in this process. A package that registers it by an entry point in
    `GROUP` makes it available on the command line too.

    Raises:
        ValueError: if the name is taken, or the system has no engine "simulation".

    Example:
        >>> from sweeps.systems import registry
        >>> sweeps.register(registry.system("yz")._replace(name="my-layer"))
    """
    checks.kind("system", system, System)
    taken = system.name in BUILT_IN or system.name in plugins.entry_points(GROUP)
    if taken or _KNOWN.get(system.name, system) is not system:
        raise ValueError(f"system {system.name!r}: is already registered; choose another name")
    _KNOWN[system.name] = _checked(system)


def names() -> tuple[str, ...]:
    """Return the names of all systems, those of this project first."""
    return tuple(dict.fromkeys((*BUILT_IN, *plugins.entry_points(GROUP), *_KNOWN)))


def system(name: str) -> System:
    """Return the system called `name`: a built-in one, or one that a package registers.

    Raises:
        ValueError: if there is none, or if it cannot be loaded from its package.
    """
    if name not in _KNOWN:
        if checks.choice("system", name, names()) in BUILT_IN:
            _KNOWN[name] = pkgutil.resolve_name(f"sweeps.systems.built_in:{name}")()
        else:
            found, described = plugins.load(GROUP, name), plugins.described(GROUP, name)
            if isinstance(found, type) and issubclass(found, Problem):
                found = of_problem(found(), name)
            if not isinstance(found, System) or found.name != name:
                raise ValueError(
                    f"{described}: must be a dynsim.Problem, or a System of that name, is {found!r}"
                )
            _KNOWN[name] = _checked(found)
    return _KNOWN[name]


def system_of(run: Experiment) -> System:
    """Return the system of a run: the registered one for its problem's class, or an ad hoc one."""
    cls = type(run.problem)
    if cls.NAME in BUILT_IN and cls in system(cls.NAME).problems:
        return system(cls.NAME)
    for each in _registered(cls):
        if cls in each.problems:
            return each
    return of_problem(run.built[0], name_of(cls))


def _registered(cls: type[Problem]) -> Iterator[System]:
    """Yield the systems of other packages, starting with that of the class. A broken one causes a
    warning."""
    yield from list(_KNOWN.values())
    own = cls.__module__.partition(".")[0]
    points = plugins.entry_points(GROUP)
    for name, point in points.items():
        if point.value.partition(".")[0].partition(":")[0] == own:
            try:
                yield system(name)
            except ValueError as error:
                warnings.warn(f"{error}; it is left out", stacklevel=2)


def engines(system: System) -> dict[str, Engine]:
    """Return all engines of a system; those of other packages come last."""
    more = system.more()
    for name in more:
        if name in system.engines:
            raise ValueError(
                f"theory {name!r} of a package: {system.name} already has an engine of that name"
            )
    return {**system.engines, **more}


def best(system: System, planes: Collection[Experiment]) -> str:
    """Return the name of the most exact theory that describes all of the given runs.

    Raises:
        ValueError: if there is none, with the reason why the first one does not apply.
    """

    def reason(engine: Engine) -> str | None:
        return next(filter(None, (refusal(engine.check_run, runs) for runs in planes)), None)

    theories = {
        name: reason(each)
        for name, each in engines(system).items()
        if not (each.trains or each.goes_on or each.variant)
    }
    for name, why in theories.items():
        if why is None:
            return name
    why = next(iter(theories.values()), f"{system.name} has none")
    raise ValueError(f"engine = {BEST!r}: no theory describes these runs; {why}")


def _checked(system: System) -> System:
    if not system.engines.get("simulation"):
        raise ValueError(f"system {system.name!r}: needs an engine called 'simulation'")
    return system
