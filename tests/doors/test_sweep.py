"""Bad input to sweeps in Python: axes, names, arguments of `sweeps.run`, executors and hosts."""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import dynsim
import sweeps
from sweeps import Experiment, Sweep, experiment
from sweeps.lines import unstopped
from sweeps.runner import cluster, fit
from sweeps.runner.cluster import Hosts
from sweeps.runner.program import jobs
from sweeps.runner.spec import from_table, load
from sweeps.systems import registry
from tests.doors import refuses

YZ = {"problem": "yz"}
NEXT = 2.0**-23
"""Distance of the next float32 from 1."""
EQUAL = ("1 and 1.00000001", "float32", "float64")


SWEEP = ("record", "zip", "theory", "checkpoint")


def tabled(axes: Any, **table: Any) -> Callable[[], object]:
    return lambda: from_table({"run": YZ, "axes": axes, **table}).check()


def ran(axes: Any = None, run: Any = None, **options: Any) -> Callable[[], object]:
    swept = {name: options.pop(name) for name in SWEEP if name in options}
    start = run or experiment(steps=1, decay=0.1, momentum=0.5)
    sweep = lambda: Sweep(start, axes or {"eta_y": [1.0]}, **{"record": "loss", **swept})
    return lambda: sweeps.run(sweep(), **options)


def rule(decays: list[float]) -> dict[str, Any]:
    return {"rule": [dynsim.sgd(each) for each in decays]}


ETA = {"eta_y": [1]}
ZIP = {"zip": [["eta_y", "eta_z"]]}
ROWS: dict[str, list[tuple[Callable[[], object], tuple[str, ...]]]] = {
    "axes": [
        (tabled({"eta_q": [1]}), ("eta_q = 1", "eta")),
        (tabled({"eta_y": [1, "a"]}), ("eta.Y = 'a'", "number")),
        (tabled({"Seed": [1]}), ("axes.Seed", "seed")),
        (tabled({"dtype": ["float32", "float64"]}), ("axes.dtype", "one dtype")),
        (tabled({"T": [8]}), ("T = 8", "problem, task")),
        (tabled({"rule": [{"momentum": 0.5}]}), ("axes.rule = {'momentum': 0.5}", "kind")),
        (lambda: Sweep(experiment(), {3: [1.0]}), ("setting = 3",)),  # type: ignore
        (lambda: experiment().setting(3), ("setting = 3",)),  # type: ignore
        (lambda: experiment().at(3), ("settings = 3", "Mapping")),  # type: ignore
        (tabled(ETA, **ZIP), ("zip = 'eta_z'", "eta_y")),
        (tabled({**ETA, "seed": [1]}, zip=[["eta_y", "seed"]]), ("axes.seed", "zipped")),
        (tabled({"steps": [5, 3]}, times=[0, 4]), ("[0, steps = 3]",)),
    ],
    "equal in float32": [
        (ran({"eta_y": [1, 1 + 1e-8]}), ("axes.eta_y", *EQUAL)),
        (ran({"eta_y": {"linspace": [1, 1 + 2 * NEXT, 9]}}), ("axes.eta_y", "3 of 9")),
        (ran({"eta_y": [1e-50, 0.0]}), ("1e-50 and 0", "float32")),
        (ran({"decay": [None, 1, 1 + 1e-8]}), ("axes.decay", *EQUAL)),
        (ran({"eta_y": {"a": 1.0, "b": 1 + 1e-8}}), ("axes.eta_y", *EQUAL)),
        (ran({"eta_y": [1, 1 + 1e-8], "eta_z": [2, 2]}, zip=ZIP["zip"]), ("eta_z", *EQUAL)),
        (ran(rule([1, 1 + 1e-8])), ("axes.rule", "1.0", "1.00000001", "float64")),
    ],
    "sweep": [
        (tabled(ETA, theory="x"), ("theory = 'x'", "simulation")),
        (tabled(ETA, theory="matched"), ("'matched' does not apply",)),
        (tabled(ETA, thory="x"), ("key = 'thory'", "theory")),
        (tabled(ETA, record=["x"]), ("record = 'x'", "xi")),
        (tabled(ETA, record=[]), ("record = []", "at least one")),
        (tabled(ETA, record=["loss", "loss"]), ("record = 'loss'", "twice")),
        (tabled(ETA, record=["checkpoint"]), ("'checkpoint'", "checkpoint = true")),
        (tabled(ETA, theory="plain", checkpoint=True), ("theory 'plain'", "simulation")),
        (ran(record="relative_loss", checkpoint=True), ("relative_loss", "checkpoint")),
        (tabled(ETA, rtol=0.1), ("rtol = 0.1", "'simulation'")),
        (tabled(ETA, theory="plain", rtol=1.0), ("rtol = 1.0", "finite")),
        (tabled(ETA, times=[[1], 2]), ("times = [[1], 2]", "'end', a number")),
        (tabled(ETA, root=2**32), ("root = 4294967296", "4294967295")),
        (tabled(ETA, run={**YZ, "stepz": 2}), ("stepz = 2", "steps")),
        (tabled(ETA, run={"steps": 3}), ("run.problem", "yz, qkv, two_stage")),
        (lambda: load("fig66"), ("fig66", "fig4, fig5")),
        (lambda: load("fig6", ["run.steps"]), ("'run.steps'", "KEY = VALUE")),
        (lambda: Sweep(experiment(), ETA, theory=3), ("theory = 3", "str")),  # type: ignore
    ],
    "run": [
        (lambda: sweeps.run(3), ("sweep = 3", "Sweep")),  # type: ignore
        (ran(chunk=0), ("chunk = 0", ">= 1")),
        (ran(tile=0), ("tile = 0", ">= 1")),
        (ran(reuse=3), ("reuse = 3", "list or tuple")),
        (ran(process=3), ("process = 3", "0 <= k < n")),
        (ran(process=(2, 2)), ("process = (2, 2)", "0 <= k < n")),
        (ran(process=(-1, 2)), ("process = (-1, 2)", "0 <= k < n")),
        (ran(devices=[]), ("devices = []", "jax.devices()")),
        (ran(devices=["cpu"]), ("devices = ['cpu']", "jax.devices()")),
        (ran(devices="cpu"), ("devices = 'cpu'", "list or tuple")),
        (ran(report="x"), ("report = 'x'", "function")),
        (ran(executor=ThreadPoolExecutor(1)), ("executor", "out")),
        (
            ran(executor=ThreadPoolExecutor(1), out="s", process=(0, 2)),
            ("process = (0, 2)", "executor"),
        ),
        (ran(executor=ThreadPoolExecutor(1), out="s", devices=jax.devices()), ("devices",)),
    ],
    "hosts": [
        (Hosts(processes=3, process=3).connect, ("process = 3", "processes = 3")),
        (Hosts(processes=3, process=-1).connect, ("process = -1", ">= 0")),
        (Hosts(processes=0, process=0).connect, ("processes = 0", ">= 1")),
        (Hosts(processes=3).connect, ("processes = 3, process = None",)),
        (
            Hosts(coordinator="host0:1", processes=2, process=1, patience=0).connect,
            ("patience = 0", ">= 1"),
        ),
    ],
}


@pytest.mark.parametrize(
    ("call", "named"),
    [row for rows in ROWS.values() for row in rows],
    ids=[f"{door}-{i}" for door, rows in ROWS.items() for i in range(len(rows))],
)
def test_error_names_field_value_and_what_is_allowed(
    call: Callable[[], object],
    named: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is compiled, or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs.Program, "start", lambda _: pytest.fail("compiled"))
    refuses(call, *named)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        ({"eta_y": [1, 1 + NEXT]}, {}),
        (rule([1, 1 + NEXT]), {}),
        ({"rule": {"a": dynsim.sgd(1), "b": dynsim.sgd(1, 0.3)}}, {}),
        # All of zipped numbers have to be equal.
        ({"eta_y": [1, 1 + 1e-8], "eta_z": [1, 2]}, {"zip": [("eta_y", "eta_z")]}),
        # Integers are not rounded.
        ({"seed": [2**24, 2**24 + 1], "steps": [2**24, 2**24 + 1]}, {}),
        ({"seed": [0]}, {"root": 2**32 - 1}),
    ],
)
def test_what_is_just_allowed(axes: dict[str, Any], options: dict[str, Any]) -> None:
    Sweep(experiment(), axes, record="loss", **options).check()
    # Double precision tells rates apart that float32 does not, in training and in theory.
    close = {"eta_y": [1, 1 + 1e-8]}
    Sweep(experiment(dtype="float64"), close, record="loss").check()
    Sweep(experiment(), close, "eq10", record="loss").check()


@pytest.mark.parametrize(
    ("where", "toml", "named"),
    [
        ("localhost:8786", None, ("dask = 'localhost:8786'", "address of a scheduler")),
        ("local:0", None, ("dask = 'local:0'", "at least 1")),
        ("local:x", None, ("dask = 'local:x'", "number of workers")),
        ("local:3", None, ("dask = 'local:3'", "2 are visible")),
        ("slurm", None, ("dask = 'slurm'", "config")),
        ("local:2", "", ("dask = 'local:2'", "config")),
        ("slurm", "jobs = 0", ("jobs = 0", ">= 1")),
        ("slurm", "job = 1", ("key = 'job'", "jobs")),
        ("slurm", "cluster = 3", ("cluster", "table")),
        ("slurm", "cluster.processes = 4", ("cluster.processes",)),
        ("slurm", "cluster.walltime = '1h'", ("walltime = '1h'", "[D-]HH:MM:SS")),
        ("slurm", "cluster.memory = '4GB'\ncluster.queues = 'x'", ("queues", "queue")),
        ("slurm", "jobs = ", ("cluster.toml", "TOML")),
    ],
)
def test_executors_of_dask(
    where: str,
    toml: str | None,
    named: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("distributed")
    with unstopped():
        pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    config = None
    if toml is not None:
        config = tmp_path / "cluster.toml"
        config.write_text(toml)
    refuses(lambda: cluster.executor(where, config).__enter__(), *named)


@pytest.mark.parametrize(
    ("package", "call", "named"),
    [
        ("distributed", cluster.executor("local:1").__enter__, ("distributed", "dynsim[dask]")),
        ("obstore", lambda: sweeps.open("s3://bucket/run"), ("obstore", "dynsim[cloud]")),
    ],
)
def test_packages_that_are_missing(
    package: str,
    call: Callable[[], object],
    named: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    refuses(call, *named)


class Named(dynsim.Problem):
    """Two weights, and fields and observables, called as a test wants them to be."""

    weights: tuple[str, str] = ("a", "b")
    shift: float = 0.5
    time: float = 0.0
    Shift: float = 0.0
    inner: Mapping[str, float] | None = None

    def init(self, key: Any) -> Any:
        return dict.fromkeys(self.weights, jnp.asarray(2.0))

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Any, data: Any) -> Any:
        return sum(jnp.mean((each - data - self.shift) ** 2) for each in params.values())

    def snapshot(self, params: Any) -> Any:
        return (params,)

    def observables(self) -> Mapping[str, Any]:
        return {"../up": first}


def first(params: Any) -> Any:
    return next(iter(params.values()))


RATES = {"eta": [0.1, 0.2]}
FOLDER = "letters, digits, spaces and . _ -"
NAMES: list[tuple[Any, Any, dict[str, Any], tuple[str, ...]]] = [
    *(({name: first}, RATES, {}, (FOLDER,)) for name in ("..", "a\x1b[2J")),
    *(
        (["params", {name: first}], RATES, {}, (f"record = {name!r}",))
        for name in ("time", "status", "first_bad_step", "params.a", "batch_loss")
    ),
    ({"eta": first}, RATES, {}, ("record = 'eta'", "axes")),
    ({"Eta": first}, RATES, {}, ("record = 'Eta'", "'eta'", "case")),
    ({"Status": first}, RATES, {}, ("record = 'Status'", "'status'", "case")),
    ({"zarr.json": first}, RATES, {}, ("'zarr.json'",)),
    (["batch_loss", {"Batch_loss": first}], RATES, {}, ("'Batch_loss'", "'batch_loss'")),
    ("../up", RATES, {}, ("record = '../up'", FOLDER)),
    (
        [{"v": lambda params: jnp.zeros(2)}, {"v_0": first}],
        RATES,
        {},
        ("record = 'v_0'", "dimensions"),
    ),
    ("batch_loss", {"time": [1.0, 2.0]}, {}, ("axes = 'time'",)),
    ("batch_loss", {"shift": [1.0], "Shift": [2.0]}, {}, ("axes = 'Shift'", "'shift'", "case")),
    (
        "batch_loss",
        {"inner.../../x": [1.0]},
        {"inner": {"../../x": 1.0}},
        ("axes = 'inner.../../x'", FOLDER),
    ),
    ("params", RATES, {"weights": ("a", "b/../../c")}, ("'params.b/../../c'", FOLDER)),
    ("params", RATES, {"weights": ("w", "W")}, ("'params.W'", "case")),
    ({"short": lambda params: first(params).astype(jnp.bfloat16)}, RATES, {}, ("bfloat16",)),
]


@pytest.mark.parametrize(("record", "axes", "fields", "named"), NAMES)
@pytest.mark.more
def test_a_name_that_is_no_folder_or_another_name_is_an_error(
    record: Any,
    axes: Any,
    fields: dict[str, Any],
    named: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what is recorded, and of what varies, which are folders of a store: before anything is
    compiled or written, in memory as well, and in `dynsim.train`, as far as it has such names."""
    monkeypatch.setattr(jobs.Program, "start", lambda _: pytest.fail("compiled"))
    if "weights" in fields:
        # As on an accelerator, where programs are compiled to see what memory they take.
        monkeypatch.setattr(fit, "memory_of", lambda _: 2**40)
    run = Experiment(Named(**fields), dynsim.sgd(0.1), 2, 2)
    for out in (tmp_path / "in" / "s", None):
        refuses(lambda out=out: sweeps.run(Sweep(run, axes, record=record), out), *named)
    left = [path for path in tmp_path.rglob("*") if not path.name.endswith(".lock")]
    assert left in ([], [tmp_path / "in"])
    if named == (FOLDER,):
        key, options = jax.random.key(0), {"steps": 1, "batch": 2, "record": record}
        with pytest.raises(ValueError, match="letters, digits") as error:
            dynsim.train(Named(), dynsim.sgd(0.1), key, **options)
        assert str(error.value).isprintable()


class Nested(Named):
    inner: Any = None


def test_two_numbers_of_one_name() -> None:
    run = Experiment(Nested(inner={"x.y": 1.0, "x": {"y": 2.0}}), dynsim.sgd(0.1), 2, 2)
    refuses(lambda: sweeps.run(Sweep(run, RATES, record="batch_loss")), "Nested", "'inner.x.y'")


class Clash(Named):
    steps: float = 0.5
    eta: float = 0.0


@pytest.mark.more
def test_fields_called_like_settings_of_the_run_are_named_by_their_paths() -> None:
    run = Experiment(Clash(), dynsim.sgd(0.1), 2, 2)
    refuses(lambda: sweeps.run(Sweep(run, RATES)), "ambiguous", "problem.eta or rule.eta")
    axes = {"problem.eta": [0.0, 0.3], "rule.eta": [0.1, 0.2], "steps": [2, 3]}
    found = sweeps.run(Sweep(run, {**axes, "problem.steps": [0.5, 0.6]}, record="params"))
    value = found["params.a"]
    assert value.dims == ("problem.eta", "rule.eta", "steps", "problem.steps")
    for name, matters in (("problem.eta", False), ("rule.eta", True), ("steps", True)):
        one, two = value.isel({name: 0}), value.isel({name: 1})
        assert bool((one != two).all()) is matters


def test_names_of_other_alphabets_are_names(tmp_path: Path) -> None:
    record = ["batch_loss", {"größe η": first, "a-b.c": first}]
    sweep = Sweep(Experiment(Named(), dynsim.sgd(0.1), 2, 2), RATES, record=record)
    found = sweeps.run(sweep, tmp_path / "s").load()
    assert sweeps.open(tmp_path / "s")["größe η"].equals(found["a-b.c"].rename("größe η"))


def test_a_theory_that_the_problem_does_not_have_is_not_stored() -> None:
    theory = dataclasses.replace(registry.system("yz").theories["plain"], name="mine")
    sweep = Sweep(experiment(steps=1), {"eta_y": [1.0]}, theory, ("loss",))
    refuses(lambda: sweeps.run(sweep, "s"), "theory = mine", "`out`")
    refuses(lambda: sweeps.run(sweep, reuse="s"), "theory = mine", "`reuse`")
