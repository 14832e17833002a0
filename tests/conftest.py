"""Shared set-up: quick compilation, strict broadcasting, a headless backend, both precisions,
optional data."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import matplotlib as mpl
import pytest

mpl.use("Agg")
# Compilation is most of what the tests cost, and a third as long without optimisation.
# `tests/dynsim/test_canary.py` checks optimised code; `XLA_FLAGS= make test` runs all of it so.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
# Tracing makes objects by the million and hardly any garbage: a quarter of its time was spent
# looking for some.
gc.set_threshold(100_000)

jax.config.update("jax_numpy_rank_promotion", "raise")
# Sweeps spread over all local devices; the tests of anything else use the first one.
jax.config.update("jax_num_cpu_devices", 4)

SHARED = Path(__file__).parents[2] / "shared"


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
def shared_file() -> object:
    """A function from a path below the reference folder to the file; skips where it is absent."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"reference data {name} is not part of a clone")
        return path

    return find
