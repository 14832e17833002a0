"""Compiled programs that are kept: found again by another process, and never somebody else's."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import sweeps
from dynsim.precision import precision
from sweeps import Sweep, cli, experiment
from sweeps.language.derived import sources
from sweeps.output import programs
from sweeps.runner import tiles
from sweeps.runner.program import jobs, kept
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
AGAIN = """
import time
import jax
import sweeps
from sweeps.output import programs
from sweeps.runner.program import jobs
run = sweeps.experiment(task="syn-small", steps=5, batch=4)
sweep = sweeps.Sweep(run, {"eta_z": [0.1, 0.2], "seed": {"range": 2}}, record=("loss",))
programs.QUICKEST = 0.0
with programs.keeping_traced(time.time()):
    folder = programs.TRACED[-1].folder
    for turn in range(3):
        print(len(list(folder.iterdir())), float(sweeps.run(sweep).load().loss.sum()))
        if turn == 0:
            for path in folder.iterdir():
                path.unlink()
        jobs.PROGRAMS.clear()
        jax.clear_caches()
"""
CALLS = """
import sys, time
from pathlib import Path
import jax
import numpy as np
from dynsim.compiling import Cost
from sweeps.output import programs
from sweeps.runner import tiles
from sweeps.runner.program import jobs, kept, traces
programs.TRACED.append(programs.Traced(Path(sys.argv[1]), time.time()))
functions = {"twice": lambda x: 2 * x, "inverse": jax.numpy.linalg.inv}
functions["callback"] = lambda x: jax.lax.map(lambda y: jax.pure_callback(np.sin, y, y), x)
x, mesh = np.diag([2.0, 4.0]).astype("float32"), tiles.mesh(jax.devices()[:1])
for name, function in functions.items():
    if (found := kept.find(name, 1)) is None:
        traced = jax.jit(function).trace(x)
        used = {*traces.operations(traced.jaxpr.jaxpr)}
        kept.save(name, kept.Known({}, Cost(), False), 1, used, traced.lower().compile(), None)
    else:
        program, _ = kept.load(found, mesh)
        print(*np.diag(program(x)), "scipy.linalg" in sys.modules)
"""
OPTIONS = ("enable_compilation_cache", "compilation_cache_dir", "compilation_cache_max_size")
SLOW = "persistent_cache_min_compile_time_secs"


RUN = experiment(task="syn-small", steps=5, batch=4)
SWEEP = Sweep(RUN, {"eta_z": [0.1, 0.2], "seed": {"range": 2}}, record=("loss",))
ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the user's, and JAX as it is by default."""
    before = {name: jax.config.values[f"jax_{name}"] for name in (*OPTIONS, SLOW)}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", programs.SILENT)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    jax.config.update("jax_enable_compilation_cache", True)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


def hits() -> int:
    """How many programs another process finds."""
    run = [sys.executable, "-c", COUNT]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache folder is another one")
@pytest.mark.more
def test_another_process_finds_them(home: Path) -> None:
    assert hits() == 0
    kept = sorted(home.glob("dynsim/*/*-cache"))
    assert kept
    assert hits() == len(kept)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache folder is another one")
@pytest.mark.full("test_another_process_finds_them")
def test_another_process_finds_them_and_no_leftovers(home: Path) -> None:
    assert hits() == 0
    kept = sorted(home.glob("dynsim/*/*-cache"))
    assert kept
    assert hits() == len(kept)
    # A process that is killed while it writes leaves half a program, and no time of its use.
    for program in kept:
        program.write_bytes(b"half")
        program.with_name(program.name.removesuffix("cache") + "atime").unlink()
    assert hits() == 0
    assert hits() == len(kept)


def test_each_kind_of_processor_and_version_has_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = programs.keep()
    assert own
    assert home in own.parents
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(programs, "_instructions", lambda: ["avx512f"])
    other = programs.keep()
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(programs.importlib.metadata, "version", lambda name: "0.99")
    assert len({own, other, programs.keep()}) == 3


def test_programs_that_were_not_written_to_their_end_are_removed(home: Path) -> None:
    own = programs.keep()
    assert own
    options = jax.config.values
    assert options["jax_compilation_cache_max_size"] == 2**30
    assert options["jax_persistent_cache_min_compile_time_secs"] == 0.1
    for name in ("whole-cache", "whole-atime", "half-cache", "other"):
        (own / name).touch()
    jax.config.update("jax_compilation_cache_dir", None)
    assert programs.keep() == own
    assert {each.name for each in own.iterdir()} >= {"whole-cache", "whole-atime", "other"}
    assert not (own / "half-cache").exists()


def test_the_user_decides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.config.update("jax_compilation_cache_dir", str(home / "mine"))
    assert programs.keep() == home / "mine"
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    assert programs.keep() is None
    jax.config.update("jax_enable_compilation_cache", True)
    loud = programs.LOUD
    monkeypatch.setattr(programs, "LOUD", (99, 0))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    assert programs.keep() is None
    # JAX is loud before 0.12.
    monkeypatch.setattr(programs, "LOUD", loud)
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 99))
    assert programs.keep() is None
    assert not os.listdir(home)
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    assert programs.keep() is not None


def test_a_home_that_cannot_be_written_keeps_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    assert programs.keep() is None
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_info_without_a_sweep_is_about_the_environment(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["info", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["jax"] == jax.__version__
    assert home in Path(about["compiled programs"]).parents
    if (ROOT / ".git").exists():
        ask = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        assert about["commit"].removesuffix("-dirty") == commit


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[jobs.Job]:
    """The jobs that are traced, where programs are kept in a folder of their own."""
    seen, trace = [], jobs.trace

    def counted(job: jobs.Job) -> tuple[jobs.Traced | None, jobs.Traced]:
        seen.append(job)
        return trace(job)

    monkeypatch.setattr(programs, "TRACED", [programs.Traced(tmp_path, time.time())])
    monkeypatch.setattr(jobs, "trace", counted)
    monkeypatch.setattr(jobs, "PROGRAMS", {})
    return seen


def again(sweep: Sweep = SWEEP) -> xr.Dataset:
    """What a sweep records in a process that has compiled nothing."""
    jobs.PROGRAMS.clear()
    return sweeps.run(sweep).load()


@pytest.mark.more
def test_a_kept_program_is_not_traced_and_computes_the_same(traced: list[jobs.Job]) -> None:
    first = again()
    number = len(traced)
    assert number
    xr.testing.assert_identical(again(), first)
    assert len(traced) == number


@pytest.mark.more
def test_rates_and_seeds_are_arguments_of_a_kept_program(
    traced: list[jobs.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_what_decides_a_program_is_compared(
    traced: list[jobs.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    again()
    number = len(traced)
    longer = dataclasses.replace(SWEEP, run=dataclasses.replace(RUN, steps=6))
    again(longer)
    assert len(traced) > number, "other settings"
    number = len(traced)
    monkeypatch.setattr(kept, "_code", lambda: ("of a file that was edited", 1))
    again()
    assert len(traced) > number, "other code"
    number = len(traced)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    again()
    assert len(traced) > number, "other options of the compiler"


@pytest.mark.more
def test_programs_for_few_and_for_many_runs_are_kept_apart(
    traced: list[jobs.Job], tmp_path: Path
) -> None:
    """They are compiled with other options, and both are found again."""

    def make(runs: int) -> None:
        jobs.PROGRAMS.clear()
        axes = {"eta_z": np.linspace(0.1, 0.2, runs)}
        sweep = Sweep(RUN, axes, "descent", ("loss",), "end")
        with precision(sweep.dtype):
            Work(sweep, tiles.mesh(jax.devices()[:1]), tile=4).first().start().result()

    for runs, number in ((4, 1), (10**6, 2), (4, 2), (8, 2), (10**6, 2)):
        make(runs)
        assert len(traced) == len(list(tmp_path.iterdir())) == number, runs


LAYER = {"problem": "yz", "task": "syn-small", "steps": 5, "batch": 4}
LINEAR, COSINE = ({"kind": kind, "peak": 0.5, "steps": 4} for kind in ("linear", "cosine"))


@pytest.mark.more
def test_a_schedule_of_another_kind_is_another_program(
    traced: list[jobs.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of their numbers are the same, and were all that was compared."""
    axes = {"seed": {"range": 2}}
    linear, cosine = (
        Sweep(experiment(**LAYER, eta=eta), axes, record=("loss",)) for eta in (LINEAR, COSINE)
    )
    first, second = again(linear), again(cosine)
    monkeypatch.setattr(programs, "TRACED", [])
    xr.testing.assert_identical(second, again(cosine))
    assert (first.loss != second.loss).all()


@pytest.fixture
def key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Mapping[str, object], Mapping[str, object]], str]:
    """The key of the program of a sweep, without tracing it."""
    (tmp_path / "of_a_user.py").write_text(
        "import optax\n"
        "slow, fast = (optax.cosine_decay_schedule(0.1, steps) for steps in (100, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(programs, "TRACED", [programs.Traced(tmp_path, time.time())])
    monkeypatch.setattr(jobs, "program", lambda job: job)

    def of(settings: Mapping[str, object], options: Mapping[str, object]) -> str:
        options = {"axes": {"seed": [0]}, **options}
        sweep = Sweep(run=dict(settings), **options)
        with precision(sweep.dtype):
            return Work(sweep, tiles.mesh(jax.devices()[:1]), tile=1).program(())[1].kept

    return of


CHOICES = {
    "kind of a schedule": ({"eta": LINEAR}, {"eta": COSINE}),
    "warm-up": ({"eta": 0.5}, {"eta": {"kind": "constant", "peak": 0.5, "warmup": 2}}),
    "kind inside a ratio": tuple(
        {"eta": {"kind": "ratio", "Z": eta, "ratio": 2.0}} for eta in (LINEAR, COSINE)
    ),
    "kind of a group": tuple({"eta": {"Y": eta, "Z": 0.5}} for eta in (LINEAR, COSINE)),
    "kinds of groups, exchanged": (
        {"eta": {"Y": LINEAR, "Z": COSINE}},
        {"eta": {"Y": COSINE, "Z": LINEAR}},
    ),
    "number of jumps": tuple(
        {"eta": {"kind": "step", "peak": 0.5, "at": at, "factors": [0.5] * len(at)}}
        for at in ([2], [2, 3])
    ),
    "function of the step": tuple({"eta": f"jax.numpy:{name}"} for name in ("cos", "exp")),
    "rule": ({"rule": "sgd"}, {"rule": "sign"}),
    "rule of the same numbers": tuple({"rule": each, "decay": 0.1} for each in ("adam", "adamw")),
    "momentum": ({"momentum": None}, {"momentum": 0.5}),
    "nesterov": tuple({"momentum": 0.5, "nesterov": each} for each in (False, True)),
    "decoupled": tuple({"decay": 0.1, "decoupled": each} for each in (False, True)),
    "groups that decay": ({"decay": {"Y": 0.1}}, {"decay": {"Z": 0.1}}),
    "clip": ({}, {"clip": 1.0}),
    "task": ({"task": "syn-small"}, {"task": "syn-medium"}),
    "steps": ({"steps": 5}, {"steps": 6}),
    "batch": ({"batch": 4}, {"batch": 5}),
    "dtype": ({"dtype": "float32"}, {"dtype": "float64"}),
}
OPTIONS_OF_SWEEPS = {
    "record": ({"record": ["loss"]}, {"record": ["entropy"]}),
    "order of records": ({"record": ["loss", "entropy"]}, {"record": ["entropy", "loss"]}),
    "times": ({"times": (0, 5)}, {"times": (1, 5)}),
    "theory": ({"theory": "simulation"}, {"theory": "descent"}),
    "flow": ({"theory": "plain"}, {"theory": "corrected"}),
    "tolerance": tuple({"theory": "plain", "rtol": rtol} for rtol in (1e-4, 1e-5)),
    "checkpoint": ({"checkpoint": False}, {"checkpoint": True}),
}


@pytest.mark.parametrize("name", [*CHOICES, *OPTIONS_OF_SWEEPS])
@pytest.mark.more
def test_every_choice_is_in_the_key(name: str, key: Callable[..., str]) -> None:
    if name in CHOICES:
        one, other = (key({**LAYER, **settings}, {}) for settings in CHOICES[name])
    else:
        one, other = (key(LAYER, options) for options in OPTIONS_OF_SWEEPS[name])
    assert one
    assert other
    assert one != other


def test_numbers_and_titles_are_not_in_the_key(key: Callable[..., str]) -> None:
    more = {"eta": {"kind": "cosine", "peak": 0.1, "steps": 3, "end": 0.5}, "clip": 2.0}
    runs = ({"eta": COSINE, "clip": 1.0}, {}), (more, {"title": "Another"})
    first, second = (key({**LAYER, **settings}, options) for settings, options in runs)
    assert first == second != ""


def test_programs_with_functions_that_have_no_name_are_not_kept(key: Callable[..., str]) -> None:
    """Both schedules are the same function of optax, which closes over other numbers."""
    for name in ("slow", "fast"):
        assert key({**LAYER, "eta": f"of_a_user:{name}"}, {}) == ""


@pytest.mark.more
def test_code_that_changed_after_the_process_began_is_not_kept(
    traced: list[jobs.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been imported before."""
    monkeypatch.setattr(programs, "TRACED", [programs.Traced(tmp_path, 1.0)])
    again()
    assert traced
    assert not list(tmp_path.iterdir())


def test_an_edited_file_is_other_code(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "module.py"
    file.write_text("x = 1")
    before = list(sources(str(tmp_path)))
    file.write_text("x = 10")
    assert len(before) == 1
    assert list(sources(str(tmp_path))) != before


@pytest.mark.more
def test_lapack_is_initialised_for_the_programs_that_call_it(tmp_path: Path) -> None:
    """Without it, the second program would crash; the import of SciPy takes a quarter second."""
    run = [sys.executable, "-c", CALLS, str(tmp_path)]
    first, then = (
        subprocess.run(run, check=True, capture_output=True, text=True).stdout for _ in range(2)
    )
    assert first == ""
    assert then.splitlines() == ["4.0 8.0 False", "0.5 0.25 True"]


@pytest.mark.parametrize("share", [0.01, 0.9])
@pytest.mark.more
def test_a_damaged_file_is_traced_again(
    share: float, traced: list[jobs.Job], tmp_path: Path
) -> None:
    """Whether what is known of the program can be read or not."""
    first = again()
    number = len(traced)
    for path in tmp_path.iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
    xr.testing.assert_identical(again(), first)
    assert len(traced) == 2 * number


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache folder is another one")
@pytest.mark.more
def test_a_program_from_the_cache_of_jax_is_not_kept(home: Path) -> None:
    """It could be read, but not run."""
    run = [sys.executable, "-c", AGAIN]
    done = subprocess.run(run, check=True, capture_output=True, text=True, env=os.environ)
    numbers, losses = zip(*map(str.split, done.stdout.splitlines()), strict=True)
    assert numbers == ("0", "0", "0")
    assert len(set(losses)) == 1


def test_programs_that_jax_read_itself_are_counted_by_thread() -> None:
    before = kept.number_read()
    for event in (kept.READ, "/jax/another", kept.READ):
        jax.monitoring.record_event(event)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(kept.number_read).result() == 0
    assert kept.number_read() == before + 2


@pytest.mark.more
def test_those_used_longest_ago_go_first(
    traced: list[jobs.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST", 1)
    again()
    (first,) = tmp_path.iterdir()
    again(dataclasses.replace(SWEEP, run=dataclasses.replace(RUN, steps=6)))
    (second,) = tmp_path.iterdir()
    assert first != second


@pytest.mark.more
def test_only_the_command_line_keeps_them(
    traced: list[jobs.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "TRACED", [])
    again()
    assert not list(tmp_path.iterdir())
