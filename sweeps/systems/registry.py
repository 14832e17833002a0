"""The registry of systems: built-in ones, and those that other packages register."""

import warnings
from collections.abc import Collection, Iterator

from dynsim import Problem, checks, plugins
from odes.batch_noise import THEORY as NOISE
from odes.general import WHOLE
from odes.theory import AnyTheory, Training, error_message
from sweeps.language.describe import name_of
from sweeps.systems import yz
from sweeps.systems.base import System
from sweeps.systems.experiment import Experiment
from sweeps.systems.kinds import BUILT_IN, GROUP
from sweeps.systems.training import Simulation, check_runs
from sweeps.systems.training import system as of_problem

BEST = "best"
"""Name that selects the first theory that describes the runs."""

_KNOWN: dict[str, System] = {}


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
            from sweeps.systems import built_in

            _KNOWN[name] = getattr(built_in, name)()
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
    return run.training(None if theory.reduce is None else yz.layer_of(run))


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
        n: error_message(check_run, each, run) for n, each in known.items() if not each.variant
    }
    found = {name: known[name] for name, why in reasons.items() if why is None}
    for name in (WHOLE.name, NOISE.name):
        if not found and name in known and error_message(check_run, known[name], run) is None:
            found = {name: known[name]}
    refused = {n: why.rpartition("does not apply: ")[2] for n, why in reasons.items() if why}
    return found, refused


def best(system: System, planes: Collection[Experiment]) -> str:
    """Return the name of the first theory that describes all of the given runs.

    Raises:
        ValueError: if there is none, with the reason why the first one does not apply.
    """

    def reason(theory: AnyTheory) -> str | None:
        return next(filter(None, (error_message(check_run, theory, runs) for runs in planes)), None)

    reasons = {
        name: reason(each)
        for name, each in theories(system).items()
        if not (isinstance(each, Simulation) or each.variant)
    }
    for name, why in reasons.items():
        if why is None:
            return name
    why = next(iter(reasons.values()), f"{system.name} has none")
    raise ValueError(f"theory = {BEST!r}: no theory describes these runs; {why}")


def _checked(system: System) -> System:
    if not system.theories.get("simulation"):
        raise ValueError(f"system {system.name!r}: needs a theory called 'simulation'")
    return system
