"""`dynsim compare`: theory against simulation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.compare.comparison import Comparison


def compare(task: Any = "syn-small", theories: Sequence[Any] = (), **settings: Any) -> "Comparison":
    """Train runs, solve theories from the same starts at the same times, and compare them.

    Args:
        task: a task, as what is swept over takes it: its name, of any system, or a file; or a
            `dynsim.SequenceClasses`.
        theories: names of theories, and in Y and Z also theories of your own
            (`odes.ladder.Theory`); all that apply if none is named.
        settings: the options of `dynsim compare --task TASK`, such as eta_y=1.0, steps=100.
            Nothing is written; `out` is not read.

    Returns:
        The outcome: its numbers as a `report`, and as text by `str`; the trajectories are
        `simulation` and, by theory, `predictions`.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs; for a
            setting that the system does not have, the one that is meant.
    """
    import importlib

    from dynsim import SequenceClasses, checks
    from sweeps.compare import generic
    from sweeps.systems import registry
    from sweeps.systems.settings import given

    checks.kind("task", task, str, SequenceClasses)
    theories = (theories,) if isinstance(theories, str) else theories
    checks.kind("theories", theories, Sequence)
    name = registry.system_for(task).name if isinstance(task, str) else "yz"
    made, run = generic.command(name)
    named = tuple(each for each in theories if isinstance(each, str))
    own = [each for each in theories if not isinstance(each, str)]
    config = given(made, "compare", task=task, theories=named, **settings)
    return importlib.import_module(run.__module__).compare(config, *([own] if own else []))
