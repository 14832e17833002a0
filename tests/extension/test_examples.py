"""Every public name has an example in its docstring, and the examples run."""

import contextlib
import dataclasses
import doctest
import inspect
import io
import math
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

import dynsim
import odes
import sweeps
from papers.saxe import DeepLinear
from tests.test_docs import alike

pytestmark = pytest.mark.usefixtures("quick_theory")

KNOWN = {
    "DeepLinear": DeepLinear,
    "Path": Path,
    "dataclasses": dataclasses,
    "dynsim": dynsim,
    "eqx": eqx,
    "jax": jax,
    "jnp": jnp,
    "math": math,
    "np": np,
    "odes": odes,
    "optax": optax,
    "sweeps": sweeps,
    "xr": xr,
}
"""What examples may use without importing it, as the reference says."""
LONG = {
    "dynsim": "Annealed JoMA LanguageModel Layer Prompts QKV Regression Retrieval Transformer YZ "
    "full_batch",
    "odes": "Reduction central_flow eq10 fixed_attention lemma3 linear_noise sde spread symmetric "
    "theorem4 theories two_stage",
    "sweeps": "Experiment best compare difference explain explore open phase transfer valid",
}
"""Examples that compile for a second or more, by package."""


def public() -> dict[str, Any]:
    """All public names that can have a docstring of their own."""
    return {
        f"{package.__name__}.{name}": found
        for package in (dynsim, odes, sweeps)
        for name in package.__all__
        if callable(found := getattr(package, name)) or inspect.ismodule(found)
    }


NAMES = public()
FIRST = {inspect.getdoc(NAMES[name]): name for name in reversed(NAMES)}
"""Names by docstring: a short function has that of its class."""
PARSER = doctest.DocTestParser()
EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)


def text(found: Any) -> str:
    """A docstring, without its indentation."""
    return inspect.getdoc(found) or ""


def test_every_public_name_has_an_example() -> None:
    assert [name for name, found in NAMES.items() if not EXAMPLE.search(text(found))] == []


def run(code: str, known: dict[str, Any]) -> None:
    """Run an example, and compare what it prints with what it says, but for the last digit."""
    for example in PARSER.get_examples(code):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "<example>", "single"), known)
        if example.want:
            assert alike(printed.getvalue(), example.want), (example.source, printed.getvalue())


FULL = pytest.mark.full("test_examples_run")


def is_long(name: str) -> bool:
    package, _, rest = name.partition(".")
    return rest in LONG[package].split()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[FULL] if is_long(n) else []) for n in FIRST.values()]
)
@pytest.mark.more
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(text(NAMES[name]), dict(KNOWN))


def test_an_example_that_prints_something_else_is_found_out() -> None:
    with pytest.raises(AssertionError):
        run(">>> 1 + 1\n5\n", {})
    with pytest.raises(NameError):
        run(">>> unknown\n", {})
