"""The table of commands: every entry resolves, help and errors name them."""

import dataclasses
import importlib.metadata
import inspect
import typing
from types import UnionType

import pytest

from sweeps import cli


def stopped(*words: str) -> int | str | None:
    """The exit code of a command line that ends before anything runs."""
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return stop.value.code


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_settings_and_what_runs_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, run = cli.COMMANDS[name].load()
    assert dataclasses.is_dataclass(settings)
    (taken,) = inspect.signature(run).parameters
    wanted = typing.get_type_hints(run)[taken]
    assert issubclass(
        settings, typing.get_args(wanted) if isinstance(wanted, UnionType) else wanted
    )
    assert stopped(*name.split(), "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: dynsim {name} ")


def test_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in cli.COMMANDS.items():
        assert [*name.split(), *command.help.split()] in map(str.split, lines)
    assert stopped() == 2
    assert capsys.readouterr().out.splitlines() == lines
    assert stopped("figure", "--help") == 0
    text = capsys.readouterr().out
    assert "trainability" in text
    assert "explain" not in text
    assert stopped("figure") == 2
    assert capsys.readouterr().out == text


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped("--version") == 0
    assert capsys.readouterr().out == f"dynsim {importlib.metadata.version('dynsim')}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compar"], "dynsim: command 'compar': did you mean compare? It must be compare, explain"),
        (["collapse"], "command 'collapse': did you mean figure collapse?"),
        (["figure", "two-stag"], "figure 'two-stag': did you mean two_stage"),
        (["figure", "66"], "figure '66': did you mean 6? It must be 3, 4, 5"),
        (["figure", "xyzzy"], "figure 'xyzzy': must be 3, 4, 5, 6"),
        (["compare", "one_stage"], "compare 'one_stage': did you mean two_stage?"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["figure", "--out", "x"], "unrecognized arguments: --out x"),
    ],
)
def test_unknown_words_are_named_with_what_is_allowed(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(*words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_words_may_be_joined_by_hyphens_and_options_follow() -> None:
    figure = cli.parse(["figure", "two-stage-phase", "--seeds", "3"])
    assert figure == cli.parse(["figure", "two_stage_phase", "--seeds", "3"])
    assert figure.seeds == 3
    assert type(figure) is cli.COMMANDS["figure two_stage_phase"].load()[0]
    assert cli.find(["compare", "two-stage", "--r", "2"]) == ("compare two_stage", ["--r", "2"])
    assert cli.find(["compare", "--task", "syn-small"]) == ("compare", ["--task", "syn-small"])
    assert cli.find(["phase"]) == ("phase", [])


def test_a_task_of_another_system_says_where_it_belongs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["compare", "--task", "two-stage"]) == 2
    assert "belongs to the system two_stage: dynsim compare two_stage" in capsys.readouterr().err
