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

from dynsim import Problem, checks, log_times
from dynsim.decoding import Seed
from dynsim.problem.sharpness import check_threshold
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from dynsim.training.rule import UpdateRule
from odes.batch_noise import STATISTICS, STD
from odes.theory import AnyTheory, error_message
from sweeps import output
from sweeps.comparison.errors import TRAINING, Comparison
from sweeps.language.tree import check_fields, encode
from sweeps.language.values import MOST_VALUES
from sweeps.output import check_directory
from sweeps.runner import cluster
from sweeps.runner.program import traces
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep, Tolerance
from sweeps.runner.work import compile_first
from sweeps.systems import registry
from sweeps.systems.experiment import MOST_TIMES, Experiment, as_experiment
from sweeps.systems.kinds import language
from sweeps.systems.training import Descent

MOST_STARTS = 32
"""Maximum number of seeds whose starting weights the theories of the standard deviation across
seeds use, as these theories are slow."""
ALL_THEORIES = "all"


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

    RUN: ClassVar[Mapping[str, str]] = {"problem": "yz"}

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
        for name in self.theories:
            if self.theories.count(name) > 1:
                raise ValueError(f"theories = {name!r}: is named twice")
        if self.run.seed:
            raise ValueError(
                f"seed = {self.run.seed}: the runs of a comparison have the seeds 0 to "
                f"{self.seeds - 1}; choose another root"
            )
        self.run.check()
        check_directory(self.out)


def run(config: Compare) -> list[Path] | None:
    """Compare, write the files, and print the table, or the report as JSON."""
    work = plan_comparison(config)
    # Matplotlib is imported while programs compile.
    from sweeps.comparison.picture import draw

    result = run_comparison(config, *work)
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
    run: Experiment | Problem | str = "yz",
    rule: UpdateRule | str | Mapping | None = None,
    /,
    theories: Sequence[AnyTheory | str] | str = (),
    **settings: Any,
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
    named = tuple(theory for theory in theories if isinstance(theory, str))
    own = [theory for theory in theories if not isinstance(theory, str)]
    config = Compare(as_experiment(run, rule, **settings), theories=named, **options)
    return run_comparison(config, *plan_comparison(config, own))


def plan_comparison(
    config: Compare, theories: Sequence[AnyTheory] = ()
) -> tuple[dict[str, Sweep], dict[str, AnyTheory], dict[str, str]]:
    """Return the sweeps of training and of each theory by name, the theories, and the reasons why
    others do not apply. All programs are traced, and compile in the background."""
    config.check()
    run = config.run
    own = {theory.name: theory for theory in theories}
    applicable, left_out = registry.applicable(run)
    known = registry.theories(registry.system_of(run))
    training = known[TRAINING]
    compared = _requested(config, known, applicable, left_out, own) | own
    if config.rtol is not None and not any(theory.adaptive for theory in compared.values()):
        raise ValueError(f"rtol = {config.rtol}: none of the theories {tuple(compared)} uses it")
    names = run.built[0].COMPARED or _common(config, training, compared)

    sweeps = {}
    for name, theory in {TRAINING: training, **compared}.items():
        recordable = theory.observables(run.bare).names()
        # Theories of noise also predict standard deviations, and errors of what they sample.
        statistics = (observable + suffix for observable in names for suffix in STATISTICS)
        record = (*names, *(statistic for statistic in statistics if statistic in recordable))
        times: int | tuple[int, ...] = config.times
        if theory.records is not None and run.steps is not None:
            # Evenly among those of the comparison, with both ends.
            every = np.asarray(log_times(run.steps, config.times))
            index = np.linspace(0, len(every) - 1, theory.records)
            times = tuple(every[np.unique(np.rint(index).astype(int))].tolist())
        seeds = config.seeds
        if theory.drawn and theory.paths:
            seeds = theory.paths
        elif not (theory.trains or theory.drawn or (theory.seeded and not _starts_alike(run))):
            # All runs would be the same.
            seeds = 1
        elif any(observable.endswith(STD) for observable in recordable):
            # Theories of noise are slow.
            seeds = min(seeds, MOST_STARTS)
        sweeps[name] = Sweep(
            run,
            {"seed": {"range": seeds}},
            own.get(name, name),
            record,
            times,
            rtol=config.rtol if theory.adaptive else None,
            root=config.root,
        )
        sweeps[name].check()

    # Before JAX is started, which fixes the number of its devices.
    cluster.use_all_cores()
    # What takes longest to compile is traced first: training, and theories with derivatives.
    slow = [TRAINING, *(name for name, theory in compared.items() if theory.records is not None)]
    compile_first([sweeps[name] for name in dict.fromkeys((*slow, *sweeps))])
    return sweeps, compared, left_out


def run_comparison(
    config: Compare,
    sweeps: Mapping[str, Sweep],
    theories: Mapping[str, AnyTheory],
    left_out: Mapping[str, str],
) -> Comparison:
    """Compute the result of a `plan_comparison`."""
    results = {name: run_sweep(sweep).load() for name, sweep in sweeps.items()}
    simulation = results.pop(TRAINING)
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    settings |= {"out": str(config.out), "run": encode(language(), config.run)}
    names = sweeps[TRAINING].names
    return Comparison(config.run, settings, simulation, results, theories, names, left_out)


def _requested(
    config: Compare,
    every: Mapping[str, AnyTheory],
    applicable: Mapping[str, AnyTheory],
    left_out: Mapping[str, str],
    own: Mapping[str, AnyTheory],
) -> dict[str, AnyTheory]:
    """Return the requested theories by name, or all that are `applicable`. Training without noise
    is always one of them, as it separates the effects of noise from the errors of a theory."""
    known = {name: theory for name, theory in every.items() if not theory.trains}
    names = [name for name, theory in applicable.items() if isinstance(theory, Descent)]
    others = [name for name in applicable if name not in names]
    if config.theories and not known:
        name = registry.system_of(config.run).name
        raise ValueError(f"theories = {config.theories[0]!r}: {name} has none")
    if not applicable and not config.theories and left_out and not own:
        reason = next(iter(left_out.values()))
        raise ValueError(
            f"theories = (): none of the system's theories describes these runs; {reason}"
        )
    for word in config.theories or others:
        if word == registry.BEST:
            if not others:
                raise ValueError(
                    "theories = 'best': none of the system's theories describes these runs"
                )
            names.append(others[0])
        elif word == ALL_THEORIES:
            # Also variants of other theories, which `applicable` leaves out.
            names += [
                name
                for name, theory in known.items()
                if not error_message(registry.check_run, theory, config.run)
            ]
        else:
            theory = known[checks.choice("theories", word, (*known, registry.BEST, ALL_THEORIES))]
            registry.check_run(theory, config.run)
            names.append(word)
    return {name: known[name] for name in dict.fromkeys(names)}


def _common(
    config: Compare, training: AnyTheory, theories: Mapping[str, AnyTheory]
) -> tuple[str, ...]:
    """Return the observables that training and theories share. Those that need a Hessian are
    compared only if theories are requested by name, or for rules with known stability."""
    curvature = config.theories and error_message(check_threshold, config.run.rule.build()) is None
    problem = config.run.bare
    predicted = [theory.observables(problem).names() for theory in theories.values()]
    if theories:
        measured = training.observables(problem).names()
    else:
        measured = Sweep(config.run, {"seed": {"range": 1}}).names
    names = tuple(
        name
        for name in measured
        if all(name in predictions for predictions in predicted)
        and (curvature or name not in (SHARPNESS, PRECONDITIONED))
    )
    if not names:
        raise ValueError(
            f"theories = {tuple(theories)}: training measures nothing that they predict"
        )
    return names


@functools.lru_cache(maxsize=1)
def _starts_alike(run: Experiment) -> bool:
    """Return whether all seeds start from the same weights: whether they ignore the key."""
    # Traced only: whether a program reads its key shows without running it.
    init = jax.jit(lambda key: eqx.filter(run.built[0].init(key), eqx.is_array))
    return not traces.reads(init.trace(jax.eval_shape(lambda: jax.random.key(0))))[0]
