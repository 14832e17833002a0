"""Every public name has an example in its docstring, and the examples run."""

import contextlib
import dataclasses
import doctest
import inspect
import io
import math
import re
from pathlib import Path

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
from tests.docs.test_docs import alike

pytestmark = pytest.mark.usefixtures("quick_theory")

KNOWN = {each.__name__: each for each in (DeepLinear, Path, dataclasses, dynsim, jax, math, odes)}
KNOWN |= {"eqx": eqx, "jnp": jnp, "np": np, "optax": optax, "sweeps": sweeps, "xr": xr}
"""What examples may use without importing it, as the reference says."""
LONG = {
    "dynsim": "Annealed JoMA LanguageModel Layer Prompts QKV Regression Retrieval Transformer YZ "
    "full_batch",
    "odes": "Reduction central_flow eq10 fixed_attention lemma3 linear_noise sde spread symmetric "
    "theorem4 theories two_stage",
    "sweeps": "Experiment best compare difference explain explore open phase transfer valid",
}
"""Examples that compile for a second or more, by package."""


NAMES = {
    f"{package.__name__}.{name}": found
    for package in (dynsim, odes, sweeps)
    for name in package.__all__
    if callable(found := getattr(package, name)) or inspect.ismodule(found)
}
FIRST = {inspect.getdoc(NAMES[name]): name for name in reversed(NAMES)}
"""Names by docstring: a short function has that of its class."""


def test_every_public_name_has_an_example():
    found = {name: re.search("^ *>>> ", inspect.getdoc(NAMES[name]) or "", re.M) for name in NAMES}
    assert [name for name, example in found.items() if not example] == []


def run(code, known):
    """Run an example, and compare what it prints with what it says, but for the last digit."""
    for example in doctest.DocTestParser().get_examples(code):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "<example>", "single"), known)
        if example.want:
            assert alike(printed.getvalue(), example.want), (example.source, printed.getvalue())


FULL = pytest.mark.full("test_examples_run")


SLOW = {f"{package}.{name}" for package, names in LONG.items() for name in names.split()}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[FULL] if n in SLOW else []) for n in FIRST.values()]
)
@pytest.mark.more
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(inspect.getdoc(NAMES[name]), dict(KNOWN))


def test_an_example_that_prints_something_else_is_found_out():
    with pytest.raises(AssertionError):
        run(">>> 1 + 1\n5\n", {})
    with pytest.raises(NameError):
        run(">>> unknown\n", {})
