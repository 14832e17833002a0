"""`dynsim compare`: compares training with theory, for any problem."""

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynsim import checks
from dynsim.problem.sharpness import check_threshold
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from odes.batch_noise import STATISTICS
from odes.theory import AnyTheory, refusal
from sweeps.compare.comparison import TRAINING, Comparison, applicable, chosen, deliver
from sweeps.compare.settings import CompareOptions
from sweeps.runner import cluster
from sweeps.runner.run import run as computed
from sweeps.runner.spec import Sweep
from sweeps.runner.work import begin
from sweeps.systems import registry
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


def kind_of(run: Experiment) -> type[Comparison]:
    """Return the class that compares runs of this problem."""
    found = registry.system_of(run).compare
    return pkgutil.resolve_name(found) if found else Comparison


def compare(config: CompareOptions, theories: Sequence[AnyTheory] = ()) -> Comparison:
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
    compared = _requested(config, kind) | own
    training = registry.theories(registry.system_of(run))[TRAINING]
    solved = {name: each for name, each in compared.items() if name not in kind.MEASURED}
    if config.rtol is not None and not any(each.adaptive for each in solved.values()):
        raise ValueError(f"rtol = {config.rtol}: none of the theories {tuple(compared)} uses it")
    names = kind.NAMES or _common(config, training, compared)

    def sweep(name: str, theory: AnyTheory) -> Sweep:
        known = theory.observables(run.bare).names()
        also = (*kind.ALSO, *(each + end for each in names for end in STATISTICS))
        record = (*names, *(n for n in also if n in known and n not in names))
        axes = {"seed": {"range": kind.seeds(config, theory)}}
        return Sweep(
            run,
            axes,
            own.get(name, name),
            record,
            config.times,
            rtol=config.rtol if theory.adaptive else None,
            root=config.root,
        )

    planned = {name: sweep(name, theory) for name, theory in solved.items()}
    planned |= {TRAINING: sweep(TRAINING, training), **further}
    for each in planned.values():
        each.check()
    cluster.use_all_cores()
    # What takes longest to compile is traced first.
    late = (TRAINING, *further)
    begin([planned[name] for name in sorted(planned, key=lambda name: name not in late)])
    found = {name: computed(each).load() for name, each in planned.items()}
    simulation, extra = found.pop(TRAINING), {name: found.pop(name) for name in further}
    predictions = {
        name: found[name] if name in found else kind.from_runs(config, name, simulation)
        for name in compared
    }
    return kind(config, simulation, predictions, compared, names, extra)


def _requested(config: CompareOptions, kind: type[Comparison]) -> dict[str, AnyTheory]:
    """Return the requested theories, or all that apply, by name. Returns {} if the system has none,
    or only variants that must be requested."""
    theories = kind.known(config.run)
    if not theories:
        if config.theories:
            name = registry.system_of(config.run).name
            raise ValueError(f"theories = {config.theories[0]!r}: {name} has none")
        return {}
    found, refused = applicable(config.run, theories)
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
        registry.check_run(theories[checks.choice("theories", name, tuple(theories))], config.run)
    return {name: theories[name] for name in dict.fromkeys((*always, *names))}


def _common(
    config: CompareOptions, training: AnyTheory, theories: Mapping[str, AnyTheory]
) -> tuple[str, ...]:
    """Return the observables that training and theories share. Those that need a Hessian are
    compared only if theories are requested by name, or for rules with known stability."""
    curved = config.theories and refusal(check_threshold, config.run.rule.build()) is None
    usual = Sweep(config.run, {"seed": {"range": 1}}).names
    problem = config.run.bare
    known = [theory.observables(problem).names() for theory in theories.values()]
    names = tuple(
        name
        for name in (training.observables(problem).names() if theories else usual)
        if all(name in each for each in known)
        and (curved or name not in (SHARPNESS, PRECONDITIONED))
    )
    if not names:
        raise ValueError(
            f"theories = {tuple(theories)}: training measures nothing that they predict"
        )
    return names
