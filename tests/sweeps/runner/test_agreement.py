"""Stored runs are resumed by the program that computed them, or by one that was decided to be the
same: by numbers, or by a user; and random numbers come from the key."""

import dataclasses
import importlib
import inspect
import multiprocessing
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim import Status
from sweeps import Experiment, StoreError, Sweep, cli, output
from sweeps.language.describe import called
from sweeps.runner import agreement, driver
from sweeps.runner.program.identity import Identity
from sweeps.runner.store.storage import as_storage
from sweeps.runner.store.store import Store
from sweeps.systems import registry

FACTOR = 1.0
WIDE = 1.0
HERE = sys.modules[__name__]


class Net(dynsim.Problem):
    """A problem that reads globals."""

    width: int = 2

    def init(self, key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.width,))

    def draw(self, key: jax.Array, batch: int) -> jax.Array:
        return jax.random.normal(key, (batch, self.width))

    def loss(self, params: jax.Array, data: jax.Array) -> jax.Array:
        scale = WIDE if self.width > 2 else 1.0
        return FACTOR * scale * jnp.mean((data @ params) ** 2)


def swept(**options: Any) -> Sweep:
    axes = options.pop("axes", {"eta": [0.1, 0.2], "seed": [0, 1]})
    return Sweep(Experiment(Net(), dynsim.sgd(0.1), 3, 4), axes, **options)


def without(out: Path, *chunks: int) -> Store:
    """The store without some of its chunks."""
    store = Store.open(out)
    for number in chunks:
        store.chunks.remove(number)
    return Store.open(out)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test changes."""
    out = tmp_path_factory.mktemp("original") / "s"
    sweeps.run(swept(), out, chunk=2, tile=2)
    return out


@pytest.fixture
def stored(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "s"))


def elsewhere(out: Path, platform: str = "cpu", **environment: str) -> None:
    """Make a store one of another environment, where the same code has another text."""
    store = Store.open(out)
    (known,) = store.programs.all()
    there = store.chunks.environment(known.environment) | environment
    store.set_environment(there, strict=False)
    store.programs.keep([])
    about = {"program": "0" * 64, "platform": platform, "environment": store.register_environment()}
    for number, record in store.chunks.all().items():
        sealed = dataclasses.replace(record, program="0" * 64).encode()
        (out / store.chunks.file(number)).write_bytes(sealed)
    store.programs.put(dataclasses.replace(known, **about))


@pytest.mark.more
def test_a_global_that_changes_between_two_halves(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(stored, 1)
    before = sweeps.open(stored).load()
    monkeypatch.setattr(HERE, "FACTOR", 2.0)
    with pytest.raises(StoreError, match=r"Net\.loss") as error:
        sweeps.run(swept(), stored)
    assert sweeps.open(stored).load().identical(before)
    # By its name alone: that of other code does not do.
    with pytest.raises(StoreError, match="accept_code = 0123"):
        sweeps.run(swept(), stored, accept_code="0123")
    name = re.search("--accept-code ([0-9a-f]{12})", str(error.value))[1]
    found = sweeps.run(swept(), stored, accept_code=name).load()
    assert (found.status == Status.OK).all()
    sweeps.run(swept(), stored, accept_code=name)
    monkeypatch.setattr(HERE, "FACTOR", 3.0)
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), stored, accept_code=name)


def test_numbers_decide_between_the_command_line_and_python(stored: Path) -> None:
    """Theories have another program there, as Equinox reports bad arguments in another way."""
    elsewhere(stored, EQX_ON_ERROR="nan")
    lines: list[str] = []
    sweeps.run(swept(), stored, report=lines.append)
    assert [line for line in lines if "stored runs, recomputed, agree" in line]


def test_the_same_numbers_by_other_code_decide_nothing(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change may matter in runs that are not stored, such as those of large rates."""
    loss = Net.loss
    monkeypatch.setattr(Net, "loss", lambda *given: jnp.minimum(loss(*given), 1e30))
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), stored)


def test_a_strict_driver_may_have_another_device_than_the_workers(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = output.environment()
    monkeypatch.setattr(output, "environment", lambda: here | {"device": "gpu: another"})
    before = sweeps.open(stored).load()
    with ThreadPoolExecutor(1) as executor:
        found = sweeps.run(swept(), stored, executor=executor, strict=True)
    assert found.load().identical(before)


@pytest.mark.more
def test_numbers_decide_between_versions(
    stored: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(stored, 1)
    elsewhere(stored, jax="99")
    # Rounding explains 64 units in the last place, 7.6e-6, and what training carries of it.
    for factor, named in (
        (1.0001, r"jax 99 -> .*\n.*batch_loss .* differs"),
        (1e30, "different status"),
    ):
        monkeypatch.setattr(HERE, "FACTOR", factor)
        with pytest.raises(StoreError, match=named):
            sweeps.run(swept(), stored)
    monkeypatch.setattr(HERE, "FACTOR", 1 + 5e-7)
    with pytest.raises(StoreError, match="strict forbids"):
        sweeps.run(swept(), stored, strict=True)
    lines: list[str] = []
    found = sweeps.run(swept(), stored, report=lines.append).load()
    (line,) = (line for line in lines if "recomputed" in line)
    assert "2 stored runs" in line
    assert 2e-7 < float(re.search(r"within (\S+) of", line)[1]) < 7e-6
    assert (found.status == Status.OK).all()
    # Decided once, and written down.
    lines.clear()
    sweeps.run(swept(), stored, report=lines.append)
    assert not [line for line in lines if "recomputed" in line]
    for command in ("info", "check"):
        assert cli.main([command, str(stored)]) == 0
    assert "compared numerically" in capsys.readouterr().out


class Called(Net):
    """What calls back to Python cannot be lowered for a device that is not there."""

    def loss(self, params: jax.Array, data: jax.Array) -> jax.Array:
        one = jax.pure_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32))
        return jax.lax.stop_gradient(one) * super().loss(params, data)


@pytest.mark.more
def test_numbers_decide_what_no_device_here_can_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The rule has a name, which does not say what it is when runs are computed again.
    axes = {"rule": {"heavy": {"kind": "sgd", "momentum": 0.9}}, "eta": [0.1, 0.2, 0.3]}
    sweep = Sweep(Experiment(Called(), dynsim.sgd(0.1), 2, 4), axes)
    sweeps.run(sweep, tmp_path / "s", chunk=2)
    elsewhere(tmp_path / "s", "gpu", device="gpu: H100")
    lines: list[str] = []
    sweeps.run(sweep, tmp_path / "s", report=lines.append)
    assert [line for line in lines if "3 stored runs, recomputed, agree" in line]
    assert cli.main(["info", str(tmp_path / "s")]) == 0
    assert "test_agreement.Called.loss.<locals>.<lambda>" in capsys.readouterr().out


def test_rounding_that_is_carried_far_decides_nothing() -> None:
    """Sixteen times what a nudge carries is allowed, up to a thousandth."""
    again, up, gone = np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.array([1.0, np.nan])
    close, far, nudged = again * (1 + 1e-7), again * 1.01, again * (1 + 1e-7 * up)

    def compared(stored: np.ndarray, *nudged: np.ndarray) -> float | None:
        return agreement.relative_difference("x", stored, again, [*nudged], 1e-6)

    for stored, other, want in (
        (close, again, 1e-7),
        (far, again * 1.001, None),
        (again + 2 * 2.5e-6 * up, nudged, 2.5e-6),
        (again, again * (1 + 6.2e-5), 0),
        (again, again * (1 + 6.3e-5), None),
    ):
        assert compared(stored, again, other) == pytest.approx(want)
    for stored, other in ((far, close), (gone, close), (again + 2 * 2.7e-6 * up, nudged)):
        with pytest.raises(ArithmeticError, match="x of a stored run differs"):
            compared(stored, again, other)
    assert agreement.relative_difference("x", gone, gone, [gone], 1e-6) == 0


@pytest.mark.parametrize("rtol", [1e-8, 5e-5])
@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_another_solver_may_differ_by_ten_times_its_tolerance(rtol: float, tmp_path: Path) -> None:
    run = sweeps.experiment("sparse_attention", steps=3)
    sweep = Sweep(run, {"eta": [0.1, 0.2]}, "plain", ("loss",), rtol=rtol)
    found = sweeps.run(sweep, tmp_path / "s").load()
    elsewhere(tmp_path / "s", jax="99")
    store = Store.open(tmp_path / "s")
    store.chunks.remove(0)
    arrays = {name: found[name].values for name in store.names}
    arrays["loss"] = arrays["loss"] * (1 + 2e-4)
    store.write(store.layout.region(0), arrays, program="0" * 64)
    if rtol == 5e-5:
        sweeps.run(sweep, tmp_path / "s")
    else:
        with pytest.raises(StoreError, match=r"loss .* differs by 0\.0002"):
            sweeps.run(sweep, tmp_path / "s")


@pytest.mark.more
def test_reuse_takes_over_what_belongs_to_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = {"width": [2, 3], "seed": [0, 1]}
    sweeps.run(swept(axes=axes), tmp_path / "old", tile=2)
    more = swept(axes={**axes, "seed": [0, 1, 2]})
    monkeypatch.setattr(HERE, "WIDE", 5.0)
    lines: list[str] = []
    out = tmp_path / "new"
    found = sweeps.run(more, out, reuse=[tmp_path / "old"], report=lines.append, tile=2).load()
    assert any("1 programs have changed" in line for line in lines)
    np.testing.assert_array_equal(found.batch_loss, sweeps.run(more, tile=2).batch_loss)
    monkeypatch.setattr(HERE, "FACTOR", 2.0)
    with pytest.raises(StoreError, match=r"reuse = .*its runs were computed by different code"):
        sweeps.run(more, tmp_path / "third", reuse=[tmp_path / "old"])
    assert not (tmp_path / "third").exists()


def test_a_chunk_of_other_code_is_never_a_result(
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As where files of an older copy of the store are copied back, which have its id."""
    other = Path(shutil.copytree(stored, tmp_path / "other"))
    without(other, 0, 1)
    monkeypatch.setattr(HERE, "FACTOR", 2.0)
    sweeps.run(swept(), other)
    newer = sweeps.open(other).load()
    chunks = Store.open(stored).chunks
    for name in (*chunks.keys(1).values(), chunks.file(1)):
        shutil.copy(stored / name, other / name)
    for command in ("check", "info", "plot", "export"):
        assert cli.main([command, str(other)]) == 2
        assert "chunks 1 were computed by different code" in capsys.readouterr().err
    for read in (lambda: sweeps.open(other).load(), lambda: sweeps.run(swept(), other)):
        with pytest.raises(StoreError, match=r"chunks 1 were .*/1\.json"):
            read()
    # What the message says is enough.
    without(other, 1)
    assert sweeps.run(swept(), other).load().identical(newer)


@pytest.mark.more
def test_files_of_programs_are_checked_and_found_again(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (stored / "status/.programs").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"cpu"', b'"gpu"'))
    for command in ("check", "info"):
        assert cli.main([command, str(stored)]) == 2
    with pytest.raises(StoreError, match=f"status/.programs/{file.name} is damaged"):
        sweeps.run(swept(), stored)
    # That of another store, whose runs have the same static values.
    sweeps.run(swept(axes={"seed": [5]}), tmp_path / "other")
    (other,) = (tmp_path / "other/status/.programs").iterdir()
    assert other.name == file.name
    file.write_bytes(other.read_bytes())
    with pytest.raises(StoreError, match=f"{file.name} is damaged"):
        sweeps.run(swept(), stored)
    # The records of chunks know as well.
    file.unlink()
    sweeps.run(swept(), stored)
    assert file.read_bytes() == whole
    file.unlink()
    monkeypatch.setattr(HERE, "FACTOR", 2.0)
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), stored)


def test_an_option_of_jax_that_changed_is_the_cause_and_no_method(stored: Path) -> None:
    jax.config.update("jax_threefry_partitionable", False)
    try:
        with pytest.raises(StoreError, match="jax_threefry_partitionable True -> False") as found:
            sweeps.run(swept(), stored)
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    assert "draw" not in str(found.value)


RANDOM = np.random.default_rng(0)


INITS: dict[str, Callable[[], Any]] = {
    "numpy weights": lambda: RANDOM.normal(size=2),
    "own weights": lambda: jax.random.normal(jax.random.key(7), (2,)),
    "all": lambda: jax.random.normal(jax.random.key(7), (2,)),
    "nothing": lambda: np.ones(2),
}
DRAWS: dict[str, Callable[[int], Any]] = {
    "numpy data": lambda batch: RANDOM.normal(size=(batch, 2)),
    "seeded data": lambda batch: np.random.default_rng(0).normal(size=(batch, 2)),
    "own data": lambda batch: jax.random.normal(jax.random.key(7), (batch, 2)),
    "fixed data": lambda batch: np.random.default_rng(0).normal(size=(8, 2)),
    **dict.fromkeys(("grid", "nothing", "all"), lambda batch: np.ones((batch, 2))),
}


class Frozen(Net):
    """Draws with NumPy, or with keys of its own."""

    how: str = ""

    def init(self, key: jax.Array) -> jax.Array:
        made = INITS.get(self.how)
        return jnp.asarray(made(), jnp.float32) if made else super().init(key)

    def draw(self, key: jax.Array, batch: int) -> jax.Array:
        made = DRAWS.get(self.how)
        return jnp.asarray(made(batch), jnp.float32) if made else super().draw(key, batch)


class Unrepeated(Net):
    """Its weights begin at numbers that differ each time it is built."""

    start: Any = None

    def build(self, rule: Any) -> "Unrepeated":
        return dataclasses.replace(self, start=jnp.asarray(RANDOM.normal(size=2)))

    def init(self, key: jax.Array) -> jax.Array:
        return super().init(key) + self.start


def frozen(how: str) -> Sweep:
    net = Unrepeated() if how == "other arrays" else Frozen(how=how)
    if how == "full batch":
        net = dynsim.full_batch(net, jax.random.key(1), 8)
    return Sweep(Experiment(net, dynsim.sgd(0.1), 2, 4), {"seed": [0, 1]})


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("numpy weights", "Frozen.init"),
        ("numpy data", "Frozen.draw"),
        ("seeded data", "Frozen.draw"),
        ("own data", "Frozen.draw"),
        ("own weights", "Frozen.init"),
        ("all", "Frozen.init"),
        ("nothing", "axes.seed: neither Frozen.init nor Frozen.draw"),
        ("other arrays", "Unrepeated.build: start has"),
        ("fixed data", "Frozen.draw: .*dynsim.full_batch"),
    ],
)
def test_what_is_drawn_without_a_key_is_an_error(how: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{named}"):
        sweeps.run(frozen(how), tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("how", ["", "full batch", "grid"])
@pytest.mark.more
def test_fixed_sets_and_keys_are_none(how: str) -> None:
    loss = sweeps.run(frozen(how))["loss" if how == "full batch" else "batch_loss"].values
    assert loss[0] != loss[1]


@pytest.mark.more
def test_a_worker_that_lives_on_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has imported a module before that was edited; and the sweep goes on by a new one. What the
    old one still writes after that does not stay."""
    file = tmp_path / "packages" / "edited_net.py"
    file.parent.mkdir()
    head = "import dynsim, jax, jax.numpy as jnp\nFACTOR = WIDE = 1.0\n"
    file.write_text(head + inspect.getsource(Net))
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.setenv("PYTHONPATH", f"{file.parent}:{Path(__file__).parents[3]}")
    made = importlib.import_module(file.stem)

    def edited(name: str, executor: Executor | None = None) -> Any:
        sweep = Sweep(Experiment(made.Net(), dynsim.sgd(0.1), 3, 4), swept().axes)
        return sweeps.run(sweep, tmp_path / name, executor=executor, chunk=2, tile=2).load()

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        first = edited("first", executor)
        file.write_text(file.read_text().replace("WIDE = 1.0", "WIDE = 50.0"))
        importlib.reload(made)
        with pytest.raises(StoreError, match="runs different code from this process"):
            edited("second", executor)
    late, made_first = (Store.open(tmp_path / name) for name in ("second", "first"))
    region = made_first.layout.region(0)
    numbers = {name: made_first.chunks.read(name, 0) for name in made_first.names}
    late.write(region, numbers, program=made_first.chunks.record(0).program)
    assert (edited("second").batch_loss > 20 * first.batch_loss).all()


def test_a_class_of_a_script_has_one_name_in_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawned workers call the module of the script `__mp_main__`, others import it."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    names = set()
    for module in ("__main__", "__mp_main__", "script"):
        monkeypatch.setattr(type(swept().first.problem), "__module__", module)
        names.add(registry.system_of(swept().first).name)
    # A worker that the script has not started cannot import it: it is sent the class.
    pytest.importorskip("cloudpickle")
    monkeypatch.setattr(type(swept().first.problem), "__module__", "__main__")
    job = driver.job_of(Identity(swept(), "cpu"), as_storage("memory://s"), None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "worker.py")
    with called(job.main):
        names.add(registry.system_of(job.rebuild({}).first).name)
    assert names == {"script:Net"}
