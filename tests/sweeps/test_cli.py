"""The command line: help, words, exit codes of all endings, and a sample of bad input."""

import importlib.metadata
import os
import runpy
import signal
import subprocess
import sys

import pytest

import dynsim
import sweeps
from sweeps import cli
from sweeps.commands import line, table
from sweeps.runner import progress
from tests.sweeps import fuzz


def ran(*words, **environment):
    """A process of its own."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**os.environ, **environment}
    )


def ended(words):
    """The exit code of `dynsim` with these words."""
    try:
        return cli.main(words)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("name", table.COMMANDS)
def test_every_command_has_help(name, capsys):
    settings, run = table.COMMANDS[name].load()
    assert callable(run)
    assert settings.__doc__
    assert ended([*name.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: dynsim {name} ")


@pytest.mark.parametrize("group", [[], ["figure"]])
def test_help_names_every_command_of_a_group(group, capsys):
    assert ended([*group, "--help"]) == 0
    text = capsys.readouterr().out
    assert ended(group) == 2
    assert capsys.readouterr().out == text
    for name in table.COMMANDS:
        if not group or name.startswith("figure "):
            assert f"  {name.removeprefix(' '.join([*group, '']))} " in text


def test_words_may_be_joined_by_hyphens_and_options_follow():
    figure = cli.parse(["figure", "joma-invariant", "--seeds", "3"])
    assert figure == cli.parse(["figure", "joma_invariant", "--seeds", "3"])
    assert figure.seeds == 3
    split = line.split_command
    assert split(["compare", "two-stage", "--r", "2"]) == ("compare", "two-stage", ["--r", "2"])
    assert split(["compare", "--task", "syn-small"]) == ("compare", "", ["--task", "syn-small"])
    assert split(["figure", "optimum", "joma"]) == ("figure optimum", "joma", [])
    for words in (["two-stage", "--r", "2"], ["--r=2", "--Problem", "two_stage"]):
        found = cli.parse(["compare", *words]).run.problem
        assert (type(found), found.r) == (dynsim.Prompts, 2)


@pytest.mark.parametrize("words", ["--help", "info magic", "compare magic", "compare --momentm 1"])
def test_help_and_wrong_names_do_not_import_jax(words):
    code = f"from sweeps import cli\ntry: cli.main({words.split()})\nexcept SystemExit: pass\n"
    # The first time facts are derived from the code as it is.
    for _ in range(2):
        found = ran("-c", f"{code}import sys; print('imported:', *sys.modules)")
    names = {*found.stdout.rpartition("imported:")[2].split()}
    assert "sweeps.cli" in names
    assert not names & {"jax", "matplotlib", "xarray", "dynsim", "odes"}


def test_the_package_is_a_command_with_the_version_of_the_distribution():
    version = importlib.metadata.version("dynsim")
    assert ran("-m", "dynsim", "--version").stdout == f"dynsim {version}\n"
    assert dynsim.__version__ == version


def test_as_a_module_it_starts_anew_before_equinox_is_there(monkeypatch):
    """Which asks when it is imported whether solvers may call the host."""
    started = []

    def execv(*words):
        started.append((*words, os.environ["EQX_ON_ERROR"]))
        raise SystemExit

    monkeypatch.setenv("EQX_ON_ERROR", "raise")
    monkeypatch.delenv("EQX_ON_ERROR")
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "dynsim", "info", "x"])
    with pytest.raises(SystemExit):
        runpy.run_module("dynsim", run_name="__main__")
    assert started == [(sys.executable, [sys.executable, "-m", "dynsim", "info", "x"], "nan")]


MINE = """
import os, signal
import jax.numpy as jnp
import dynsim, sweeps

class Net(dynsim.Problem):
    def init(self, key):
        exec(os.environ["ENDING"])
        return jnp.ones(1)
    def population_loss(self, params):
        return jnp.sum(params**2)
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise KeyboardInterrupt", 128 + signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGHUP)", 128 + signal.SIGHUP),
        ("raise SystemExit(0)", 2),
        ("raise ValueError('mine')", 2),
    ],
)
def test_every_ending_has_its_exit_code_and_a_line(ending, code, tmp_path, monkeypatch, capsys):
    """Of a problem in the current folder."""
    (tmp_path / "ends_here.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("ENDING", ending)
    assert cli.main(["explain", "ends_here:Net", "--batch", "inf", "--steps", "3"]) == code
    told = capsys.readouterr().err
    assert "\ndynsim: " in told
    assert ("mine" in told) == ("mine" in ending)
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["ends_here"]


@pytest.mark.more
def test_output_that_nobody_reads_or_that_has_no_space_ends_a_command():
    words = f"{sys.executable} -m dynsim compare --help"
    closed = ["bash", "-c", f"set -o pipefail; {words} | true"]
    gone = subprocess.run(closed, capture_output=True, text=True)
    assert (gone.returncode, gone.stderr) == (141, "")
    full = subprocess.run(f"{words} > /dev/full", shell=True, capture_output=True, text=True)
    assert full.returncode == 2
    assert full.stderr.startswith("dynsim: ")


def test_what_jax_does_not_take_from_the_environment_is_named():
    code = "from sweeps import cli; cli.main(['explain', '--quiet'])"
    found = ran("-c", code, JAX_NUM_CPU_DEVICES="few")
    assert found.stderr.startswith("dynsim: ")
    assert "few" in found.stderr
    assert found.stdout == ""


def test_who_ignores_the_end_of_a_terminal_is_not_stopped_by_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with progress.stoppable(lambda: sweeps.Interrupted("stopped.")) as check:
        os.kill(os.getpid(), signal.SIGHUP)
        check()
    signal.signal(signal.SIGHUP, before)


EXAMPLES = {"sweep files": 80, "sweeps in Python": 80, "runs in Python": 60, "command lines": 40}


@pytest.mark.parametrize("name", fuzz.CLASSES)
@pytest.mark.more
def test_whatever_is_given_is_accepted_or_an_error_of_ours(name):
    """Some two hundred of what `make fuzz` tries, always the same ones; nothing compiles."""
    found = fuzz.count(name, EXAMPLES[name])
    assert not [key for key in found if " at " in key]
    assert found["accepted"] >= 1
    assert found["refused"] >= EXAMPLES[name] / 2
