"""The registry of systems: built-in ones, and those that other packages register."""

import warnings
from collections.abc import Collection, Iterator

from dynsim import Problem, checks, plugins
from odes.batch_noise import THEORY as NOISE
from odes.general import WHOLE
from odes.theory import AnyTheory, Training, error_message
from sweeps.language.describe import name_of
from sweeps.systems.base import System
from sweeps.systems.experiment import Experiment
from sweeps.systems.kinds import BUILT_IN, GROUP
from sweeps.systems.reduction import layer_of
from sweeps.systems.training import Simulation, check_runs, make_system

BEST = "best"
"""Name that selects the first theory that describes the runs."""

_SYSTEMS: dict[str, System] = {}
"""Systems that are registered or loaded in this process."""


def register(system: System) -> None:
    """Register your own system in this process. A package that registers it by an entry point in
    `GROUP` makes it available on the command line too.

    Raises:
        ValueError: if the name is taken, or the system has no theory "simulation".

    Example:
        >>> from sweeps.systems import registry
        >>> sweeps.register(registry.system("yz")._replace(name="my-layer"))
    """
    checks.kind("system", system, System)
    name = system.name
    taken = name in BUILT_IN or name in plugins.entry_points(GROUP)
    if taken or _SYSTEMS.get(name, system) is not system:
        raise ValueError(f"system {name!r}: is already registered; choose another name")
    _check_simulation(system)
    _SYSTEMS[name] = system


def names() -> tuple[str, ...]:
    """Return the names of all systems, those of this project first."""
    return tuple(dict.fromkeys((*BUILT_IN, *plugins.entry_points(GROUP), *_SYSTEMS)))


def system(name: str) -> System:
    """Return the system called `name`: a built-in one, or one that a package registers.

    Raises:
        ValueError: if there is none, or if it cannot be loaded from its package.
    """
    if name in _SYSTEMS:
        return _SYSTEMS[name]
    if checks.choice("system", name, names()) in BUILT_IN:
        from sweeps.systems import built_in

        _SYSTEMS[name] = getattr(built_in, name)()
        return _SYSTEMS[name]
    entry = plugins.load(GROUP, name)
    if isinstance(entry, type) and issubclass(entry, Problem):
        entry = make_system(entry(), name)
    if not isinstance(entry, System) or entry.name != name:
        where = plugins.described(GROUP, name)
        raise ValueError(
            f"{where}: must be a dynsim.Problem, or a System of that name, is {entry!r}"
        )
    _check_simulation(entry)
    _SYSTEMS[name] = entry
    return entry


def _check_simulation(system: System) -> None:
    if not system.theories.get("simulation"):
        raise ValueError(f"system {system.name!r}: needs a theory called 'simulation'")


def system_of(run: Experiment) -> System:
    """Return the system of a run: the registered one for its problem's class, or an ad hoc one."""
    cls = type(run.problem)
    if cls.NAME in BUILT_IN and cls in system(cls.NAME).problems:
        return system(cls.NAME)
    for registered in _registered(cls):
        if cls in registered.problems:
            return registered
    return make_system(run.built[0], name_of(cls))


def _registered(cls: type[Problem]) -> Iterator[System]:
    """Yield the systems of this process, and those that the package of the class registers. A
    broken one causes a warning."""
    # A copy, because other threads may register more.
    yield from list(_SYSTEMS.values())
    package = cls.__module__.partition(".")[0]
    for name, point in plugins.entry_points(GROUP).items():
        # "package.module:object"
        if point.value.partition(".")[0].partition(":")[0] == package:
            try:
                yield system(name)
            except ValueError as error:
                warnings.warn(f"{error}; it is left out", stacklevel=2)


def theories(system: System) -> dict[str, AnyTheory]:
    """Return training and all theories of a system; those of other packages come last."""
    more = system.more()
    for name in more:
        if name in system.theories:
            raise ValueError(
                f"theory {name!r} of a package: {system.name} already has a theory of that name"
            )
    return {**system.theories, **more}


def training_of(theory: AnyTheory, run: Experiment) -> Training:
    """Return a run, or many, as a theory describes it: one that reduces the problem also takes a
    task whose table would be too large."""
    return run.training(None if theory.reduce is None else layer_of(run))


def check_run(theory: AnyTheory, run: Experiment) -> None:
    """Raise `ValueError` if a theory does not describe a run, or many."""
    check_runs(theory, training_of(theory, run))


def applicable(run: Experiment) -> tuple[dict[str, AnyTheory], dict[str, str]]:
    """Return the theories that describe a run, in their order, and the reasons why others do not.

    Variants are left out. If nothing describes the rule, such as a user's own, the flow of all
    weights is used if there is one.
    """
    known = {n: each for n, each in theories(system_of(run)).items() if not each.trains}
    reasons = {
        name: error_message(check_run, theory, run)
        for name, theory in known.items()
        if not theory.variant
    }
    describing = {name: known[name] for name, reason in reasons.items() if reason is None}
    for name in (WHOLE.name, NOISE.name):
        if not describing and name in known and error_message(check_run, known[name], run) is None:
            describing = {name: known[name]}
    # Tables name the theory already.
    others = {
        name: reason.rpartition("does not apply: ")[2] for name, reason in reasons.items() if reason
    }
    return describing, others


def best(system: System, planes: Collection[Experiment]) -> str:
    """Return the name of the first theory that describes all of these runs.

    Raises:
        ValueError: if there is none, with the reason why the first one does not apply.
    """
    reasons: list[str] = []
    for name, theory in theories(system).items():
        if isinstance(theory, Simulation) or theory.variant:
            continue
        errors = (error_message(check_run, theory, runs) for runs in planes)
        reason = next(filter(None, errors), None)
        if reason is None:
            return name
        reasons.append(reason)
    reason = reasons[0] if reasons else f"{system.name} has none"
    raise ValueError(f"theory = {BEST!r}: no theory describes these runs; {reason}")
