"""`dynsim list`: the problems, and what one of them records, which theories it has and for what."""

import dataclasses
import textwrap
from typing import ClassVar

from sweeps.language.fields import LanguageError
from sweeps.systems import kinds


@dataclasses.dataclass(frozen=True)
class List:
    """List the problems; or with the name of a problem, the quantities that its runs record, its
    theories with their assumptions, and its groups of weights.

    Attributes:
        problem: a name from the list, or module:Name of your own class.
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("problem",)

    problem: str = ""


def run(config: List) -> None:
    """Print the list."""
    from sweeps.systems import registry

    if config.problem:
        _print_problem(config.problem)
        return
    print("Problems; `dynsim list NAME` says what each records, and which theories it has:\n")
    for name in kinds.names():
        try:
            about = kinds.language().kind_of(registry.system(name).problems[0]).about
        except (ValueError, LanguageError) as error:
            # Of another package, which need not concern others.
            about = str(error)
        _print_entry(name, about.partition(". ")[0])
    print("\nOr write one of your own, and name it as module:Name (docs/howto/own-model.md).")


def _print_problem(word: str) -> None:
    from sweeps.runner.labels import about
    from sweeps.systems import registry
    from sweeps.systems.experiment import experiment

    run = experiment(word)
    system = registry.system_of(run)
    theories = registry.theories(system)
    print(f"{word}: {kinds.language().kind_of(type(run.problem)).about}")
    groups = kinds.language().run_defaults({"problem": {"kind": word}})[1]
    print(f"groups of weights: {', '.join(groups or ()) or 'one'}")
    print("\nObservables (--record of a sweep, --observable of a figure), with their units:")
    for name in theories["simulation"].observables(system.like or run.bare).names():
        label = about(system, name)
        unit = label.get("units", "1")
        _print_entry(name, label["long_name"] + f" [{unit}]" * (unit != "1"))
    _, reasons = registry.applicable(run)
    print(f"\nTheories, in order; those marked - do not describe the default run, {run.rule}:")
    for name, theory in theories.items():
        if not theory.trains:
            parts = [theory.title or name, f"assumes {theory.assumes}" if theory.assumes else ""]
            parts += ["a variant, compared only on request"] * theory.variant
            mark = "- " if name in reasons else "  "
            _print_entry(mark + name, "; ".join(filter(None, parts)))
            if name in reasons:
                _print_entry("", reasons[name])


def _print_entry(name: str, text: str) -> None:
    first, *rest = textwrap.wrap(text, 74) or [""]
    print("\n".join([f"  {name:<23} {first}", *(f"{'':26}{line}" for line in rest)]))
