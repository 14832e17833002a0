"""`dynsim compare`: compares training with theory, for any problem."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import annotated_types as at
import equinox as eqx
import jax
import numpy as np

from dynsim import checks, log_times
from dynsim.decoding import Seed
from dynsim.problem.sharpness import check_threshold
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from odes.batch_noise import STATISTICS, STD
from odes.theory import AnyTheory, error_message
from sweeps import output
from sweeps.comparison.errors import TRAINING, Comparison
from sweeps.language.tree import check_fields, encode
from sweeps.language.values import MOST_VALUES
from sweeps.output import check_directory
from sweeps.runner import cluster
from sweeps.runner.program import traces
from sweeps.runner.run import run as computed
from sweeps.runner.spec import Sweep, Tolerance
from sweeps.runner.work import begin
from sweeps.systems import registry
from sweeps.systems.experiment import MOST_TIMES, Experiment, made
from sweeps.systems.kinds import language
from sweeps.systems.training import Descent

MOST_STARTS = 32
"""Maximum number of seeds whose starting weights the theories of the standard deviation across
seeds use, as these theories are slow."""
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train runs of a problem, solve its theories, and compare them.

    Attributes:
        run: what is trained.
        seeds: number of runs.
        out: folder for the figure, compare.json and compare.npz.
        theories: names of the theories to compare with; "best" is the first one that applies, of a
            problem's own theories before flows, and "all" are all that apply, variants of others
            included. All but variants if omitted.
        times: number of times to record, besides step 0; logarithmically spaced, unless the rule
            sets them.
        rtol: relative tolerance of theories with an adaptive solver; by default that of the
            theory.
        root: root of the random keys; run i uses fold_in(key(root), i).
        json: print the report as JSON, and nothing else, to standard output.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz"}

    run: Experiment
    seeds: Annotated[int, at.Ge(1), at.Le(MOST_VALUES)] = 8
    out: Path = Path("out/compare")
    theories: tuple[str, ...] = ()
    times: Annotated[int, at.Ge(2), at.Le(MOST_TIMES)] = 64
    rtol: Tolerance | None = None
    root: Seed = 0
    json: bool = False

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for invalid settings."""
        check_fields(self)
        twice = [name for name in self.theories if self.theories.count(name) > 1]
        if twice:
            raise ValueError(f"theories = {twice[0]!r}: is named twice")
        if self.run.seed:
            raise ValueError(
                f"seed = {self.run.seed}: the runs of a comparison have the seeds 0 to "
                f"{self.seeds - 1}; choose another root"
            )
        self.run.check()
        check_directory(self.out)


def run(config: Compare) -> list[Path] | None:
    """Compare, write the files, and print the table, or the report as JSON."""
    plan = planned(config)
    # Matplotlib is imported while programs compile.
    from sweeps.comparison.picture import draw

    result = solved(config, *plan)
    arrays = {
        side: {
            **{str(name): dataset[name].values for name in dataset.data_vars},
            "times": np.broadcast_to(dataset.time, (dataset.sizes["seed"], dataset.time.size)),
        }
        for side, dataset in result.sides.items()
    }
    paths = output.write(
        config.out, "compare", figure=draw(result), arrays=arrays, report=result.report
    )
    print(json.dumps(result.report, indent=2) if config.json else result)
    return None if config.json else paths


def compare(
    run: Any = "yz", rule: Any = None, /, theories: Sequence[Any] = (), **settings: Any
) -> Comparison:
    """Train runs, solve theories from the same starts at the same times, and compare them.

    Args:
        run: a `sweeps.Experiment`; or a problem or its name, as in `sweeps.experiment`.
        rule: the update rule; by default that of the problem.
        theories: names of theories, and your own theories (`odes.Theory`); all that apply if
            omitted.
        settings: options of `dynsim compare` and settings of the run, by name, such as seeds=4,
            eta_y=1.0. Nothing is written, and `out` is ignored.

    Returns:
        The comparison, with the runs and theories as a `dataset`, its figure as `plot()`, its
        numbers as a `report`, and its table of errors as text through `print`.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.

    Example:
        >>> comparison = sweeps.compare("saxe", dynsim.sgd(0.1), steps=20, seeds=2)
        >>> comparison.error("modes", "loss")["over_time"] < 0.2
        True
    """
    theories = (theories,) if isinstance(theories, str) else theories
    checks.kind("theories", theories, Sequence)
    names = {field.name for field in dataclasses.fields(Compare)}
    options = {name: settings.pop(name) for name in names & {*settings}}
    named = tuple(each for each in theories if isinstance(each, str))
    own = [each for each in theories if not isinstance(each, str)]
    config = Compare(made(run, rule, **settings), theories=named, **options)
    return solved(config, *planned(config, own))


def planned(
    config: Compare, theories: Sequence[AnyTheory] = ()
) -> tuple[dict[str, Sweep], dict[str, AnyTheory], dict[str, str]]:
    """Return the sweeps of training and of each theory by name, the theories, and the reasons why
    others do not apply. All programs are traced, and compile in the background."""
    config.check()
    run = config.run
    own = {each.name: each for each in theories}
    described, left_out = registry.applicable(run)
    known = registry.theories(registry.system_of(run))
    training = known[TRAINING]
    compared = _requested(config, known, described, left_out, own) | own
    if config.rtol is not None and not any(each.adaptive for each in compared.values()):
        raise ValueError(f"rtol = {config.rtol}: none of the theories {tuple(compared)} uses it")
    names = run.built[0].COMPARED or _common(config, training, compared)

    def sweep(name: str, theory: AnyTheory) -> Sweep:
        known = theory.observables(run.bare).names()
        statistics = (each + end for each in names for end in STATISTICS)
        record = (*names, *(each for each in statistics if each in known))
        times: Any = config.times
        if theory.records is not None and run.steps is not None:
            # Evenly among those of the comparison, with both ends.
            every = np.asarray(log_times(run.steps, config.times))
            chosen = np.linspace(0, len(every) - 1, theory.records)
            times = tuple(every[np.unique(np.rint(chosen).astype(int))].tolist())
        return Sweep(
            run,
            {"seed": {"range": _runs(config, theory)}},
            own.get(name, name),
            record,
            times,
            rtol=config.rtol if theory.adaptive else None,
            root=config.root,
        )

    sweeps = {n: sweep(n, theory) for n, theory in {TRAINING: training, **compared}.items()}
    for each in sweeps.values():
        each.check()
    cluster.use_all_cores()
    # What takes longest to compile is traced first: training, and theories with derivatives.
    slow = [TRAINING, *(name for name, each in compared.items() if each.records is not None)]
    begin([sweeps[name] for name in dict.fromkeys((*slow, *sweeps))])
    return sweeps, compared, left_out


def solved(
    config: Compare,
    sweeps: Mapping[str, Sweep],
    theories: Mapping[str, AnyTheory],
    left_out: Mapping[str, str],
) -> Comparison:
    """Compute what is `planned`."""
    found = {name: computed(each).load() for name, each in sweeps.items()}
    simulation, run = found.pop(TRAINING), config.run
    fields = (field.name for field in dataclasses.fields(config))
    settings = {name: getattr(config, name) for name in fields}
    settings |= {"out": str(config.out), "run": encode(language(), run)}
    names = sweeps[TRAINING].names
    return Comparison(run, settings, simulation, found, theories, names, left_out)


def _requested(
    config: Compare,
    every: Mapping[str, AnyTheory],
    described: Mapping[str, AnyTheory],
    left_out: Mapping[str, str],
    own: Mapping[str, AnyTheory],
) -> dict[str, AnyTheory]:
    """Return the requested theories, or all that are `described`, by name. Training without noise
    is always one of them, as it separates the effects of noise from the errors of a theory."""
    known = {name: each for name, each in every.items() if not each.trains}
    always = [name for name, each in described.items() if isinstance(each, Descent)]
    usual = [name for name in described if name not in always]
    if config.theories and not known:
        name = registry.system_of(config.run).name
        raise ValueError(f"theories = {config.theories[0]!r}: {name} has none")
    if not described and not config.theories and left_out and not own:
        why = next(iter(left_out.values()))
        raise ValueError(
            f"theories = (): none of the system's theories describes these runs; {why}"
        )
    names = list(always)
    for word in config.theories or usual:
        if word == registry.BEST:
            if not usual:
                raise ValueError(
                    "theories = 'best': none of the system's theories describes these runs"
                )
            names.append(usual[0])
        elif word == ALL:
            names += [
                n
                for n, each in known.items()
                if not error_message(registry.check_run, each, config.run)
            ]
        else:
            theory = known[checks.choice("theories", word, (*known, registry.BEST, ALL))]
            registry.check_run(theory, config.run)
            names.append(word)
    return {name: known[name] for name in dict.fromkeys(names)}


def _common(
    config: Compare, training: AnyTheory, theories: Mapping[str, AnyTheory]
) -> tuple[str, ...]:
    """Return the observables that training and theories share. Those that need a Hessian are
    compared only if theories are requested by name, or for rules with known stability."""
    curved = config.theories and error_message(check_threshold, config.run.rule.build()) is None
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


def _runs(config: Compare, theory: AnyTheory) -> int:
    """Return the number of runs of training or of a theory: one if all would be the same."""
    if theory.drawn and theory.paths:
        return theory.paths
    if not (theory.trains or theory.drawn or (theory.seeded and not _starts_alike(config.run))):
        return 1
    names = theory.observables(config.run.bare).names()
    return min(config.seeds, MOST_STARTS) if any(n.endswith(STD) for n in names) else config.seeds


@functools.lru_cache(maxsize=1)
def _starts_alike(run: Experiment) -> bool:
    """Return whether all seeds start from the same weights: whether they ignore the key."""
    init = jax.jit(lambda key: eqx.filter(run.built[0].init(key), eqx.is_array))
    return not traces.reads(init.trace(jax.eval_shape(lambda: jax.random.key(0))))[0]
