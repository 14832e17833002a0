"""Figures that are made of sweeps ask for such as there are, and for those that are recorded."""

import json

import pytest

from sweeps.commands.table import COMMANDS
from tests.sweeps.studies import planned

RECORDED = json.loads(planned.RECORD.read_text())
# Whose sweeps take long to plan.
LARGE = {"figure collapse", "figure validity"}


def test_some_are() -> None:
    assert len(planned.FIGURES) >= 6


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] if n in LARGE else []) for n in planned.FIGURES],
)
def test_every_sweep_of_a_figure_passes_its_check(name: str) -> None:
    wanted = planned.sweeps_of(name)
    assert wanted
    for sweep in wanted:
        sweep.check()


def test_settings_of_commands_do_not_change() -> None:
    loaded = {name: command.load()[0] for name, command in COMMANDS.items()}
    assert [n for n, each in loaded.items() if not each.__dataclass_params__.frozen] == []


@pytest.mark.parametrize("name", planned.FIGURES)
def test_a_figure_computes_what_is_recorded(name: str) -> None:
    """After a change that you wanted, run `python -m tests.sweeps.studies.planned`."""
    assert planned.lines(name) == RECORDED[name]
