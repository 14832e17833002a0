"""Axes of kinds: each run is what it is alone, and stores of them resume, grow and are read."""

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import dynsim
import sweeps
from sweeps import Experiment, StoreError, Sweep, cli
from sweeps.runner import driver
from sweeps.runner.config import config_of
from sweeps.runner.spec import load
from sweeps.runner.store.place import place
from sweeps.runner.work import Work

MODULE = """
import abc

import dynsim
import equinox as eqx
import jax
import jax.numpy as jnp


class Form(eqx.Module):
    @abc.abstractmethod
    def value(self, x):
        pass


class Square(Form):
    def value(self, x):
        return x**2


class Power(Form):
    exponent: float = 4.0

    def value(self, x):
        return jnp.abs(x) ** self.exponent


class Curve(dynsim.Problem):
    form: Form = Square()

    def init(self, key):
        return jnp.asarray(2.0)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, w, x):
        return jnp.mean(self.form.value(w - x))
"""
FILE = """
record = ["batch_loss", "params"]
[run]
problem = "curves:Curve"
steps = 6
batch = 4
[axes]
form = { square = "curves:Square", power = { kind = "curves:Power", exponent = 3 } }
rule = { momentum = { kind = "sgd", momentum = 0.5 }, adam = { kind = "adam", b2 = 0.99 } }
eta = [0.01, 0.1]
seed = [0, 3]
"""
RULES = {
    "momentum": lambda eta: dynsim.sgd(eta, momentum=0.5),
    "adam": lambda eta: dynsim.adam(eta, b2=0.99),
}


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module of somebody else with a problem that has a part of two kinds."""
    folder = tmp_path_factory.mktemp("curves")
    (folder / "curves.py").write_text(MODULE)
    sys.path.append(str(folder))
    yield importlib.import_module("curves")
    sys.path.remove(str(folder))
    sys.modules.pop("curves")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, curves: Any) -> Path:
    del curves
    found = tmp_path_factory.mktemp("file") / "curves.toml"
    found.write_text(FILE)
    return found


@pytest.fixture(scope="module")
def stored(file: Path) -> Path:
    """A store of two kinds along two axes, which all devices made."""
    out = file.with_name("store")
    assert cli.main(["sweep", str(file), "--out", str(out), "--chunk", "2", "--tile", "2"]) == 0
    return out


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of runs that are computed."""
    found, compute = [], Work.compute

    def counted(self: Work, region: tuple[slice, ...], *options: Any) -> Any:
        found.append(int(np.prod([part.stop - part.start for part in region])))
        return compute(self, region, *options)

    monkeypatch.setattr(Work, "compute", counted)
    return found


def alone(curves: Any, form: str, rule: dynsim.Rule, seed: int) -> dynsim.Trajectory:
    problem = curves.Curve(curves.Power(3.0) if form == "power" else curves.Square())
    key = jax.random.fold_in(jax.random.key(0), seed)
    return dynsim.train(problem, rule, key, steps=6, batch=4, times=[6], record=("params",))


@pytest.mark.more
def test_each_run_is_what_it_is_alone(stored: Path, curves: Any) -> None:
    found = sweeps.open(stored).load()
    assert found.rule.values.tolist() == ["momentum", "adam"]
    axes = (found[name].values.tolist() for name in found.status.dims)
    for form, word, eta, seed in itertools.product(*axes):
        want = alone(curves, form, RULES[word](eta), seed)["params"][-1]
        have = found.params.sel({"form": form, "rule": word, "eta": eta, "seed": seed})
        np.testing.assert_allclose(have, want, rtol=2e-6)


@pytest.mark.full(
    "test_stores_grow_by_kinds",
    "sweeps/runner/test_run.py::test_chunks_tiles_and_devices_do_not_matter",
    "sweeps/runner/test_resume.py::test_kills_and_ctrl_c_lose_only_the_chunk_in_flight",
)
def test_devices_and_an_interruption_change_nothing(
    stored: Path, file: Path, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(file)
    compute = Work.compute

    def stopped(self: Work, *options: Any) -> Any:
        if len(computed) == 3:
            raise KeyboardInterrupt
        return compute(self, *options)

    one = {"devices": jax.devices()[:1], "chunk": 2, "tile": 2}
    with monkeypatch.context() as changed:
        changed.setattr(Work, "compute", stopped)
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(sweep, tmp_path / "run", **one)
    found = sweeps.run(sweep, tmp_path / "run", **one)
    assert computed == [2] * 8
    assert found.load().drop_attrs().equals(sweeps.open(stored).load().drop_attrs())
    assert sweeps.run(sweep, stored).load().equals(found)
    assert len(computed) == 8


def test_kinds_in_another_order_are_another_sweep(stored: Path, file: Path) -> None:
    changed = ["axes.rule={adam={kind='adam', b2=0.99}, momentum={kind='sgd', momentum=0.5}}"]
    with pytest.raises(StoreError, match=r"axes.rule: \['momentum', 'adam'\] -> \['adam'"):
        sweeps.run(load(file, changed), stored)
    changed = ["axes.rule={momentum={kind='sgd', momentum=0.9}, adam={kind='adam', b2=0.99}}"]
    with pytest.raises(StoreError, match=r"rule\.momentum\.momentum: 0\.5 -> 0\.9"):
        sweeps.run(load(file, changed), stored)


def tenth(step):
    return 0.1 + 0 * step


PLAIN = "axes.rule={momentum={kind='sgd', momentum=0.5}, "


@pytest.mark.parametrize(
    ("changes", "new"),
    [
        # Four runs a kind and a form: two rates and two seeds.
        ([PLAIN + "adam={kind='adam', b2=0.99}, plain='sgd'}"], 8),
        # Another number of one kind.
        ([PLAIN + "adam={kind='adam', b2=0.9}}"], 8),
        pytest.param(
            [PLAIN[:-2] + "}", "axes.form={power={kind='curves:Power', exponent=3}}"], 0,
            marks=pytest.mark.full,
        ),
        pytest.param(
            ["axes.rule=", "run.rule={kind='sgd', momentum=0.5}"], 0, marks=pytest.mark.full
        ),
        # A number of one kind as an axis.
        (
            ["axes={exponent=[3, 2]}", "axes.form=", "axes.rule=", "run.form='curves:Power'",
             "run.rule={kind='sgd', momentum=0.5}"],
            4,
        ),
    ],
    ids=["one more kind", "a number of one kind", "fewer kinds", "one kind alone", "a number"],
)  # fmt: skip
@pytest.mark.more
def test_stores_grow_by_kinds(
    changes: list[str], new: int, stored: Path, file: Path, computed: list[int]
) -> None:
    found = sweeps.run(load(file, changes), reuse=[stored], tile=2).load()
    assert sum(computed) == new
    assert (found.status == 0).all()
    old = sweeps.open(stored).load().sel(rule="momentum")
    have = found.sel(rule="momentum") if "rule" in found.dims else found
    have = have.sel(exponent=3) if "exponent" in found.dims else have
    old = old.sel(form=have.form) if "form" in found.dims else old.sel(form="power")
    if "form" in found.dims or "exponent" in found.dims:
        np.testing.assert_array_equal(have.params, old.params)


@pytest.mark.more
def test_kinds_that_differ_in_a_number_are_runs_of_an_axis_of_it(
    curves: Any, tmp_path: Path, computed: list[int]
) -> None:
    run = Experiment(curves.Curve(curves.Power(2.5)), dynsim.sgd(0.01), 6, 4)
    forms = {"three": curves.Power(3.0), "two": curves.Power(2.0), "square": curves.Square()}
    stored = sweeps.run(Sweep(run, {"form": forms}, record="params"), tmp_path / "s", tile=2)
    made = Sweep(run, {"exponent": [2.0, 2.5, 3.0]}, record="params")
    found = sweeps.run(made, reuse=[tmp_path / "s"], tile=2)
    assert sum(computed) == 3 + 1
    np.testing.assert_array_equal(found.params[::2], stored.params[[1, 0]])


# Six sweeps of two programs each.
@pytest.mark.full(
    "test_stores_grow_by_kinds", "sweeps/runner/store/test_reuse.py::test_runs_go_on_for_more_steps"
)
def test_a_store_of_one_kind_grows_into_several(
    curves: Any, tmp_path: Path, computed: list[int]
) -> None:
    """By their numbers and by their steps, whose checkpoints are not of one size."""

    def swept(steps: int, **kinds: list[str]) -> Sweep:
        run = Experiment(curves.Curve(), dynsim.sgd(0.1), steps, 4)
        axes = {**kinds, "eta": [0.1], "seed": [0, 1]}
        return Sweep(run, axes, record=("params",), checkpoint=True)

    both = {"rule": ["adam", "sgd"]}
    sweeps.run(swept(3), tmp_path / "one", tile=2)
    sweeps.run(swept(3, **both), tmp_path / "two", reuse=[tmp_path / "one"], tile=2)
    assert sum(computed) == 4
    longer = sweeps.run(swept(6, **both), reuse=[tmp_path / "two"], tile=2).load()
    assert longer.equals(sweeps.run(swept(6, **both), tile=2).load())


def test_workers_make_the_same_sweep(file: Path, curves: Any, tmp_path: Path) -> None:
    """From its configuration, or from the sweep itself where there is a function in it."""
    rule = {"plain": dynsim.sgd(0.1), "cosine": dynsim.sgd(dynsim.schedules.cosine(0.1, 1000))}
    run = Experiment(curves.Curve(), dynsim.sgd(tenth), 6, 4)
    made = Sweep(run, {"seed": [0]}), Sweep(run, {"rule": rule}), load(file)
    for sweep in made:
        job = driver.job(sweep, place(tmp_path / "x"), None)
        config = json.loads(json.dumps(config_of(sweep)))
        assert config_of(job.made(config)) == config


def test_they_are_exported_and_drawn(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweeps.open(stored).load()
    for ending in ("nc", "zarr", "csv"):
        target = str(tmp_path / f"adam.{ending}")
        adam = ["--where", "rule=adam", "eta=0.1"]
        assert cli.main(["export", str(stored), "--out", target, *adam]) == 0
        if ending == "csv":
            table = pd.read_csv(target)
            assert set(table["rule"]) == {"adam"}
            assert len(table) == 4
            continue
        kind = "h5netcdf" if ending == "nc" else "zarr"
        options = {} if ending == "nc" else {"consolidated": False}
        found = xr.open_dataset(target, engine=kind, **options).load()
        assert found.drop_attrs().equals(made.sel(rule="adam", eta=0.1).drop_attrs())
    assert cli.main(["info", str(stored)]) == 0
    told = capsys.readouterr().out
    assert "rule             momentum, adam" in told
    assert cli.main(["check", str(stored)]) == 0
    where = ["--where", "form=power"]
    plot = ["plot", str(stored), "--observable", "batch_loss", "--out", str(tmp_path / "p.png")]
    assert cli.main([*plot, *where, "--hue", "rule"]) == 0
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["rule"].tolist() == ["momentum", "adam"]
    assert cli.main([*plot, "--where", "rule=adm", "--overwrite"]) == 2
    message = "where: rule = 'adm': did you mean 'adam'? It must be one of momentum, adam"
    assert message in capsys.readouterr().err
