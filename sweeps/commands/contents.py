"""`dynsim list`: the problems, and what one of them records, which theories it has and for what."""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import ClassVar

from sweeps.language.fields import LanguageError
from sweeps.systems import kinds

WIDTH = 100


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
    print("\n".join(_of_problem(config.problem) if config.problem else _problems()))


def _problems() -> Iterator[str]:
    from sweeps.systems import registry

    yield "Problems; `dynsim list NAME` says what each records, and which theories it has:"
    yield ""
    for name in kinds.names():
        try:
            kind = kinds.language().kind_of(registry.system(name).problems[0])
            about = kind.about
        except (ValueError, LanguageError) as error:
            # Of another package, which need not concern others.
            about = str(error)
        yield _entry(name, about.partition(". ")[0])
    yield ""
    yield "Or write one of your own, and name it as module:Name (docs/howto/own-model.md)."


def _of_problem(word: str) -> Iterator[str]:
    from sweeps.runner.labels import about
    from sweeps.systems import registry
    from sweeps.systems.experiment import experiment

    run = experiment(word)
    system = registry.system_of(run)
    every = registry.theories(system)
    problem = system.like or run.bare
    yield f"{word}: {kinds.language().kind_of(type(run.problem)).about}"
    groups = kinds.language().run_defaults({"problem": {"kind": word}})[1]
    yield f"groups of weights: {', '.join(groups or ()) or 'one'}"
    yield ""
    yield "Observables (--record of a sweep, --observable of a figure), with their units:"
    for name in every["simulation"].observables(problem).names():
        said = about(system, name)
        unit = said.get("units", "1")
        text = said["long_name"] + f" [{unit}]" * (unit != "1")
        yield _entry(name, text)
    yield ""
    _, refused = registry.applicable(run)
    yield f"Theories, in order; those marked - do not describe the default run, {run.rule}:"
    for name, theory in every.items():
        if not theory.trains:
            words = [theory.title or name, f"assumes {theory.assumes}" if theory.assumes else ""]
            words += ["a variant, compared only on request"] * theory.variant
            mark = "- " if name in refused else "  "
            yield _entry(mark + name, "; ".join(filter(None, words)))
            if name in refused:
                yield _entry("", refused[name])


def _entry(name: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - 26) or [""]
    first, *rest = lines
    return "\n".join([f"  {name:<23} {first}", *(f"{'':26}{line}" for line in rest)])
