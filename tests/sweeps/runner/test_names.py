"""Names of what is recorded, and of what varies, are folders of a store: none leads out of it, and
no two are one."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import dynsim
import sweeps
from sweeps import Experiment, Sweep
from sweeps.runner import fit
from sweeps.runner.program import jobs


class Curve(dynsim.Problem):
    """Two weights, called as a test wants them to be."""

    weights: tuple[str, str] = ("a", "b")
    shift: float = 0.5
    time: float = 0.0
    Shift: float = 0.0
    inner: Mapping[str, float] | None = None

    def init(self, key):
        return dict.fromkeys(self.weights, jnp.asarray(2.0))

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, w, x):
        return sum(jnp.mean((each - x - self.shift) ** 2) for each in w.values())

    def snapshot(self, w):
        return (w,)

    def observables(self):
        return {"../up": self.first}

    @staticmethod
    def first(w):
        return next(iter(w.values()))


class Steps(Curve):
    steps: float = 0.5
    eta: float = 0.0


RATES = {"eta": [0.1, 0.2]}


def refused(
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Any = "batch_loss",
    axes: dict[str, Any] = RATES,
    **problem: Any,
) -> None:
    """Raises before anything is compiled, or written, in memory as well."""
    monkeypatch.setattr(jobs.Program, "start", lambda _: pytest.fail("compiled"))
    for out in (tmp_path / "in" / "s", None):
        sweep = Sweep(Experiment(Curve(**problem), dynsim.sgd(0.1), 2, 2), axes, record=record)
        with pytest.raises(ValueError, match=re.escape(why)):
            sweeps.run(sweep, out)
    kept = [path for path in tmp_path.rglob("*") if not path.name.endswith(".lock")]
    assert kept in ([], [tmp_path / "in"])


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "", "a/b", "/a", "a\\b", ".a", "a.", " a", "a\n", "a\x1b[2J", "a:b", "con"),
        *("COM1.x", "x" * 201, "é" * 101),
    ],
)
def test_a_name_that_is_no_folder_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {name: Curve.first}
    refused("must be letters, digits, spaces and . _ -", tmp_path, monkeypatch, record)
    with pytest.raises(ValueError, match="must be letters, digits") as error:
        dynsim.train(Curve(), dynsim.sgd(0.1), jax.random.key(0), steps=1, batch=2, record=record)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["time", "status", "first_bad_step", "params.a", "batch_loss"])
def test_a_name_of_what_is_recorded_in_any_case_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ["params", {name: Curve.first}]
    why = f"record = {name!r}: is recorded by the loop itself"
    refused(why, tmp_path, monkeypatch, record)
    with pytest.raises(ValueError, match=re.escape(why)):
        dynsim.train(Curve(), dynsim.sgd(0.1), jax.random.key(0), steps=1, batch=2, record=record)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"eta": Curve.first}, "record = 'eta': is also the name of one of the axes"),
        ({"Eta": Curve.first}, "record = 'Eta': differs from 'eta' only in case"),
        ({"Status": Curve.first}, "record = 'Status': differs from 'status' only in case"),
        (
            {"zarr.json": Curve.first},
            "'zarr.json': is also the name of something that every store has",
        ),
        (["batch_loss", {"Batch_loss": Curve.first}], "'Batch_loss': differs from 'batch_loss'"),
        ("../up", "record = '../up': must be letters"),
        (
            [{"v": lambda w: jnp.zeros(2)}, {"v_0": Curve.first}],
            "record = 'v_0': is also the name of one of the dimensions",
        ),
    ],
)
@pytest.mark.more
def test_a_name_of_two_things_is_an_error(
    record: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(why, tmp_path, monkeypatch, record)


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"time": [1.0, 2.0]}, "axes = 'time': is also the name of something that every store has"),
        ({"shift": [1.0], "Shift": [2.0]}, "axes = 'Shift': differs from 'shift' only in case"),
        ({"inner.../../x": [1.0]}, "axes = 'inner.../../x': must be letters"),
    ],
)
def test_axes_have_names_as_arrays_have(
    axes: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(why, tmp_path, monkeypatch, axes=axes, inner={"../../x": 1.0})


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (("a", "b/../../c"), "record = 'params.b/../../c': must be letters"),
        (("w", "W"), "differs from 'params.W' only in case"),
    ],
)
@pytest.mark.more
def test_weights_have_names_as_arrays_have(
    weights: tuple[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on an accelerator, where programs are compiled to see what memory they take.
    monkeypatch.setattr(fit, "memory_of", lambda _: 2**40)
    refused(why, tmp_path, monkeypatch, record="params", weights=weights)


class Anything(Curve):
    inner: Any = None


def test_two_numbers_of_one_name_are_an_error() -> None:
    inner = {"x.y": 1.0, "x": {"y": 2.0}}
    run = Experiment(Anything(inner=inner), dynsim.sgd(0.1), 2, 2)
    with pytest.raises(ValueError, match=r"Anything: has two numbers named 'inner.x.y'"):
        sweeps.run(Sweep(run, RATES, record="batch_loss"))


@pytest.mark.more
def test_fields_called_like_settings_of_the_run_are_named_by_their_paths() -> None:
    run = Experiment(Steps(), dynsim.sgd(0.1), 2, 2)
    with pytest.raises(ValueError, match=r"is ambiguous; write problem\.eta or rule\.eta"):
        sweeps.run(Sweep(run, RATES))
    axes = {"problem.eta": [0.0, 0.3], "rule.eta": [0.1, 0.2], "steps": [2, 3]}
    found = sweeps.run(Sweep(run, {**axes, "problem.steps": [0.5, 0.6]}, record="params"))
    value = found["params.a"]
    assert value.dims == ("problem.eta", "rule.eta", "steps", "problem.steps")
    for name, matters in (("problem.eta", False), ("rule.eta", True), ("steps", True)):
        first, second = value.isel({name: 0}), value.isel({name: 1})
        assert bool((first != second).all()) is matters


@pytest.mark.more
def test_an_array_of_no_numbers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"short": lambda w: Curve.first(w).astype(jnp.bfloat16)}
    refused("record = 'short': has type bfloat16", tmp_path, monkeypatch, record)


@pytest.mark.more
def test_names_of_other_alphabets_are_names(tmp_path: Path) -> None:
    record = ["batch_loss", {"größe η": Curve.first, "a-b.c": Curve.first}]
    sweep = Sweep(Experiment(Curve(), dynsim.sgd(0.1), 2, 2), RATES, record=record)
    found = sweeps.run(sweep, tmp_path / "s").load()
    assert sweeps.open(tmp_path / "s")["größe η"].equals(found["a-b.c"].rename("größe η"))
