"""`dynsim compare`: theory against simulation.

Example:
    >>> found = sweeps.compare.compare("saxe", eta=0.1, steps=20, seeds=2, theories=["modes"])
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.compare.comparison import Comparison


def compare(run: Any = "yz", /, theories: Sequence[Any] = (), **settings: Any) -> "Comparison":
    """Train runs, solve theories from the same starts at the same times, and compare them.

    Args:
        run: a `sweeps.Experiment`; or a problem or its name, as in `sweeps.experiment`.
        theories: names of theories, and your own theories (`odes.Theory`); all that apply if
            omitted.
        settings: options of `dynsim compare` and settings of the run, by name, such as seeds=4,
            eta_y=1.0. Nothing is written, and `out` is ignored.

    Returns:
        The comparison, with its numbers as a `report`, and as text through `str`. Its datasets are
        `simulation` and, by theory, `predictions`.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.

    Example:
        >>> found = compare("saxe", eta=0.1, steps=20, seeds=2, theories=["modes"])
    """
    import dataclasses

    from dynsim import checks
    from sweeps.compare.command import Compare, compare
    from sweeps.systems.experiment import made

    theories = (theories,) if isinstance(theories, str) else theories
    checks.kind("theories", theories, Sequence)
    names = {field.name for field in dataclasses.fields(Compare)}
    options = {name: settings.pop(name) for name in names & {*settings}}
    named = tuple(each for each in theories if isinstance(each, str))
    own = [each for each in theories if not isinstance(each, str)]
    return compare(Compare(made(run, **settings), theories=named, **options), own)
