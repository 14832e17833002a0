"""Figures that are made of sweeps ask for such as there are."""

import jax
import pytest

from sweeps.commands.table import COMMANDS

MADE = [
    name
    for name, command in COMMANDS.items()
    if name.startswith("figure ") and hasattr(command.load()[0], "sweeps")
]


def test_some_are() -> None:
    assert len(MADE) >= 6


# Whose sweeps take long to plan.
LARGE = {"figure collapse", "figure validity"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] if n in LARGE else []) for n in MADE],
)
def test_every_sweep_of_a_figure_passes_its_check(name: str) -> None:
    settings, _ = COMMANDS[name].load()
    wanted = jax.tree.leaves(list(settings().sweeps().values()))
    assert wanted
    for sweep in wanted:
        sweep.check()
