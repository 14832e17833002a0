"""`dynsim compare`: compares training with theory, for any problem."""

import dataclasses
import functools
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynsim import checks
from dynsim.problem.sharpness import check_threshold
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from odes.batch_noise import STATISTICS
from odes.theory import Theory, refusal
from sweeps.compare.comparison import TRAINING, Comparison, applicable_engines, chosen, deliver
from sweeps.compare.settings import CompareOptions
from sweeps.runner import cluster
from sweeps.runner.run import run as computed
from sweeps.runner.spec import Sweep
from sweeps.runner.work import begin
from sweeps.systems import registry
from sweeps.systems.base import Engine
from sweeps.systems.engines import ProblemKey, of_theory
from sweeps.systems.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class Compare(CompareOptions):
    """Train runs of a problem, solve its theories, and compare them.

    Attributes:
        times: number of logarithmically spaced times to record, besides step 0.
    """


def run(config: CompareOptions) -> list[Path] | None:
    """Compare, write the files, and print the table, or the report as JSON."""
    result = compare(config)
    return deliver(result, pkgutil.resolve_name(result.PICTURE)(result))


@dataclasses.dataclass(frozen=True)
class _Given(Sweep):
    """A sweep of an unregistered theory."""

    theory: Theory[Any, Any] | None = None

    @functools.cached_property
    def rules(self) -> Engine:
        assert self.theory is not None
        return of_theory(self.theory, ProblemKey(self.first.built[0]))


def kind_of(run: Experiment) -> type[Comparison]:
    """Return the class that compares runs of this problem."""
    found = registry.system_of(run).compare
    return pkgutil.resolve_name(found) if found else Comparison


def compare(config: CompareOptions, theories: Sequence[Theory[Any, Any]] = ()) -> Comparison:
    """Train `config.seeds` runs, and solve each theory from the same starts at the same times. All
    programs are traced before training starts.

    Args:
        config: the settings.
        theories: your own theories to compare with, in addition to those that `config` names.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    run, kind = config.run, kind_of(config.run)
    further = kind.further(config)
    own = {each.name: each for each in theories}
    like = ProblemKey(run.built[0])
    engines = _applicable(config, kind)
    engines |= {name: of_theory(each, like) for name, each in own.items()}
    training = registry.engines(registry.system_of(run))[TRAINING]
    solved = [engine for name, engine in engines.items() if name not in kind.MEASURED]
    if config.rtol is not None and not any(engine.adaptive for engine in solved):
        raise ValueError(f"rtol = {config.rtol}: none of the theories {tuple(engines)} uses it")
    names = kind.NAMES or _common(config, training, engines)

    def sweep(name: str, engine: Engine) -> Sweep:
        known = engine.observables.names()
        also = (*kind.ALSO, *(each + end for each in names for end in STATISTICS))
        record = (*names, *(n for n in also if n in known and n not in names))
        given: dict[str, Any] = {"theory": own[name]} if name in own else {}
        axes = {"seed": {"range": kind.seeds(config, engine)}}
        if engine.adaptive:
            given["rtol"] = config.rtol
        cls = _Given if name in own else Sweep
        return cls(run, axes, name, record, config.times, root=config.root, **given)

    planned = {n: sweep(n, engine) for n, engine in engines.items() if n not in kind.MEASURED}
    planned |= {TRAINING: sweep(TRAINING, training), **further}
    for each in planned.values():
        each.check()
    cluster.use_all_cores()
    begin(planned.values())
    found = {name: computed(each).load() for name, each in planned.items()}
    simulation, extra = found.pop(TRAINING), {name: found.pop(name) for name in further}
    predictions = {
        name: found[name] if name in found else kind.from_runs(config, name, simulation)
        for name in engines
    }
    return kind(config, simulation, predictions, engines, names, extra)


def _applicable(config: CompareOptions, kind: type[Comparison]) -> dict[str, Engine]:
    """Return the engines of requested or applicable theories. Returns {} if the system has none, or
    only variants that must be requested."""
    theories = kind.known(config.run)
    if not theories:
        if config.theories:
            name = registry.system_of(config.run).name
            raise ValueError(f"theories = {config.theories[0]!r}: {name} has none")
        return {}
    found, refused = applicable_engines(config.run, theories)
    always = [name for name in kind.ALWAYS if name in found]
    names = chosen(config.theories, [name for name in found if name not in always])
    if not names and not always:
        if not refused:
            return {}
        why = next(iter(refused.values()))
        raise ValueError(
            f"theories = (): none of the system's theories describes these runs; {why}"
        )
    for name in names:
        theories[checks.choice("theories", name, tuple(theories))].check_run(config.run)
    return {name: theories[name] for name in dict.fromkeys((*always, *names))}


def _common(
    config: CompareOptions, training: Engine, engines: Mapping[str, Engine]
) -> tuple[str, ...]:
    """Return the observables that training and theories share. Those that need a Hessian are
    compared only if theories are requested by name, or for rules with known stability."""
    curved = config.theories and refusal(check_threshold, config.run.rule.build()) is None
    usual = Sweep(config.run, {"seed": {"range": 1}}).names
    names = tuple(
        name
        for name in (training.observables.names() if engines else usual)
        if all(name in engine.observables.names() for engine in engines.values())
        and (curved or name not in (SHARPNESS, PRECONDITIONED))
    )
    if not names:
        raise ValueError(
            f"theories = {tuple(engines)}: training measures nothing that they predict"
        )
    return names
