"""Compiled programs that are kept: found again by another process, and never somebody else's."""

import dataclasses
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

import sweeps
from dynsim.precision import precision
from sweeps import Sweep, experiment
from sweeps.output import programs
from sweeps.runner import tiles
from sweeps.runner.program import jobs, program_cache
from sweeps.runner.work import Work

COUNT = """
import jax
from sweeps.output import programs
programs.QUICKEST = 0.0
programs.keep()
found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name))
assert jax.jit(lambda x: 2 * x)(3) == 6
print(found.count("/jax/compilation_cache/cache_hits"))
"""
CALLS = """
import sys, time
from pathlib import Path
import jax
import numpy as np
from dynsim.compiling import Cost
from sweeps.output import programs
from sweeps.runner import tiles
from sweeps.runner.program import jobs, program_cache, traces
programs.TRACED.append(programs.Traced(Path(sys.argv[1]), time.time()))
functions = {"twice": lambda x: 2 * x, "inverse": jax.numpy.linalg.inv}
functions["callback"] = lambda x: jax.lax.map(lambda y: jax.pure_callback(np.sin, y, y), x)
x, mesh = np.diag([2.0, 4.0]).astype("float32"), tiles.mesh(jax.devices()[:1])
for name, function in functions.items():
    if (found := program_cache.lookup(name, 1)) is None:
        traced = jax.jit(function).trace(x)
        used = {*traces.operations(traced.jaxpr.jaxpr)}
        info = program_cache.ProgramInfo({}, Cost(), False)
        program_cache.save(name, info, 1, used, (traced.lower().compile(), None))
    else:
        program, _ = program_cache.deserialize(found, mesh)
        print(*np.diag(program(x)), "scipy.linalg" in sys.modules)
"""
OPTIONS = ("enable_compilation_cache", "compilation_cache_dir", "compilation_cache_max_size")
SLOW = "persistent_cache_min_compile_time_secs"
RUN = experiment(task="syn-small", steps=5, batch=4)
SWEEP = Sweep(RUN, {"eta_z": [0.1, 0.2], "seed": {"range": 2}}, record=("loss",))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache folder of the user's, and JAX as it is by default."""
    before = {name: jax.config.values[f"jax_{name}"] for name in (*OPTIONS, SLOW)}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", programs.SILENT)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    jax.config.update("jax_enable_compilation_cache", True)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


def hits():
    """How many programs another process finds."""
    run = [sys.executable, "-c", COUNT]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache folder is another one")
@pytest.mark.more
def test_another_process_finds_them(home):
    assert hits() == 0
    kept = sorted(home.glob("dynsim/*/*-cache"))
    assert kept
    assert hits() == len(kept)


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """The jobs that are traced, where programs are kept in a folder of their own."""
    seen, trace = [], jobs.trace

    def counted(job):
        seen.append(job)
        return trace(job)

    monkeypatch.setattr(programs, "TRACED", [programs.Traced(tmp_path, time.time())])
    monkeypatch.setattr(jobs, "trace", counted)
    monkeypatch.setattr(jobs, "PROGRAMS", {})
    return seen


def again(sweep=SWEEP):
    """What a sweep records in a process that has compiled nothing."""
    jobs.PROGRAMS.clear()
    return sweeps.run(sweep).load()


PAPER = {"problem": "saxe", "steps": 5, "batch": 4, "eta": 0.1}
PAPERS = Sweep(run=PAPER, axes={"seed": {"range": 2}}, record=("loss",))


@pytest.mark.parametrize("sweep", [SWEEP, PAPERS], ids=["layer", "saxe"])
def test_a_kept_program_is_not_traced_and_computes_the_same(sweep, traced):
    first = again(sweep)
    number = len(traced)
    assert number
    xr.testing.assert_identical(again(sweep), first)
    assert len(traced) == number


@pytest.mark.more
def test_rates_and_seeds_are_arguments_of_a_kept_program(traced, monkeypatch):
    """Those of axes and those of the run."""
    again()
    number = len(traced)
    run = experiment(task="syn-small", steps=5, batch=4, eta_y=2.0, seed=3)
    other = dataclasses.replace(SWEEP, run=run, axes={"eta_z": [0.1, 0.3], "seed": [4, 7]})
    kept_program = again(other)
    assert len(traced) == number
    monkeypatch.setattr(programs, "TRACED", [])
    xr.testing.assert_identical(kept_program, again(other))
    assert len(traced) > number


@pytest.mark.more
def test_what_decides_a_program_is_compared(traced, monkeypatch):
    again()
    number = len(traced)
    monkeypatch.setattr(program_cache, "_code", lambda: ("of a file that was edited", 1))
    again()
    assert len(traced) > number, "other code"
    number = len(traced)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    again()
    assert len(traced) > number, "other options of the compiler"


@pytest.mark.more
def test_programs_for_few_and_for_many_runs_are_kept_apart(traced, tmp_path):
    """They are compiled with other options, and both are found again."""

    def make(runs):
        jobs.PROGRAMS.clear()
        axes = {"eta_z": np.linspace(0.1, 0.2, runs)}
        sweep = Sweep(RUN, axes, "descent", ("loss",), "end")
        with precision(sweep.dtype):
            Work(sweep, tiles.mesh(jax.devices()[:1]), tile=4).first().start().result()

    for runs, number in ((4, 1), (10**6, 2), (4, 2), (8, 2), (10**6, 2)):
        make(runs)
        assert len(traced) == len(list(tmp_path.iterdir())) == number, runs


OPTIONS_OF_SWEEPS = {"record", "times", "theory", "rtol", "checkpoint", "title"}
LAYER = {"problem": "yz", "task": "syn-small", "steps": 5, "batch": 4}
LINEAR, COSINE = ({"kind": kind, "peak": 0.5, "steps": 4} for kind in ("linear", "cosine"))


@pytest.fixture
def key(tmp_path, monkeypatch):
    """The key of the program of a sweep, without tracing it."""
    (tmp_path / "of_a_user.py").write_text(
        "import optax\n"
        "slow, fast = (optax.cosine_decay_schedule(0.1, steps) for steps in (100, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(programs, "TRACED", [programs.Traced(tmp_path, time.time())])
    monkeypatch.setattr(jobs, "program", lambda job: job)

    def of(given):
        settings = (PAPER if "problem" in given else LAYER) | given
        options = {name: settings.pop(name) for name in OPTIONS_OF_SWEEPS & {*settings}}
        sweep = Sweep(run=settings, axes={"seed": [0]}, **options)
        with precision(sweep.dtype):
            return Work(sweep, tiles.mesh(jax.devices()[:1]), tile=1).program(())[1].cache_key

    return of


RATIO = {"kind": "ratio", "ratio": 2.0}
STEP = {"kind": "step", "peak": 0.5}
CHOICES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"eta": LINEAR}, {"eta": COSINE}),
    ({"eta": 0.5}, {"eta": {"kind": "constant", "peak": 0.5, "warmup": 2}}),
    ({"eta": RATIO | {"Z": LINEAR}}, {"eta": RATIO | {"Z": COSINE}}),
    ({"eta": {"Y": LINEAR, "Z": COSINE}}, {"eta": {"Y": COSINE, "Z": LINEAR}}),
    (
        {"eta": STEP | {"at": [2], "factors": [0.5]}},
        {"eta": STEP | {"at": [2, 3], "factors": [0.5, 0.5]}},
    ),
    ({"eta": "jax.numpy:cos"}, {"eta": "jax.numpy:exp"}),
    ({"rule": "adam", "decay": 0.1}, {"rule": "adamw", "decay": 0.1}),
    ({"momentum": None}, {"momentum": 0.5}),
    ({"momentum": 0.5, "nesterov": False}, {"momentum": 0.5, "nesterov": True}),
    ({"decay": 0.1, "decoupled": False}, {"decay": 0.1, "decoupled": True}),
    ({"decay": {"Y": 0.1}}, {"decay": {"Z": 0.1}}),
    ({}, {"clip": 1.0}),
    ({"task": "syn-small"}, {"task": "syn-medium"}),
    ({"batch": 4}, {"batch": 5}),
    ({"dtype": "float32"}, {"dtype": "float64"}),
    # Options of the sweep.
    ({"record": ["loss", "entropy"]}, {"record": ["entropy", "loss"]}),
    ({"times": (0, 5)}, {"times": (1, 5)}),
    ({"theory": "simulation"}, {"theory": "descent"}),
    ({"theory": "plain", "rtol": 1e-4}, {"theory": "plain", "rtol": 1e-5}),
    ({"checkpoint": False}, {"checkpoint": True}),
    # Problems and theories of papers.
    (PAPER, PAPER | {"problem": "biehl-schwarze"}),
    (PAPER, PAPER | {"layers": 3}),
    (PAPER, PAPER | {"theory": "modes"}),
]


@pytest.mark.parametrize(("one", "other"), CHOICES, ids=repr)
def test_every_setting_and_every_option_of_a_sweep_is_in_the_key(one, other, key):
    assert "" != key(one) != key(other) != ""


def test_numbers_and_titles_are_not_in_the_key(key):
    more = {"eta": {"kind": "cosine", "peak": 0.1, "steps": 3, "end": 0.5}, "clip": 2.0}
    assert key({"eta": COSINE, "clip": 1.0}) == key(more | {"title": "Another"}) != ""


def test_programs_with_functions_that_have_no_name_are_not_kept(key):
    """Both schedules are the same function of optax, which closes over other numbers."""
    for name in ("slow", "fast"):
        assert key({"eta": f"of_a_user:{name}"}) == ""


def test_code_that_changed_after_the_process_began_is_not_kept(traced, tmp_path, monkeypatch):
    """It may have been imported before."""
    monkeypatch.setattr(programs, "TRACED", [programs.Traced(tmp_path, 1.0)])
    again()
    assert traced
    assert not list(tmp_path.iterdir())


@pytest.mark.more
def test_lapack_is_initialised_for_the_programs_that_call_it(tmp_path):
    """Without it, the second program would crash; the import of SciPy takes a quarter second."""
    run = [sys.executable, "-c", CALLS, str(tmp_path)]
    first, then = (
        subprocess.run(run, check=True, capture_output=True, text=True).stdout for _ in range(2)
    )
    assert first == ""
    assert then.splitlines() == ["4.0 8.0 False", "0.5 0.25 True"]


@pytest.mark.more
def test_a_damaged_file_is_traced_again_and_replaced(traced, tmp_path):
    """Lost bytes, and flipped bits, after which a program may compute something else or crash."""
    first = again()
    number = len(traced)
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    flip = lambda at: lambda value: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
    damages = (lambda value: value[:9], lambda value: value[:-9], flip(9), flip(-9))
    for times, damage in enumerate(damages, 2):
        for path, value in whole.items():
            path.write_bytes(damage(value))
        xr.testing.assert_identical(again(), first)
        assert len(traced) == times * number
    xr.testing.assert_identical(again(), first)
    assert len(traced) == 5 * number


def test_what_jax_keeps_is_removed_when_it_has_changed(home):
    """Where zstd is installed, JAX would run it."""
    folder = programs.keep()
    (folder / "jit_f-1-cache").write_bytes(b"program")
    (folder / "jit_f-1-atime").write_bytes(b"8 bytes.")
    for content, there in ((b"program", True), (b"program", True), (b"progral", False)):
        (folder / "jit_f-1-cache").write_bytes(content)
        jax.config.update("jax_compilation_cache_dir", None)
        assert programs.keep() == folder
        assert (folder / "jit_f-1-cache").exists() is there


def test_those_used_longest_ago_go_first(traced, tmp_path, monkeypatch):
    monkeypatch.setattr(program_cache, "MAX_FILES", 1)
    again()
    (first,) = tmp_path.iterdir()
    again(dataclasses.replace(SWEEP, run=dataclasses.replace(RUN, steps=6)))
    (second,) = tmp_path.iterdir()
    assert first != second
