"""Figures that are made of sweeps ask for such as there are, and for those that are recorded."""

import dataclasses
import importlib
import json
import pkgutil

import equinox as eqx
import pytest

from sweeps import studies
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
@pytest.mark.more
def test_every_sweep_of_a_figure_passes_its_check(name: str) -> None:
    wanted = planned.sweeps_of(name)
    assert wanted
    for sweep in wanted:
        sweep.check()


def test_settings_of_commands_do_not_change() -> None:
    loaded = {name: command.load()[0] for name, command in COMMANDS.items()}
    assert [n for n, each in loaded.items() if not each.__dataclass_params__.frozen] == []


def test_settings_and_results_of_studies_do_not_change() -> None:
    names = pkgutil.walk_packages(studies.__path__, f"{studies.__name__}.")
    modules = [importlib.import_module(found.name) for found in names]
    made = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    own = [each for each in made if each.__module__.startswith(studies.__name__)]
    # Modules of Equinox are immutable by themselves.
    found = [e for e in own if dataclasses.is_dataclass(e) and not issubclass(e, eqx.Module)]
    assert found
    assert [each for each in found if not each.__dataclass_params__.frozen] == []


@pytest.mark.parametrize("name", planned.FIGURES)
@pytest.mark.more
def test_a_figure_computes_what_is_recorded(name: str) -> None:
    """After a change that you wanted, run `python -m tests.sweeps.studies.planned`."""
    assert planned.lines(name) == RECORDED[name]
