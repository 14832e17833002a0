"""Axes of words: each run is what it is alone, and stores of them resume, grow and are read."""

import itertools
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
from sweeps import StoreError, Sweep, Training, cli
from sweeps.runner import files
from sweeps.runner.cluster import driver, jobs
from sweeps.runner.store import manifest
from sweeps.runner.store.local import place
from sweeps.runner.work import Work
from sweeps.systems import registry

MODULE = """
from typing import Literal

import dynsim
import jax
import jax.numpy as jnp


class Curve(dynsim.Problem):
    CHOICES = {"form": {"square": {}, "power": {"exponent": 4.0}}}

    form: Literal["square", "power"] = "square"
    exponent: float | None = None

    def init(self, key):
        return jnp.asarray(2.0)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, w, x):
        power = 2.0 if self.form == "square" else self.value("exponent")
        return jnp.mean(jnp.abs(w - x) ** power)
"""
FILE = """
system = "curves:Curve"
record = ["batch_loss", "params"]
[axes]
form = ["square", "power"]
optimizer = ["sgd"]
eta = [0.01, 0.1]
momentum = [0.5, 0.9]
seed = [0, 3]
[run]
exponent = 3
b2 = 0.99
steps = 6
batch = 4
"""
RULES = {
    "sgd": lambda eta, momentum: dynsim.sgd(eta),
    "momentum": lambda eta, momentum: dynsim.sgd(eta, momentum=momentum),
    "adam": lambda eta, momentum: dynsim.adam(eta, b2=0.99),
}


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module of somebody else with a problem, some of whose settings choose words."""
    folder = tmp_path_factory.mktemp("curves")
    (folder / "curves.py").write_text(MODULE)
    sys.path.append(str(folder))
    yield registry.system("curves:Curve").run
    sys.path.remove(str(folder))
    registry._KNOWN.pop("curves:Curve")
    sys.modules.pop("curves")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("file") / "curves.toml"
    found.write_text(FILE)
    return found


@pytest.fixture(scope="module")
def stored(curves: Any, file: Path) -> Path:
    """A store of two words along two axes, which all devices made."""
    out = file.with_name("store")
    words = ["--set", "axes.optimizer=[momentum, adam]", "--chunk", "2", "--tile", "2"]
    assert cli.main(["sweep", str(file), "--out", str(out), *words]) == 0
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


def alone(form: str, rule: dynsim.Rule, seed: int) -> dynsim.Trajectory:
    exponent = {"exponent": 3.0} if form == "power" else {}
    problem = sys.modules["curves"].Curve(form=form, **exponent)
    key = jax.random.fold_in(jax.random.key(0), seed)
    return dynsim.train(problem, rule, key, steps=6, batch=4, times=[6], record=("params",))


def test_each_run_is_what_it_is_alone(stored: Path) -> None:
    found = sweeps.open(stored).load()
    assert found.optimizer.dtype.kind == "U"
    assert found.optimizer.values.tolist() == ["momentum", "adam"]
    assert found.optimizer.attrs == {"long_name": "optimizer"}
    axes = (found[name].values.tolist() for name in found.status.dims)
    for form, word, eta, momentum, seed in itertools.product(*axes):
        want = alone(form, RULES[word](eta, momentum), seed)["params"][-1]
        have = found.params.sel(
            {"form": form, "optimizer": word, "eta": eta, "momentum": momentum, "seed": seed}
        )
        np.testing.assert_allclose(have, want, rtol=2e-6)
    # Adam does not read the momentum; the other one does.
    few, many = (found.params.sel(momentum=value) for value in (0.5, 0.9))
    np.testing.assert_array_equal(few.sel(optimizer="adam"), many.sel(optimizer="adam"))
    assert (few != many).sel(optimizer="momentum").all()


@pytest.mark.full(
    "test_stores_grow_by_words",
    "sweeps/runner/test_run.py::test_chunks_tiles_and_devices_do_not_matter",
    "sweeps/runner/test_resume.py::test_kills_and_ctrl_c_lose_only_the_chunk_in_flight",
)
def test_devices_and_an_interruption_change_nothing(
    stored: Path, file: Path, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = files.load(file, ["axes.optimizer=[momentum, adam]"])
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
    assert computed == [2] * 16
    assert found.load().drop_attrs().equals(sweeps.open(stored).load().drop_attrs())
    assert sweeps.run(sweep, stored).load().equals(found)
    assert len(computed) == 16


def test_words_in_another_order_are_another_sweep(stored: Path, file: Path) -> None:
    with pytest.raises(StoreError, match=r"axes.optimizer: \['momentum', 'adam'\] -> \['adam'"):
        sweeps.run(files.load(file, ["axes.optimizer=[adam, momentum]"]), stored)


@pytest.mark.parametrize(
    ("changes", "words", "new"),
    [
        # Four runs a word and a form: two rates and two seeds.
        (["axes.optimizer=[sgd, adam, momentum]"], ["adam", "momentum"], 16),
        # What is given to Adam alone concerns no other word.
        pytest.param(
            ["axes.optimizer=[adam, momentum]", "run.b2=0.9"],
            ["momentum"],
            16,
            marks=pytest.mark.full,
        ),
        (["axes.optimizer=[momentum]", "axes.form=[power]", "run.b2="], ["momentum"], 0),
        (
            ["axes={momentum=[0.9]}", "axes.optimizer=", "run.optimizer=momentum", "run.b2="],
            ["momentum"],
            0,
        ),
    ],
    ids=["one more word", "a number of one word", "fewer words", "one word alone"],
)
def test_stores_grow_by_words(
    changes: list[str], words: list[str], new: int, stored: Path, file: Path, computed: list[int]
) -> None:
    made = files.load(file, changes)
    found = sweeps.run(made, reuse=[stored], tile=2).load()
    assert sum(computed) == new
    assert (found.status == 0).all()
    before = sweeps.open(stored).load()
    for word in words:
        old = before.sel(optimizer=word)
        have = found.sel(optimizer=word) if "optimizer" in found.dims else found
        old = old.sel(form=have.form, momentum=have.momentum)
        np.testing.assert_array_equal(have.params, old.params)


# Seven sweeps of two programs each.
@pytest.mark.full(
    "test_stores_grow_by_words", "sweeps/runner/store/test_reuse.py::test_runs_go_on_for_more_steps"
)
def test_a_store_of_one_word_grows_into_several(
    curves: Any, tmp_path: Path, computed: list[int]
) -> None:
    """By their numbers and by their steps, whose checkpoints are not of one size."""

    def swept(steps: int, **words: list[str]) -> Sweep:
        axes = {**words, "eta": [0.1], "seed": [0, 1]}
        return Sweep(axes, curves(steps=steps, batch=4), record=("params",), checkpoint=True)

    both, more = {"optimizer": ["adam", "sgd"]}, {"schedule": ["cosine", "constant"]}
    sweeps.run(swept(3), tmp_path / "one", tile=2)
    sweeps.run(swept(3, **both), tmp_path / "two", reuse=[tmp_path / "one"], tile=2)
    assert sum(computed) == 4
    longer = sweeps.run(swept(6, **both), reuse=[tmp_path / "two"], tile=2).load()
    assert longer.equals(sweeps.run(swept(6, **both), tile=2).load())
    # Stores do not name the schedule that is constant.
    before = sum(computed)
    sweeps.run(swept(3, **more), tmp_path / "three", reuse=[tmp_path / "one"], tile=2)
    assert sum(computed) == before + 2
    for first in (1, -1):
        schedules = {"schedule": more["schedule"][::first]}
        with pytest.raises(StoreError, match="the schedule of its runs follows from their 3 steps"):
            sweeps.run(swept(6, **schedules), reuse=[tmp_path / "three"], tile=2)


@pytest.mark.full("test_each_run_is_what_it_is_alone")
def test_a_problem_and_a_rule_as_they_are(curves: Any) -> None:
    del curves
    made = sys.modules["curves"].Curve(form="power", exponent=3.0)
    axes = {"form": ("square", "power"), "exponent": (3.0, 5.0), "eta": (0.1,)}
    found = sweeps.run(Sweep(made, dynsim.sgd(0.1), axes, 6, 4, record=("params",)))
    for form in axes["form"]:
        want = alone(form, dynsim.sgd(0.1), 0)["params"][-1]
        have = found.params.sel(form=form, exponent=3.0, eta=0.1)
        np.testing.assert_allclose(have, want, rtol=2e-6)
    both = found.params.sel(eta=0.1).transpose("form", "exponent").values
    assert both[0, 0] == both[0, 1] != both[1, 0] != both[1, 1]


@pytest.mark.full(
    "test_each_run_is_what_it_is_alone",
    "dynsim/yz/test_rules.py::test_rules_are_those_of_the_textbook",
)
def test_a_layer_learns_by_each_word() -> None:
    run = Training(steps=3, batch=4, length=8, eta_z=0.5, decay=0.1, eta_steps=2.0)
    words = {"schedule": ["cosine", "constant"], "optimizer": ["nesterov", "adamw"]}
    found = sweeps.run(Sweep(words, run, record=("loss",), zip=(tuple(words),))).loss
    rates = {"Y": dynsim.schedules.cosine(1.0, 2), "Z": dynsim.schedules.cosine(0.5, 2)}
    rules = [
        dynsim.sgd(rates, momentum=0.9, nesterov=True, decay=0.1),
        dynsim.adamw({"Y": 1.0, "Z": 0.5}, decay=0.1),
    ]
    layer, key = dynsim.layer(dynsim.syn_small(), 8), jax.random.fold_in(jax.random.key(0), 0)
    for have, rule in zip(found, rules, strict=True):
        want = dynsim.train(layer, rule, key, steps=3, batch=4, times=[3], record=("loss",))
        np.testing.assert_allclose(have, want["loss"][-1], rtol=2e-5)


def test_workers_are_sent_what_its_json_does_not_say(curves: Any, tmp_path: Path) -> None:
    """Numbers that only some words read are written by word, from which no sweep is made."""
    run = curves(b2=0.9)
    for words in ({"form": ["square"]}, {"optimizer": ["sgd", "adam"]}):
        sweep = Sweep(words, run if "optimizer" in words else curves(), record=("params",))
        job: jobs.Job = driver.job(sweep, place(tmp_path / "x"), None)
        made = job.made(sweep.as_json())
        assert manifest.fingerprint(made.as_json()) == manifest.fingerprint(sweep.as_json())


def test_stores_of_earlier_versions_are_known_again() -> None:
    """By hashes that the version before axes of words wrote."""
    adam = Training(steps=4, batch=8, length=8, optimizer="adam", eta_z=0.1)
    one = Sweep({"eta_y": [0.5, 1.0], "seed": [0, 1]}, adam, record=("loss",))
    whole = Training(steps=4, batch=float("inf"), optimizer="sgd")
    axes = {"length": [8, float("inf")], "eta_y": [0.1]}
    two = Sweep(axes, whole, engine="descent", record=("loss",))
    prints = [manifest.fingerprint(each.as_json())[:16] for each in (one, two)]
    assert prints == ["3767584c69ca20dc", "d70da1e483fc464f"]


def test_they_are_exported_and_drawn(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweeps.open(stored).load()
    for ending in ("nc", "zarr", "csv"):
        target = str(tmp_path / f"adam.{ending}")
        adam = ["--where", "optimizer=adam", "eta=0.1"]
        assert cli.main(["export", str(stored), "--out", target, *adam]) == 0
        if ending == "csv":
            table = pd.read_csv(target)
            assert set(table.optimizer) == {"adam"}
            assert len(table) == 8
            continue
        kind = "h5netcdf" if ending == "nc" else "zarr"
        options = {} if ending == "nc" else {"consolidated": False}
        found = xr.open_dataset(target, engine=kind, **options).load()
        assert found.drop_attrs().equals(made.sel(optimizer="adam", eta=0.1).drop_attrs())
    assert cli.main(["info", str(stored)]) == 0
    told = capsys.readouterr().out
    assert "optimizer        momentum, adam" in told
    assert "optimizer adam: b1 0.9, b2 0.99, eps 1e-08" in told
    assert cli.main(["check", str(stored)]) == 0
    where = ["--where", "form=power", "momentum=0.9"]
    plot = ["plot", str(stored), "--observable", "batch_loss", "--out", str(tmp_path / "p.png")]
    assert cli.main([*plot, *where, "--hue", "optimizer"]) == 0
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["optimizer"].tolist() == ["momentum", "adam"]
    assert cli.main([*plot, "--where", "optimizer=adm", "--overwrite"]) == 2
    message = "where: optimizer = 'adm': did you mean 'adam'? It must be one of momentum, adam"
    assert message in capsys.readouterr().err
