"""Shared set-up: quick compilation, strict broadcasting, a headless backend, both precisions,
optional data."""

import ctypes
import gc
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jaxtyping
import matplotlib as mpl
import pytest

from tests.systems import annotations, solvers  # noqa: F401  (before anything is traced)

mpl.use("Agg")
# Arguments and results of every function are checked against their annotations, with shapes and
# dtypes; `JAXTYPING_DISABLE=1 make test` does without.
if os.environ.get("JAXTYPING_DISABLE", "0") == "0":
    jaxtyping.install_import_hook(("dynsim", "odes"), f"{annotations.__name__}.checked")
# Each run of the tests compiles anew, in other processes too.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
jax.config.update("jax_enable_compilation_cache", False)
# Compilation is most of what the tests cost, and a third as long without optimisation. These passes
# take a fourth of the rest where a solver's loops are nested, and a module for each thread of
# LLVM is one too many where as many tests run as there are cores.
# `tests/test_canary.py` checks optimised code; `XLA_FLAGS= make test` runs all of it so.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion,simplify-while-loops",
    "xla_cpu_parallel_codegen_split_count": 1,
}
OPTIMISED = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
    "xla_disable_hlo_passes": "",
    "xla_cpu_parallel_codegen_split_count": 32,
}
"""What XLA does by default, of all that `QUICK` may have switched off."""


def spelled(options: dict[str, int | bool | str]) -> str:
    """Options as the environment variable XLA_FLAGS takes them."""
    return " ".join(
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    )


def known(options: dict[str, int | bool | str]) -> bool:
    """Whether this build of XLA knows options; it aborts on one that it does not know, and
    builds differ, so that another process asks."""
    flags = os.environ | {"XLA_FLAGS": spelled(options), "JAX_PLATFORMS": "cpu"}
    ask = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(ask, env=flags, capture_output=True, check=False).returncode == 0


# Worker processes inherit the answer.
if "XLA_FLAGS" not in os.environ:
    every = known(QUICK)
    os.environ["XLA_FLAGS"] = spelled({n: v for n, v in QUICK.items() if every or known({n: v})})
# Tracing makes objects by the million and hardly any garbage: a quarter of its time was spent
# looking for some.
gc.set_threshold(500_000)

jax.config.update("jax_numpy_rank_promotion", "raise")
# Sweeps spread over all local devices; the tests of anything else use the first one.
jax.config.update("jax_num_cpu_devices", 4)

# Files of a minute each, which would leave a worker alone at the end.
LONG = (
    "test_two_stage.py",
    "test_solve.py",
    "test_run.py",
    "test_ladder.py",
    "test_claims.py",
    "test_docs.py",
    "test_resume.py",
    "test_measured.py",
)
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
SHARED = Path(__file__).parents[2] / "shared"


def pytest_configure(config: pytest.Config) -> None:
    """Hand out files in the order of collection: the number of tests, by which pytest-xdist would
    sort them, says nothing about how long they take."""
    config.option.loadscopereorder = False


def pytest_collection_finish() -> None:
    """What is imported stays: no collection of garbage need look at a million objects of it."""
    gc.freeze()


COLLECTED = pytest.StashKey[tuple[pytest.Item, ...]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember all tests that were collected, before `-m` deselects some; among several workers,
    long files come first."""
    config.stash[COLLECTED] = (*items,)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> tuple[pytest.Item, ...]:
    """All tests of the files that this run was given, `full` ones too."""
    return request.config.stash[COLLECTED]


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def jax_precision(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the test as in a session with `jax_enable_x64` off, and again with it on."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test as in a session with `jax_enable_x64` on."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Run the test without checks of annotations, for arguments that break them on purpose."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def optimised() -> dict[str, int | bool | str]:
    """Compiler options that undo what is switched off for the tests."""
    return {name: value for name, value in OPTIMISED.items() if name in os.environ["XLA_FLAGS"]}


MOST_MEMORY = 1.5e9
"""A worker that uses more bytes than this drops its compiled programs."""


def resident() -> float:
    """Bytes of memory that this process has; infinite on systems that do not report it."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if LIBC else math.inf


@pytest.fixture(scope="module", autouse=True)
def _figures_closed() -> Iterator[None]:
    """Matplotlib warns if more than 20 figures are open."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="module", autouse=True)
def _few_programs_left() -> Iterator[None]:
    """A worker would keep all compiled programs, which comes to gigabytes. Files share none but
    small ones, those of single operations; but these are many, and a tenth of the suite's time."""
    yield
    if resident() < MOST_MEMORY:
        return
    if jobs := sys.modules.get("sweeps.runner.program.jobs"):
        jobs.PROGRAMS.clear()
    jax.clear_caches()
    gc.collect()
    # What is left stays: the next collection need not look at a million objects of modules again.
    gc.freeze()
    # glibc keeps what is freed in pieces between others.
    if trim := getattr(LIBC, "malloc_trim", None):
        trim(0)


@pytest.fixture(scope="module")
def quick_theory() -> Iterator[None]:
    """Theories take equal steps instead of going through the solver, whose loops cost seconds to
    compile: for files that test what is done with a theory."""
    from tests.systems.runge_kutta import runge_kutta_instead

    with runge_kutta_instead():
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of recorded and published numbers; its README says what they are."""
    return Path(__file__).parent / "data"


@pytest.fixture
def optimised_sweeps(
    optimised: dict[str, int | bool | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps compile as users do: for tests that run for longer than they compile."""
    compiled: Any = jax.stages.Lowered.compile
    so = lambda lowered, options: compiled(lowered, optimised)
    monkeypatch.setattr(jax.stages.Lowered, "compile", so)


@pytest.fixture
def shared_file() -> Callable[[str], Path]:
    """A function from a path below the folder of large data to the file; skips without it."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is too large to be part of a clone")
        return path

    return find
