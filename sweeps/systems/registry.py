"""The registry of systems: one line each, and what other packages register."""

import dataclasses
import os
import pkgutil
import sys
from typing import Any

from dynsim import Problem, checks, plugins
from sweeps.systems.base import Engine, Run, System

BUILT_IN = {
    "yz": "sweeps.systems.yz:SYSTEM",
    "qkv": "sweeps.systems.qkv:SYSTEM",
    "two_stage": "sweeps.systems.two_stage:SYSTEM",
    "transformer": "sweeps.systems.transformer:SYSTEM",
    "linear_icl": "sweeps.systems.linear_icl:SYSTEM",
    "sparse_attention": "sweeps.systems.sparse_attention:SYSTEM",
    "joma": "sweeps.systems.joma:SYSTEM",
}
"""Where the systems of this project are; a system is imported when it is asked for."""
GROUP = "dynsim.systems"
"""Entry points by which other packages register a `System`, under its name."""

_KNOWN: dict[str, System[Any]] = {}


def register(system: System[Any]) -> None:
    """Make a system of your own known to this process. A package that registers it by an entry
    point in `GROUP` makes it known to the command line too.

    Raises:
        ValueError: for a name that is taken, or a system without an engine "simulation".
    """
    taken = system.name in BUILT_IN or system.name in plugins.entry_points(GROUP)
    if taken or _KNOWN.get(system.name, system) is not system:
        raise ValueError(f"system {system.name!r}: is registered already; choose another name")
    _KNOWN[system.name] = _checked(system)


def names() -> tuple[str, ...]:
    """Names of all systems, those of this project first."""
    return tuple(dict.fromkeys((*BUILT_IN, *plugins.entry_points(GROUP), *_KNOWN)))


def system(name: str) -> System[Any]:
    """The system called `name`: one of this project, one that a package registers, or
    PACKAGE.MODULE:NAME of a `dynsim.Problem`, which is imported.

    Raises:
        ValueError: if there is none, or a package's is broken.
    """
    if not isinstance(name, str) or name not in _KNOWN:
        if isinstance(name, str) and ":" in name:
            _KNOWN[name] = of_problem(name, _imported(name), f"system = {name!r}")
        elif checks.choice("system", name, names()) in BUILT_IN:
            _KNOWN[name] = pkgutil.resolve_name(BUILT_IN[name])
        else:
            found, described = plugins.load(GROUP, name), plugins.described(GROUP, name)
            if not isinstance(found, System):
                found = of_problem(name, found, described)
            if found.name != name:
                raise ValueError(f"{described}: must be a System of that name, is {found!r}")
            _KNOWN[name] = _checked(found)
    return _KNOWN[name]


def of_problem(name: str, found: Any, where: str) -> System[Any]:
    """The system of a problem, given as its class or as an instance, whose settings are the
    defaults; raises `ValueError` for something else."""
    if isinstance(found, type) and issubclass(found, Problem):
        missing = [f.name for f in dataclasses.fields(found) if f.init and _required(f)]
        if missing:
            raise ValueError(
                f"{where}: {missing[0]!r} of {found.__name__} has no default; give it one, or "
                "name an instance of the class"
            )
        found = found()
    if not isinstance(found, Problem):
        raise ValueError(f"{where}: must be a dynsim.Problem or a System, is {found!r}")
    make = pkgutil.resolve_name("sweeps.systems.problems.options:problem_system")
    labels_of = pkgutil.resolve_name("sweeps.systems.problems.labels:labels_of")
    return make(found, name, labels=labels_of(found))


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _imported(name: str) -> Any:
    # As `python -m` does: a module in the current folder is found, after installed ones.
    here = [] if os.getcwd() in sys.path or "" in sys.path else [""]
    sys.path += here
    try:
        return pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"system = {name!r}: cannot be imported ({error})") from None
    finally:
        for each in here:
            sys.path.remove(each)


def system_of(run: Run[Any]) -> System[Any]:
    """The system of a run; raises `ValueError` for a class that none has."""
    if own := run.own_system():
        return own
    if name := getattr(run, "NAME", ""):
        return system(name)
    for each in map(system, names()):
        if each.run is type(run):
            return each
    raise ValueError(f"run: {type(run).__name__} is the class of no system; register its System")


def system_for(task: str) -> System[Any]:
    """The first system with a task of that name; "yz", which takes files as well, if none has."""
    return next((each for each in map(system, names()) if task in each.tasks), system("yz"))


def engines(system: System[Any]) -> dict[str, Engine[Any]]:
    """All engines of a system, those of other packages last."""
    more = system.more()
    for name in more:
        if name in system.engines:
            raise ValueError(f"theory {name!r} of a package: {system.name} has an engine so called")
    return {**system.engines, **more}


def _checked(system: System[Any]) -> System[Any]:
    if not system.engines.get("simulation"):
        raise ValueError(f"system {system.name!r}: needs an engine called 'simulation'")
    return system
