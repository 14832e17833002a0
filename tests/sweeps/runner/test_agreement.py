"""Stored runs are resumed by the program that computed them, or by one that was decided to be the
same: by numbers, or by a user."""

import contextlib
import dataclasses
import importlib
import multiprocessing
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim import Status
from odes.solver.tolerances import DEFAULT_TOLERANCES
from sweeps import Experiment, StoreError, Sweep, cli, output
from sweeps.runner import agreement
from sweeps.runner.agreement import Agreement
from sweeps.runner.program import identity
from sweeps.runner.store.store import Store
from sweeps.systems import registry

FACTOR = 1.0
WIDE = 1.0


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


def without(out: Path, chunk: int) -> Store:
    """The store without one of its chunks."""
    store = Store.open(out)
    store.place.remove(store.chunks.file(chunk))
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


@pytest.fixture
def other_version(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the store was made, a JAX of another version, which lowers everything to other text."""
    del stored
    real, unnamed = output.environment(), identity._unnamed
    monkeypatch.setattr(output, "environment", lambda *_: real | {"jax": "99"})
    monkeypatch.setattr(identity, "_unnamed", lambda text: f"{unnamed(text)}\n// 99")
    monkeypatch.setattr(identity, "_HASHES", {})


SESSION = """
import dynsim, jax, jax.numpy as jnp, numpy as np, sweeps
F = 1.0
class Net(dynsim.Problem):
    def init(self, key):
        return jax.random.normal(key, (3,))
    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))
    def loss(self, params, data):
        return F * jnp.mean((data @ params) ** 2)

def go(out=None):
    axes = {"eta": [0.1, 0.2], "seed": [0, 1]}
    sweep = sweeps.Sweep(sweeps.Experiment(Net(), dynsim.sgd(0.1), 2, 4), axes)
    try:
        return float(sweeps.run(sweep, out, progress=False).batch_loss.mean())
    except ValueError as error:
        return str(error).splitlines()[0]

print("first", go("store"), go())
F = 100.0
print("global", go("store"), go())
F = 1.0
print("again", go("store"), go())
class Net(Net):
    def loss(self, params, data):
        return 100 * jnp.mean((data @ params) ** 2)

print("class", go("store"), go())
"""


@pytest.mark.more
def test_a_session_in_which_code_changes(tmp_path: Path) -> None:
    """`python -i`, where a global gets another value and a class is defined anew; what is kept in
    memory follows."""
    command = [sys.executable, "-i", "-q", "-c", f"import sys; sys.path.insert(0, {sys.path[0]!r})"]
    found = subprocess.run(
        command, cwd=tmp_path, input=SESSION, capture_output=True, text=True, check=False
    )
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in found.stdout.splitlines()}
    first, memory = map(float, lines["first"].split())
    assert first == memory
    assert lines["again"] == lines["first"]
    for name in ("global", "class"):
        told, number = lines[name].rsplit(maxsplit=1)
        assert told == "store: the stored runs were computed by different code"
        assert float(number) > 50 * memory


@pytest.mark.more
def test_a_global_that_changes_between_two_halves(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(stored, 1)
    before = sweeps.open(stored).load()
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    with pytest.raises(StoreError, match=r"Net\.loss") as error:
        sweeps.run(swept(), stored)
    assert sweeps.open(stored).load().identical(before)
    # By its name alone: that of other code does not do.
    with pytest.raises(StoreError, match="accept_code = 0123: the name is"):
        sweeps.run(swept(), stored, accept_code="0123")
    name = re.search("--accept-code ([0-9a-f]{12})", str(error.value))[1]
    found = sweeps.run(swept(), stored, accept_code=name).load()
    assert (found.status == Status.OK).all()
    sweeps.run(swept(), stored)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), stored, accept_code=name)


@pytest.mark.more
def test_the_same_numbers_by_other_code_decide_nothing(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change may matter in runs that are not stored, such as those of large rates."""
    loss = Net.loss
    monkeypatch.setattr(Net, "loss", lambda *given: jnp.minimum(loss(*given), 1e30))
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), stored)


@pytest.mark.usefixtures("other_version")
@pytest.mark.more
def test_numbers_decide_between_versions(
    stored: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(stored, 1)
    lines: list[str] = []
    found = sweeps.run(swept(), stored, report=lines.append).load()
    assert [line for line in lines if "stored runs, recomputed, agree to within" in line]
    assert (found.status == Status.OK).all()
    # Of one version, text decides, whatever the numbers.
    loss = Net.loss
    with monkeypatch.context() as changed:
        changed.setattr(Net, "loss", lambda *given: jnp.minimum(loss(*given), 1e30))
        with pytest.raises(StoreError, match=r"Net\.loss"):
            sweeps.run(swept(), stored)
    # Decided once, and written down.
    lines.clear()
    monkeypatch.setattr(agreement.Agreement, "_by_numbers", None)
    sweeps.run(swept(), stored, report=lines.append)
    assert not [line for line in lines if "recomputed" in line]
    assert cli.main(["info", str(stored)]) == 0
    assert "compared numerically: 2 stored runs, recomputed" in capsys.readouterr().out
    assert cli.main(["check", str(stored)]) == 0


@pytest.mark.usefixtures("other_version")
@pytest.mark.more
def test_other_numbers_are_no_other_version(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 1.0001)
    with pytest.raises(StoreError, match=r"jax \S+ -> 99.*\n.*batch_loss of a stored run differs"):
        sweeps.run(swept(), stored)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 1e30)
    with pytest.raises(StoreError, match="a stored run ends with a different status"):
        sweeps.run(swept(), stored)
    with pytest.raises(StoreError, match="strict forbids"):
        sweeps.run(swept(), without(stored, 1).name, strict=True)


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
    axes = {"rule": {"heavy": {"kind": "sgd", "momentum": 0.9}}, "eta": [0.1, 0.2]}
    sweep = Sweep(Experiment(Called(), dynsim.sgd(0.1), 2, 4), axes)
    sweeps.run(sweep, tmp_path / "s")
    store = Store.open(tmp_path / "s")
    (known,) = store.programs.all()
    there = store.chunks.environment(known.environment) | {"device": "gpu: H100"}
    store.enter(there, strict=False)
    store.programs.keep([])
    elsewhere = {"program": "0" * 64, "platform": "gpu", "environment": store.noted()}
    store.programs.put(dataclasses.replace(known, **elsewhere))
    lines: list[str] = []
    sweeps.run(sweep, tmp_path / "s", report=lines.append)
    assert [line for line in lines if "2 stored runs, recomputed, agree to within" in line]
    assert cli.main(["info", str(tmp_path / "s")]) == 0
    assert "test_agreement.Called.loss.<locals>.<lambda>" in capsys.readouterr().out


def test_rounding_that_is_carried_far_decides_nothing() -> None:
    again = np.array([1.0, 2.0])
    close, far = again * (1 + 1e-7), again * 1.01
    assert agreement.compared("x", close, again, [again], 1e-6) == pytest.approx(1e-7)
    assert agreement.compared("x", far, again, [again * 1.001], 1e-6) is None
    for stored in (far, np.array([1.0, np.nan])):
        with pytest.raises(ArithmeticError, match="x of a stored run differs"):
            agreement.compared("x", stored, again, [close], 1e-6)
    # Sixteen times what a nudge carries is allowed, up to a thousandth.
    up = np.array([0.0, 1.0])
    nudged = again * (1 + 1e-7 * up)
    for far, fine in ((2.5e-6, True), (2.7e-6, False)):
        context = contextlib.nullcontext() if fine else pytest.raises(ArithmeticError)
        with context:
            found = agreement.compared("x", again + 2 * far * up, again, [again, nudged], 1e-6)
            assert found == pytest.approx(far)
    for carried, decides in ((6.2e-5, True), (6.3e-5, False)):
        found = agreement.compared("x", again, again, [again * (1 + carried)], 1e-6)
        assert (found == 0) is decides
        assert (found is None) is not decides
    gone = np.array([1.0, np.nan])
    assert agreement.compared("x", gone, gone, [gone], 1e-6) == 0


@pytest.mark.more
def test_reuse_takes_over_what_belongs_to_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = {"width": [2, 3], "seed": [0, 1]}
    sweeps.run(swept(axes=axes), tmp_path / "old", tile=2)
    more = swept(axes={**axes, "seed": [0, 1, 2]})
    monkeypatch.setattr(sys.modules[__name__], "WIDE", 5.0)
    lines: list[str] = []
    found = sweeps.run(
        more, tmp_path / "new", reuse=[tmp_path / "old"], report=lines.append, tile=2
    ).load()
    assert [
        line for line in lines if "1 programs have changed; their runs are computed again" in line
    ]
    np.testing.assert_array_equal(found.batch_loss, sweeps.run(more, tile=2).batch_loss)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    with pytest.raises(StoreError, match=r"reuse = .*its runs were computed by different code"):
        sweeps.run(more, tmp_path / "third", reuse=[tmp_path / "old"])
    assert not (tmp_path / "third").exists()


@pytest.mark.more
def test_processes_of_one_sweep_have_one_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps.run(swept(), tmp_path / "s", chunk=2, tile=2, process=(0, 2))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), tmp_path / "s", tile=2, process=(1, 2))


@pytest.mark.more
def test_a_program_that_has_stored_nothing_is_forgotten(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(stored, 0)
    without(stored, 1)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    found = sweeps.run(swept(), stored).load()
    np.testing.assert_array_equal(found.batch_loss, sweeps.run(swept()).batch_loss)


@pytest.mark.more
def test_files_of_programs_are_checked_and_found_again(
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (file,) = (stored / "status/.programs").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"cpu"', b'"gpu"'))
    for use in (["check"], ["info"]):
        assert cli.main([*use, str(stored)]) == 2
        assert f"the file status/.programs/{file.name} is damaged" in capsys.readouterr().err
    with pytest.raises(StoreError, match="is damaged"):
        sweeps.run(swept(), stored)
    # That of another store, whose runs have the same static values.
    sweeps.run(swept(axes={"seed": [5]}), tmp_path / "other")
    (other,) = (tmp_path / "other/status/.programs").iterdir()
    assert other.name == file.name
    file.write_bytes(other.read_bytes())
    with pytest.raises(StoreError, match="to other runs, or to another store"):
        sweeps.run(swept(), stored)
    file.unlink()
    sweeps.run(swept(), stored)
    assert file.read_bytes() == whole
    file.unlink()
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    with pytest.raises(StoreError, match="computed by different code"):
        sweeps.run(swept(), stored)


def test_the_environment_of_whoever_comes_second_is_noted(stored: Path) -> None:
    """Of a process whose first chunk another one has written before."""
    first = without(stored, 1)
    second, values = Store.open(stored), sweeps.run(swept()).load()
    first.enter({"jax": "1"}, strict=False)
    second.enter({"jax": "2"}, strict=False)
    region = first.layout.region(1)
    arrays = {name: values[name].values[region] for name in first.names}
    first.write(region, arrays)
    second.write(region, arrays)
    without(stored, 0)
    region = first.layout.region(0)
    second.write(region, {name: values[name].values[region] for name in first.names})
    assert cli.main(["info", str(stored)]) == 0
    assert cli.main(["check", str(stored)]) == 0


RANDOM = np.random.default_rng(0)


class Frozen(Net):
    """Draws with NumPy, or with keys of its own."""

    how: str = ""

    def init(self, key: jax.Array) -> jax.Array:
        if self.how == "numpy weights":
            return jnp.asarray(RANDOM.normal(size=2), jnp.float32)
        if self.how in ("own weights", "all"):
            return jax.random.normal(jax.random.key(7), (2,))
        if self.how == "nothing":
            return jnp.ones(2)
        return super().init(key)

    def draw(self, key: jax.Array, batch: int) -> jax.Array:
        if self.how == "numpy data":
            return jnp.asarray(RANDOM.normal(size=(batch, 2)), jnp.float32)
        if self.how == "seeded data":
            made = np.random.default_rng(0).normal(size=(batch, 2))
            return jnp.asarray(made, jnp.float32)
        if self.how == "own data":
            return jax.random.normal(jax.random.key(7), (batch, 2))
        if self.how in ("fixed data", "nothing", "all"):
            return jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)), jnp.float32)
        if self.how == "grid":
            return jnp.ones((batch, 2))
        return super().draw(key, batch)


def frozen(how: str) -> Sweep:
    return Sweep(Experiment(Frozen(how=how), dynsim.sgd(0.1), 2, 4), {"seed": [0, 1]})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("numpy weights", "Frozen.init: compiles to a different program each time"),
        ("numpy data", "Frozen.draw.*: compiles to a different program each time"),
        ("seeded data", "Frozen.draw: returns the same examples whatever its key"),
        ("own data", "Frozen.draw: returns the same examples whatever its key"),
        ("own weights", "Frozen.init: draws random weights without its key"),
        ("all", "Frozen.init: draws random weights without its key"),
        ("nothing", "neither Frozen.init nor Frozen.draw uses its key"),
    ],
)
@pytest.mark.more
def test_what_is_drawn_without_a_key_is_an_error(how: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        sweeps.run(frozen(how), tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.more
def test_a_program_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further sweep of it is traced once, to see that it is still the same."""
    made, traced = [], identity._hash
    monkeypatch.setattr(identity, "_hash", lambda *given: made.append(0) or traced(*given))
    traces = []
    for factor in (3.0, 3.0, 5.0):
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        identity.Identity(swept(), "cpu").check()
        traces.append(len(made))
    assert traces == [2, 3, 5]


@pytest.mark.parametrize("how", ["", "fixed data", "grid"])
@pytest.mark.more
def test_fixed_sets_and_keys_are_none(how: str) -> None:
    found = sweeps.run(frozen(how)).batch_loss.values
    assert found[0] != found[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of somebody's, found by this process and those that it starts."""
    file = tmp_path / "packages" / "edited_net.py"
    file.parent.mkdir()
    file.write_text(SESSION.partition("def go")[0])
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.setenv("PYTHONPATH", f"{file.parent}:{Path(__file__).parents[3]}")
    yield file
    sys.modules.pop("edited_net", None)


@contextlib.contextmanager
def pool(kind: str) -> Iterator[Executor]:
    """One worker that lives on, in a process of its own."""
    if kind == "processes":
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
            yield executor
        return
    distributed = pytest.importorskip("distributed", reason="needs Dask of the extra `test`")
    with contextlib.ExitStack() as stack:
        cluster = distributed.LocalCluster(1, threads_per_worker=1, dashboard_address=None)
        client = stack.enter_context(stack.enter_context(cluster).get_client())
        yield stack.enter_context(client.get_executor())


@pytest.mark.parametrize("kind", ["processes", pytest.param("dask", marks=pytest.mark.full)])
@pytest.mark.more
def test_a_worker_that_lives_on_is_found_out(kind: str, package: Path, tmp_path: Path) -> None:
    """It has imported a module before that was edited; and the sweep goes on by a new one. What the
    old one still writes after that does not stay."""

    def run(out: str, executor: Executor | None) -> Any:
        made = sys.modules["edited_net"]
        axes = {"eta": [0.1, 0.2], "seed": [0, 1]}
        sweep = Sweep(Experiment(made.Net(), dynsim.sgd(0.1), 2, 4), axes)
        return sweeps.run(sweep, tmp_path / out, executor=executor, chunk=2, tile=2).load()

    importlib.import_module("edited_net")
    with pool(kind) as executor:
        first = run("first", executor)
        package.write_text(package.read_text().replace("F = 1.0", "F = 50.0"))
        importlib.reload(sys.modules["edited_net"])
        with pytest.raises(StoreError, match="runs different code from this process"):
            run("second", executor)
    late, made = (Store.open(tmp_path / name) for name in ("second", "first"))
    region = made.layout.region(0)
    numbers = {name: made.chunks.read(name, 0) for name in made.names}
    late.write(region, numbers, program=made.chunks.record(0).program)
    with contextlib.nullcontext() if kind == "processes" else pool(kind) as executor:
        assert (run("second", executor).batch_loss > 20 * first.batch_loss).all()


@pytest.mark.more
def test_a_module_that_is_loaded_again_is_the_same_code(package: Path, tmp_path: Path) -> None:
    """Its classes and functions are other objects, and on disk only its layout is another one."""

    def run() -> Any:
        made = sys.modules["edited_net"]
        sweep = Sweep(Experiment(made.Net(), dynsim.sgd(0.1), 2, 4), {"seed": [0, 1]})
        return sweeps.run(sweep, tmp_path / "s").load()

    first = run() if importlib.import_module("edited_net") else None
    package.write_text(package.read_text().replace("F = 1.0", "\n\nF = (1.0)  # as before"))
    importlib.reload(sys.modules["edited_net"])
    assert run().identical(first)


RANDOM_FIELD = np.random.default_rng(0)


class Unrepeated(Net):
    """Its weights begin at numbers that differ each time it is built."""

    start: Any = None

    def build(self, rule: Any) -> "Unrepeated":
        return dataclasses.replace(self, start=jnp.asarray(RANDOM_FIELD.normal(size=2)))

    def init(self, key: jax.Array) -> jax.Array:
        return super().init(key) + self.start


def test_arrays_that_differ_each_time_they_are_built_are_an_error(tmp_path: Path) -> None:
    sweep = Sweep(Experiment(Unrepeated(), dynsim.sgd(0.1), 2, 4), {"seed": [0, 1]})
    with pytest.raises(ValueError, match=r"array start: Unrepeated has another value each time"):
        sweeps.run(sweep, tmp_path / "s")
    assert not (tmp_path / "s").exists()


class Keyed(Net):
    """Has a key among its arrays."""

    key: Any = None

    def build(self, rule: Any) -> "Keyed":
        return dataclasses.replace(self, key=jax.random.key(int(WIDE)))

    def init(self, key: jax.Array) -> jax.Array:
        return super().init(jax.random.fold_in(key, jax.random.bits(self.key)))


@pytest.mark.more
def test_a_key_that_a_problem_holds_is_compared_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(Experiment(Keyed(), dynsim.sgd(0.1), 2, 4), {"seed": [0, 1]})
    sweeps.run(sweep, tmp_path / "s")
    sweeps.run(sweep, tmp_path / "s")
    monkeypatch.setattr(sys.modules[__name__], "WIDE", 2.0)
    with pytest.raises(StoreError, match=r"array key [0-9a-f]{12} -> "):
        sweeps.run(sweep, tmp_path / "s")


def statuses(*chunks: list[list[int]]) -> SimpleNamespace:
    """A store of two axes whose chunks of 2 x 2 runs lie next to each other."""
    region = lambda number: (slice(0, 2), slice(2 * number, 2 * number + 2))
    read = lambda name, number: np.array(chunks[number]) if name == "status" else None
    store = SimpleNamespace(
        layout=SimpleNamespace(region=region), chunks=SimpleNamespace(read=read)
    )
    return SimpleNamespace(store=store)


def test_the_first_and_last_run_of_a_few_chunks_are_computed_again() -> None:
    good, none, one = [[0, 0], [0, 0]], [[1, 1], [1, 1]], [[1, 1], [0, 1]]
    cells = lambda *chunks: [*Agreement._cells(statuses(*chunks), range(len(chunks)))]
    assert cells(good) == [(0, 0), (1, 1)]
    # The first chunk, the last one and then others, until there are four.
    assert cells(good, good, good) == [(0, 0), (1, 1), (0, 4), (1, 5)]
    assert cells(one, good, none, good) == [(1, 0), (0, 6), (1, 7), (0, 2)]
    # Where nothing ended well, 16 chunks are looked at besides the last one.
    assert cells(*[none] * 16, good, none) == []
    assert cells(*[none] * 15, one, none) == [(1, 30)]


def test_the_number_of_runs_and_the_largest_difference_decide() -> None:
    names = ("status", "first_bad_step", "loss", "z")
    run = lambda loss: dict(zip(names, ([0], [-1], [loss], [1.0]), strict=True))
    stored = {0: run(1 + 2e-7), 1: run(1 + 5e-7), 2: run(1.0)}

    def again(cell: tuple[int], nudge: int) -> dict[str, np.ndarray]:
        assert nudge in (-4, 0, 4)
        found = {name: np.array(value) for name, value in run(1.0).items()}
        # Of the last run rounding carries everything too far.
        return {
            n: v * (1 + nudge * (cell == (2,))) if n in ("loss", "z") else v
            for n, v in found.items()
        }

    select = lambda name, at, done: np.array(stored[int(at[0][0])][name])
    store = SimpleNamespace(names=names, select=select, done=lambda: None)
    each = SimpleNamespace(
        store=store, _cells=lambda chunks: [(i,) for i in chunks], _again=again, _rounding=1e-6
    )
    decide = lambda *cells: Agreement._by_numbers(each, cells)
    for order in ((0, 1, 2), (1, 0)):
        assert decide(*order) == (2, pytest.approx(5e-7, rel=1e-6))
    with pytest.raises(ArithmeticError, match="no stored run can decide"):
        decide(2)
    each._rounding = 4e-7
    with pytest.raises(ArithmeticError, match="loss of a stored run differs by 5e-07 of its larg"):
        decide(1)


@pytest.mark.parametrize(
    ("dtype", "adaptive", "rtol", "want"),
    [
        ("float32", False, None, 64 * 2.0**-23),
        ("float64", False, 1e-3, 64 * 2.0**-52),
        # Ten times the tolerance of a solver.
        ("float64", True, 1e-3, 1e-2),
        ("float64", True, 1e-30, 64 * 2.0**-52),
        ("float64", True, None, 10 * DEFAULT_TOLERANCES["float64"].rtol),
    ],
)
def test_numbers_may_differ_by_rounding_or_by_a_solvers_tolerance(
    dtype: str, adaptive: bool, rtol: float | None, want: float
) -> None:
    sweep = SimpleNamespace(dtype=dtype, rtol=rtol, method=SimpleNamespace(adaptive=adaptive))
    found = Agreement._rounding.fget(SimpleNamespace(sweep=sweep))
    assert found == pytest.approx(want, rel=1e-12)


def test_of_several_other_programs_the_first_is_shown_and_the_rest_are_counted() -> None:
    others = [SimpleNamespace(mine=name, why=(f"program {name}",)) for name in "abc"]
    for number, words in (
        (3, "\n  and 2 more\n"),
        (2, "\n  and 1 more\n"),
        (1, "program a\nNothing"),
    ):
        each = SimpleNamespace(
            alone=False,
            compared=lambda number=number: (0, others[:number]),
            store=SimpleNamespace(name="s"),
        )
        with pytest.raises(StoreError) as error:
            Agreement.check(each)
        assert words in str(error.value)
        assert ("more" in str(error.value)) == (number > 1)


def test_programs_that_cannot_be_compared_by_their_trace_are_lowered_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity.traces, "form", lambda traced: None)
    hashes = [identity.Identity(swept(times=times), "cpu").text(()) for times in ((3,), (1, 3))]
    assert len(set(hashes)) == 2


def test_an_option_of_jax_that_changed_is_the_cause_and_no_method(tmp_path: Path) -> None:
    sweeps.run(swept(), tmp_path / "s")
    jax.config.update("jax_threefry_partitionable", False)
    try:
        with pytest.raises(StoreError, match="jax_threefry_partitionable True -> False") as found:
            sweeps.run(swept(), tmp_path / "s")
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    assert "draw" not in str(found.value)


def test_a_class_of_a_script_has_one_name_in_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawned workers call the module of the script `__mp_main__`, others import it."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    names = set()
    for module in ("__main__", "__mp_main__", "script"):
        monkeypatch.setattr(type(swept().first.problem), "__module__", module)
        names.add(registry.system_of(swept().first).name)
    assert len(names) == 1
