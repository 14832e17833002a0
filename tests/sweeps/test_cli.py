"""The table of commands: every entry resolves, help and errors name them."""

import dataclasses
import gc
import importlib
import importlib.metadata
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path
from types import UnionType
from typing import Any

import pytest

import dynsim
import sweeps
from sweeps import cli, lines
from sweeps.commands import line, table
from sweeps.runner import progress
from tests.sweeps.ending import ended

COMPUTING = (
    "sweeps.runner.run",
    "sweeps.commands.explain",
    "sweeps.commands.reading",
    "sweeps.commands.sweep",
    "sweeps.comparison.command",
    "sweeps.studies.phase.plane",
    "sweeps.studies.spectrum.singular",
)
"""Modules that compute and draw nothing; each imports others like it."""


def imported(code: str) -> set[str]:
    """Modules that a Python process has imported after running `code`."""
    show = "import sys; print('imported:', *sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.rpartition("imported:")[2].split())


def stopped(*words: str) -> int | str | None:
    """The exit code of a command line that ends before anything runs."""
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return stop.value.code


@pytest.mark.parametrize(
    "words",
    [
        ["--\x1b[31m"],
        ["\x1b[31m"],
        ["info", "\x1b[31m"],
        ["sweep", "\x1b[31m.toml"],
        ["sweep", "fig4", "--\x1b[31m"],
        ["sweep", "fig4", "--out", "ftp://\x1b[31m/x"],
        ["figure", "\x1b[31m"],
        ["compare", "--steps", "\x1b[31m"],
        ["compare", "--task", "\x1b[31m"],
    ],
)
def test_what_was_typed_does_not_reach_the_terminal_as_it_is(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    said = capsys.readouterr().err
    assert "\\x1b[31m" in said
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", table.COMMANDS)
def test_every_command_has_settings_and_what_runs_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, run = table.COMMANDS[name].load()
    assert dataclasses.is_dataclass(settings)
    if not issubclass(settings, sweeps.Figure):
        _check_signature(settings, run)
    assert stopped(*name.split(), "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: dynsim {name} ")


def _check_signature(settings: type, run: Any) -> None:
    taken, *optional = inspect.signature(run).parameters.values()
    assert all(parameter.default is not parameter.empty for parameter in optional)
    wanted = typing.get_type_hints(run)[taken.name]
    assert issubclass(
        settings, typing.get_args(wanted) if isinstance(wanted, UnionType) else wanted
    )


def test_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in table.COMMANDS.items():
        said = " ".join((command.load()[0].__doc__ or "").split())
        shown = re.compile(rf"  {name}(?: \[PROBLEM\])?  +(.{{10,}}?)( \.\.\.)?")
        (found,) = filter(None, map(shown.fullmatch, lines))
        assert said.startswith(found[1])
    assert "  phase [PROBLEM]             Draw a phase diagram" in lines
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
        (["compar"], "dynsim: command 'compar': did you mean compare? It must be compare,"),
        (["collapse"], "command 'collapse': did you mean figure collapse?"),
        (["figure", "two-stag"], "figure 'two-stag': did you mean two_stage or"),
        (["figure", "66"], "figure '66': must be 3, 4, 5"),
        (["figure", "xyzzy"], "figure 'xyzzy': must be 3, 4, 5, 6"),
        (["compare", "one_stage"], "problem = 'one_stage': did you mean two_stage?"),
        (["--bogus"], "dynsim: has no option --bogus"),
        (["figure", "--out", "x"], "dynsim figure: has no option --out"),
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
    figure = cli.parse(["figure", "joma-invariant", "--seeds", "3"])
    assert figure == cli.parse(["figure", "joma_invariant", "--seeds", "3"])
    assert figure.seeds == 3
    assert type(figure) is table.COMMANDS["figure joma_invariant"].load()[0]
    assert line.find(["compare", "two-stage", "--r", "2"]) == ("compare", "two-stage", ["--r", "2"])
    assert line.find(["compare", "--task", "syn-small"]) == ("compare", "", ["--task", "syn-small"])
    assert line.find(["phase"]) == ("phase", "", [])
    assert line.find(["figure", "optimum", "joma"]) == ("figure optimum", "joma", [])
    for words in (["two-stage", "--r", "2"], ["--r=2", "--Problem", "two_stage"]):
        found = cli.parse(["compare", *words])
        assert isinstance(found.run.problem, dynsim.Prompts)
        assert found.run.problem.r == 2


HELPED = [["--help"], ["figure", "--help"], ["--version"], ["compar"], ["compare", "magic"]]
HELPED += [["compare", "--stps", "3"], ["phase", "joma", "--steps", "x"], ["sweep", "no.toml"]]
HELPED += [["compare", "--theories", "magic"], ["phase", "--x", "T:1:2"]]
HELPED += [["compare", "--rule", "nowhere:F"], ["compare", "--eta", "nowhere:f"]]
HELPED += [["sweep", "fig6", "--set", "run.momentm=0.5"], ["sweep", "fig6", "--set", "recrd=loss"]]


@pytest.fixture(scope="module")
def kept() -> None:
    """The facts that help is made of, derived from the code as it is."""
    code = (
        "from sweeps import cli\nfor words in {}:\n try: cli.main(words)\n except SystemExit: pass"
    )
    imported(code.format([*HELPED]))


@pytest.mark.parametrize("words", [*HELPED, ["info", "magic"], ["plot", "magic", "--x", "time"]])
@pytest.mark.usefixtures("kept")
@pytest.mark.more
def test_help_and_wrong_names_import_neither_jax_nor_a_study(words: list[str]) -> None:
    code = f"from sweeps import cli\ntry: cli.main({words})\nexcept SystemExit: pass"
    found = imported(code)
    assert "sweeps.cli" in found
    assert not found & {"jax", "matplotlib", "xarray", "dynsim", "odes"}
    light = {
        "sweeps.cli",
        "sweeps.commands",
        "sweeps.commands.line",
        "sweeps.commands.table",
    }
    language = ("axes", "derived", "fields", "grammar")
    light |= {"sweeps.language", *(f"sweeps.language.{name}" for name in language)}
    light |= {"sweeps.systems", "sweeps.systems.kinds"}
    light |= {"sweeps.recipes", "sweeps.lines"}
    assert not any(name.startswith("sweeps.") for name in found - light)


@pytest.mark.more
def test_what_computes_does_not_import_matplotlib() -> None:
    names = {*sweeps.__all__} - {"drawing", "phase"}
    code = f"import sweeps, {', '.join(COMPUTING)}\n[getattr(sweeps, n) for n in {names}]"
    found = imported(code)
    assert set(COMPUTING) <= found
    assert "matplotlib" not in found


def test_the_front_has_its_names_and_no_others() -> None:
    assert sweeps.open is importlib.import_module("sweeps.runner.run").open_sweep
    assert set(sweeps.__all__) <= set(dir(sweeps))
    for name in sweeps.__all__:
        found = getattr(sweeps, name)
        # A package among classes and functions: comparisons.
        module = found.__name__ if inspect.ismodule(found) else found.__module__
        assert module.startswith("sweeps."), name
    with pytest.raises(AttributeError, match="'sweeps' has no attribute 'opne'"):
        _ = sweeps.opne


@pytest.mark.more
def test_the_package_is_a_command_and_says_its_version() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "dynsim", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"dynsim {importlib.metadata.version('dynsim')}\n"
    assert dynsim.__version__ == importlib.metadata.version("dynsim")


def test_as_a_module_it_starts_anew_before_equinox_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which asks when it is imported whether solvers may call the host."""
    started = []

    def execv(*words: typing.Any) -> None:
        started.append((*words, os.environ["EQX_ON_ERROR"]))
        raise SystemExit

    monkeypatch.setenv("EQX_ON_ERROR", "raise")
    monkeypatch.delenv("EQX_ON_ERROR")
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "dynsim", "info", "x"])
    with pytest.raises(SystemExit):
        runpy.run_module("dynsim", run_name="__main__")
    assert started == [(sys.executable, [sys.executable, "-m", "dynsim", "info", "x"], "nan")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_ENABLE_X64", "maybe"),
        ("JAX_NUM_CPU_DEVICES", "few"),
    ],
)
@pytest.mark.more
def test_what_jax_does_not_take_from_the_environment_is_named(name: str, value: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from sweeps import cli; cli.main(['explain', '--quiet'])"],
        capture_output=True,
        text=True,
        env={**os.environ, name: value},
    )
    assert ran.stderr.startswith("dynsim: ")
    assert name.casefold() in ran.stderr.casefold()
    assert value in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


def test_modules_of_the_current_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not only with `python -m`, which puts the current folder first."""
    net = "class Net(dynsim.Problem):\n    def init(self, key):\n        return 1.0\n"
    (tmp_path / "lies_here.py").write_text(f"import dynsim\n\n{net}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit):
        cli.main(["compare", "lies_here:Net", "--steps", "0"])
    assert "steps = 0: must be an integer from 1" in capsys.readouterr().err
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.full)])
@pytest.mark.more
def test_a_reader_that_goes_away_is_no_error(unbuffered: str) -> None:
    """Whether Python writes at once, or what it has kept when it ends."""
    reading = subprocess.Popen(
        [sys.executable, "-m", "dynsim", "compare", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.close()
    assert reading.stderr.read() == ""
    reading.stderr.close()
    assert reading.wait() == 141


def test_ctrl_c_ends_any_command_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: object) -> None:
        raise KeyboardInterrupt

    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, interrupted))
    assert cli.main(["explain", "--quiet"]) == 130
    assert capsys.readouterr().err == "dynsim: stopped by Ctrl-C\n"


def test_another_package_of_the_name_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeps, "__all__", ["sweep"])
    assert cli.main(["explain", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("dynsim: the package sweeps is not dynsim's: ")


class FullError(OSError):
    """Stands for a disk without space."""


@pytest.mark.parametrize("lost", [BrokenPipeError, FullError])
def test_output_that_cannot_be_written_ends_a_command(
    lost: type[OSError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is discarded from then on."""
    discarded: list[int] = []

    def flush() -> None:
        raise lost("no space")

    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, lambda config: None))
    monkeypatch.setattr(os, "dup2", lambda opened, number: discarded.append(number))
    monkeypatch.setattr(sys.stdout, "flush", flush)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 7)
    assert cli.main(["explain", "--quiet"]) == (141 if lost is BrokenPipeError else 2)
    monkeypatch.undo()
    assert discarded == [7]
    told = "" if lost is BrokenPipeError else "dynsim: the output could not be written: no space\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_program_waits_for_no_thread(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the command line is its own."""
    codes: list[int] = []

    def interrupted(config: object) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else cli._Stopped(number)

    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, interrupted))
    monkeypatch.setattr(sys, "argv", ["dynsim", "explain", "--quiet"])
    monkeypatch.setattr(os, "_exit", codes.append)
    assert cli.main() == 128 + number
    assert codes == [128 + number]


def test_chunks_that_failed_are_an_error_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(config: object) -> None:
        raise sweeps.ChunksFailed("runs/a: 1 chunk failed", {0: "lost"})

    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, failing))
    assert cli.main(["explain", "--quiet"]) == 1
    assert "runs/a: 1 chunk failed" in capsys.readouterr().err


def test_the_environment_is_set_before_libraries_are_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MPLBACKEND", "EQX_ON_ERROR", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "x")
        if name != "MPLBACKEND":
            monkeypatch.delenv(name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.1")
    cli.tell()
    assert [os.environ[n] for n in ("MPLBACKEND", "EQX_ON_ERROR")] == ["Agg", "nan"]
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    cli.tell()
    assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ


@pytest.mark.more
def test_only_a_process_of_its_own_leaves_imports_out_of_garbage_collection(
    tmp_path: Path,
) -> None:
    code = """if True:
        import gc, sys
        from sweeps.cli import main
        words = ["schema", "--out", "schema.json"]
        main(words)
        print(gc.isenabled(), gc.get_freeze_count())
        sys.argv[1:] = words
        main()
        print(gc.isenabled(), gc.get_freeze_count() > 0)"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("True")]
    assert found == ["True 0", "True True"], done.stdout


def test_closed_streams_change_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, lambda config: print(1)))
    assert cli.main(["explain", "--quiet"]) == 0
    assert ended(["sweep", "no-such"]) == 2
    for stream in (sys.stdout, sys.stderr):
        stream.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_and_code_from_outside_end_no_command_without_a_word(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(config: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    def within_a_sweep(config: object) -> None:
        with progress.stoppable(lambda: sweeps.Interrupted("stopped: 3 runs.")) as check:
            os.kill(os.getpid(), number)
            check()

    def leaving(config: object) -> None:
        raise SystemExit(0)

    def without_a_device(config: object) -> None:
        raise RuntimeError("Unable to initialize backend 'quantum': it is not known")

    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, stopped))
    before = signal.signal(number, signal.SIG_DFL)
    assert cli.main(["explain", "--quiet"]) == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL
    assert capsys.readouterr().err == f"dynsim: stopped by {number.name}\n"
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, within_a_sweep))
    assert cli.main(["explain", "--quiet"]) == 128 + number
    message = "dynsim: stopped: 3 runs. Run the same command again to resume.\n"
    assert capsys.readouterr().err == message
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, leaving))
    assert cli.main(["explain", "--quiet"]) == 2
    assert "asked to end the program (SystemExit(0))" in capsys.readouterr().err
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, without_a_device))
    assert cli.main(["explain", "--quiet"]) == 2
    said = "dynsim: JAX cannot use the devices that its environment names: Unable to init"
    assert capsys.readouterr().err.startswith(said)
    signal.signal(number, before)


def test_who_ignores_the_end_of_a_terminal_is_not_stopped_by_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with progress.stoppable(lambda: sweeps.Interrupted("stopped.")) as check:
        os.kill(os.getpid(), signal.SIGHUP)
        check()
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_garbage_is_collected_is_not_lost(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JAX has a callback of the collector, and Python only prints what such a one raises."""
    sent = []

    def callback(*about: object) -> None:
        if not sent:
            sent.append(True)
            signal.raise_signal(number)

    def collecting(config: object) -> None:
        gc.callbacks.append(callback)
        gc.collect()
        time.sleep(10)

    settings, _ = table.COMMANDS["explain"].load()
    monkeypatch.setattr(table.Command, "load", lambda command: (settings, collecting))
    before, hook = signal.signal(number, signal.default_int_handler), sys.unraisablehook
    try:
        assert cli.main(["explain", "--quiet"]) == 128 + number
    finally:
        gc.callbacks.remove(callback)
        signal.signal(number, before)
    assert sys.unraisablehook is hook
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert capsys.readouterr().err == f"dynsim: stopped by {name}\n"


def test_a_signal_that_comes_while_jax_is_loaded_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library crashes where Python raises an error meanwhile."""
    loaded, load = [], importlib.import_module

    def loading(name: str) -> typing.Any:
        signal.raise_signal(signal.SIGINT)
        loaded.append(name)
        return load(name)

    monkeypatch.setattr(importlib, "import_module", loading)
    # A shell has programs in its background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            table.COMMANDS["explain"].load()
    finally:
        signal.signal(signal.SIGINT, before)
    assert loaded[0] == "sweeps.commands.explain"


def test_what_would_break_a_line_is_escaped() -> None:
    # A line end, a bell, a code that turns the direction of writing, and a letter that stays.
    assert lines.printable("a\nb\x07\u202e\u00e9") == r"a\nb\x07\u202e" + "\u00e9"


@pytest.mark.parametrize("command", ["compare", "explain", "phase"])
def test_the_first_words_come_before_the_imports(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def imports(*arguments: object) -> typing.NoReturn:
        raise ValueError("imports")

    monkeypatch.setattr(line, "_made", imports)
    for words, number in ((), 2), (("--quiet",), 1):
        with pytest.raises(SystemExit):
            line.understood([command, *words])
        said = capsys.readouterr().err.splitlines()
        assert len(said) == number
        assert said[0].startswith(f"{command}: " if number == 2 else "dynsim: imports")
