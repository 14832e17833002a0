"""What buckets need in place of renames and locks: claims, leases, and requests sent again."""

import contextlib
import datetime
import json
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import Sweep, cli, experiment, output
from sweeps.runner.run import files
from sweeps.runner.store import RECORDS, Layout, StoreError, Variable, bucket
from sweeps.runner.store.bucket import Bucket
from sweeps.runner.store.place import place
from sweeps.runner.store.store import Store

pytest.importorskip("obstore", reason="needs obstore of the extra `test`")

SWEEP = Sweep(
    experiment(steps=2, length=8, batch=4), {"eta_y": {"linspace": [0.1, 4, 20]}}, record=("loss",)
)


@pytest.fixture
def address() -> str:
    """A place in the memory of this process, which knows conditions as buckets do."""
    return f"memory://runs/{uuid.uuid4().hex}"


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that only waiting moves, and no lease but those asked for is renewed."""
    now = [0.0]
    monkeypatch.setattr(bucket, "clock", lambda: now[0])
    monkeypatch.setattr(bucket, "pause", lambda seconds: now.append(now.pop() + seconds))
    return now


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are sent again at once."""
    soon = datetime.timedelta(milliseconds=1)
    backoff = {"init_backoff": soon, "max_backoff": 10 * soon, "base": 2}
    monkeypatch.setattr(bucket, "RETRIES", bucket.RETRIES | {"backoff": backoff})


def create(address: str, values: list[float]) -> None:
    """An empty store of a sweep along `values`, which its configuration and coordinate hold."""
    variables = {
        name: Variable((), (), np.dtype(kind)) for name, kind in (("y", "f4"), ("status", "i1"))
    }
    sweep = Sweep(SWEEP.run, {"eta_y": values}, record=("loss",))
    place(address).create(files(sweep, Layout((len(values),), (1,)), variables))


def inside(address: str) -> dict[str, bytes]:
    """What there is at an address, but for the group and the marker, which are of one store."""
    bucket = Bucket(address)
    keys = [
        each["path"].removeprefix(f"{bucket.path}/") for each in bucket.listed(str(bucket.path))
    ]
    kept = [key for key in keys if key != "zarr.json" and not key.startswith(RECORDS)]
    return {key: bucket.look(f"{bucket.path}/{key}").value for key in kept}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://bucket/run", "ftp://bucket/run: must be a folder, or a folder in a bucket: s3://"),
        ("s3://Bucket/run", "with a bucket of lower-case letters"),
        ("s3://key:secret@bucket/run", "credentials come from the environment"),
        ("gs://bucket/", "gs://bucket/: must be"),
        ("az://bucket/a/../b", "must be"),
        ("memory://a?b", "must be"),
        (Path("s3://Bucket/run"), "s3://Bucket/run: must be"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_by_name(address: Any, message: str) -> None:
    for use in (sweeps.open, lambda where: sweeps.run(SWEEP, where)):
        with pytest.raises(ValueError, match=re.escape(message)):
            use(address)


@pytest.mark.full("test_the_commands_read_and_write_a_bucket")
def test_a_figure_keeps_its_sweeps_in_a_bucket_and_its_files_in_a_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # As the option --out of a figure, which is a path, and goes on from there.
    out = Path(f"{address}/fig")
    found = sweeps.run(SWEEP, out / "simulation")
    assert sweeps.open(f"{address}/fig/simulation").equals(found)
    (written,) = output.write(out, "picture", arrays={"y": np.ones(2)})
    assert written == Path("out/fig/picture.npz")
    assert {p.name for p in tmp_path.iterdir()} == {"out"}


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=re.escape('pip install "dynsim[cloud]"')):
        sweeps.open("s3://bucket/run")


SWAP = Bucket.swap


class Killed(BaseException):
    """Stands for what ends a process without a word."""


def interrupted(
    monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object], create: Callable
) -> int:
    """Create while something else happens before put number `at`; returns the number of puts."""
    count, turn = [0], threading.Lock()

    def counted(its: Bucket, *arguments: Any) -> Any:
        with turn:
            count[0] += 1
            if count[0] == at:
                act()
            if act is die and 0 < at <= count[0]:
                # Nothing is heard of what the dying do afterwards.
                raise Killed
            return SWAP(its, *arguments)

    with monkeypatch.context() as during:
        during.setattr(Bucket, "swap", counted)
        create()
    return count[0]


def die() -> None:
    """Stands for a kill."""


def test_a_creation_that_is_killed_or_overtaken_anywhere_is_completed_or_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = [1.0, 2.0], [3.0, 4.0, 5.0]
    puts = interrupted(monkeypatch, 0, die, lambda: create(f"{address}/alone", mine))
    wanted = inside(f"{address}/alone")
    assert puts > 5

    def completed(place: str) -> None:
        with pytest.raises(FileExistsError, match="has been made by another"):
            create(place, mine)
        assert inside(place) == wanted
        assert Store.open(place).config["axes"] == {"eta_y": mine}

    def overtaken(place: str, at: int, values: list[float]) -> None:
        """Somebody else makes a sweep of `values` before put number `at`."""

        def overtake() -> None:
            # Whoever has put the group, all files are those that it speaks of.
            late = pytest.raises(FileExistsError) if at > 1 else contextlib.nullcontext()
            with late, monkeypatch.context() as alone:
                alone.setattr(Bucket, "swap", SWAP)
                create(place, values)

        with pytest.raises(FileExistsError) if at == 1 else contextlib.nullcontext():
            interrupted(monkeypatch, at, overtake, lambda: create(place, mine))

    for at in range(1, puts + 1):
        place = f"{address}/killed-{at}"
        with pytest.raises(Killed):
            interrupted(monkeypatch, at, die, lambda place=place: create(place, mine))
        with pytest.raises(StoreError, match="no such sweep"):
            Store.open(place)
        if at > 1:
            with pytest.raises(FileExistsError, match="another process is creating a sweep"):
                create(place, other)
            completed(place)
        for values in (mine, other):
            place = f"{address}/overtaken-{at}-{len(values)}"
            overtaken(place, at, values)
            assert Store.open(place).config["axes"] == {"eta_y": values if at == 1 else mine}
            assert values == other or inside(place) == wanted


def test_two_creators_of_one_sweep_make_one_store(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "pause", lambda _: None)
    for _ in range(3):
        address += "x"
        start = threading.Barrier(4)

        def make(number: int, place: str = address, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                create(place, [1.0, 2.0])
            except FileExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(make, range(4))) == 1
        assert Store.open(address).config["axes"] == {"eta_y": [1.0, 2.0]}


def test_a_dead_writer_is_waited_for_and_one_that_was_stopped_finds_its_lease_gone(
    address: str, quiet: list[float]
) -> None:
    create(address, [1.0, 2.0])
    stopped, lines = Store.open(address), []
    first, second = ((slice(at, at + 1),) for at in range(2))
    arrays = {"y": np.ones(1, "f4"), "status": np.zeros(1, "i1")}
    with stopped.place.lock(0, 1, None) as stopped.held:
        worker = Store.open(address)
        worker.held = worker.place.watch(stopped.place.fence)
        stopped.write(first, arrays)
        later = Store.open(address)
        with later.place.lock(0, 1, lines.append) as later.held:
            assert bucket.SECONDS <= quiet[0] <= bucket.SECONDS + 3
            assert re.fullmatch(r"memory://.*: waiting up to 60 s for the lease of .*", *lines)
            for late in (stopped, worker):
                with pytest.raises(StoreError, match="another one writes here instead"):
                    late.write(second, arrays)
            later.write(second, arrays)
    with Store.open(address).place.lock(0, 1, lines.append):
        assert len(lines) == 1, "a lease that was released is waited for by nobody"


def test_a_lease_is_renewed_early_enough_to_miss_a_turn(
    address: str, record_waits: Callable[[], list[float]]
) -> None:
    create(address, [1.0])
    place = Bucket(address)
    held = bucket.Lease(place, f"{place.path}/turn")
    held.take()
    waits = record_waits()
    with held.kept():
        pass
    assert {*waits} == {20.0}


class Objects:
    """One object of a bucket, which counts who looks and who writes."""

    name = "a bucket"

    def __init__(self, value: bytes | None = None) -> None:
        self.found = None if value is None else bucket.StoredObject(value, 0)
        self.looks = self.writes = 0

    def look(self, key: str) -> Any:
        self.looks += 1
        return self.found

    def swap(self, key: str, value: bytes, version: Any) -> int:
        self.writes += 1
        self.found = bucket.StoredObject(value, self.writes)
        return self.writes


def lease(owner: str, seconds: float, token: str) -> bytes:
    about = {"owner": owner, "seconds": seconds, "token": token}
    return json.dumps({"dynsim_lease": about}).encode()


def test_a_lease_is_looked_at_after_ten_seconds_and_renewed_after_thirty(
    quiet: list[float],
) -> None:
    objects: Any = Objects()
    held = bucket.Lease(objects, "turn")
    held.take()
    for now, writes in ((30.0, 1), (30.1, 2), (60.1, 2), (60.2, 3)):
        quiet[0] = now
        held.check()
        assert (objects.writes, held.held) == (writes, True)
    words = json.loads(objects.found.value)["dynsim_lease"]
    assert (words["seconds"], words["token"], words["renewals"]) == (60, held.token, 2)
    watching = bucket.Lease(objects, "turn")
    watching.renewed, looks = 100.0, objects.looks
    for now, seen in ((110.0, 0), (110.1, 1), (120.1, 1), (120.2, 2)):
        quiet[0] = now
        watching.require(held.token)
        assert objects.looks - looks == seen
    quiet[0] = 131.0
    for found in (lease("me", 60, "another"), bucket.FREE):
        objects.found = bucket.StoredObject(found, 9)
        with pytest.raises(StoreError, match="another one writes here instead"):
            watching.require(held.token)
    held.release()
    assert objects.found.value == bucket.FREE
    with pytest.raises(StoreError, match="another one writes here instead"):
        held.check()


@pytest.mark.parametrize(("seconds", "longest"), [(60.0, 60.0), (1e9, 600.0), (4.0, 4.0)])
def test_a_lease_of_others_is_waited_for_but_not_for_ever(
    quiet: list[float], seconds: float, longest: float
) -> None:
    objects: Any = Objects(lease("somebody", seconds, "theirs"))
    said: list[str] = []
    bucket.Lease(objects, "turn").take(said.append)
    assert said == [f"a bucket: waiting up to {longest:g} s for the lease of somebody to expire"]
    # It looks every second, or twenty times.
    assert quiet[0] == pytest.approx(longest, abs=min(1.0, longest / 20))
    assert objects.looks == pytest.approx(longest / min(1.0, longest / 20), abs=2)
    assert objects.writes == 1
    with pytest.raises(StoreError, match=r"^turn: is not a lease of dynsim$"):
        bucket.Lease(Objects(b"{}"), "turn").take(said.append)  # pyright: ignore


def test_who_renews_is_not_waited_for(quiet: list[float]) -> None:
    objects: Any = Objects(lease("somebody", 60, "theirs"))
    look = objects.look

    def renewed(key: str) -> Any:
        if objects.looks == 3:
            objects.found = bucket.StoredObject(lease("somebody", 60, "theirs"), 7)
        return look(key)

    objects.look = renewed
    with pytest.raises(StoreError, match=r"another process is writing here \(somebody; turn\)$"):
        bucket.Lease(objects, "turn").take(lambda line: None)
    assert (quiet[0], objects.writes) == (3.0, 0)


def test_requests_are_sent_again_for_minutes() -> None:
    seconds = lambda each: each.total_seconds()
    backoff = bucket.RETRIES["backoff"]
    assert (bucket.RETRIES["max_retries"], seconds(bucket.RETRIES["retry_timeout"])) == (10, 180)
    assert (seconds(backoff["init_backoff"]), seconds(backoff["max_backoff"])) == (0.1, 15)
    assert backoff["base"] == 2


def test_a_reader_asks_once_for_each_array_of_a_chunk_and_once_for_its_record(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(address, [0.1, 0.2, 0.3])
    store, asked = Store.open(address), []
    for i in range(3):
        store.write((slice(i, i + 1),), {"y": np.ones(1, "f4"), "status": np.zeros(1, "i1")})
    look = Bucket.look

    def noted(its: Bucket, key: str, *most: int) -> Any:
        asked.append(key)
        return look(its, key, *most)

    monkeypatch.setattr(Bucket, "look", noted)
    found = Store.open(address).dataset().load()
    assert (found.status == 0).all()
    assert (found.y == 1).all()
    chunks = [key for key in asked if re.search(r"/(y|status)/c/|/[0-9]+\.json$", key)]
    assert len(chunks) == len(set(chunks)) == 2 * 3


def test_conditions_hold_when_many_ask_at_once(s3: Any) -> None:
    bucket = Bucket("s3://bucket/any")
    key, each = uuid.uuid4().hex, 5

    def words(process: int, total: int) -> bytes:
        return json.dumps({"by": process, "sum": total}).encode()

    def add(process: int) -> bool:
        first = bucket.swap(key, words(process, 0), None) is not None
        for _ in range(each):
            added = None
            while added is None:
                found = bucket.look(key)
                total = json.loads(found.value)["sum"] + 1
                added = bucket.swap(key, words(process, total), found.version)
        return first

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(add, range(4))) == 1
    assert json.loads(bucket.look(key).value)["sum"] == 4 * each


def test_a_put_whose_answer_was_lost_is_known_as_ones_own(s3: Any, hasty: None) -> None:
    bucket, key = Bucket("s3://bucket/any"), uuid.uuid4().hex
    s3.control(every=2)
    first = bucket.swap(key, b"first", None)
    second = bucket.swap(key, b"second", first)
    third = bucket.swap(key, b"third", second)
    assert third == bucket.look(key).version
    for version in (None, first):
        assert bucket.swap(key, b"another", version) is None
    assert bucket.look(key).value == b"third"


# Hundreds of requests.
@pytest.mark.full(
    "test_a_put_whose_answer_was_lost_is_known_as_ones_own",
    "test_the_commands_read_and_write_a_bucket",
)
def test_a_bucket_that_answers_500_now_and_then_holds_what_a_folder_holds(
    s3: Any, hasty: None, tmp_path: Path
) -> None:
    out = f"s3://bucket/{uuid.uuid4().hex}"
    s3.control(every=7)
    found, wanted = (sweeps.run(SWEEP, at, chunk=2, tile=2) for at in (out, tmp_path / "s"))
    assert found.identical(wanted)
    # But for the ids of the stores.
    files = {
        str(path.relative_to(tmp_path / "s")): path.read_bytes()
        for path in (tmp_path / "s").rglob("*")
        if path.is_file() and RECORDS not in str(path) and path.parent != tmp_path / "s"
    }
    assert len(files) > 20
    there = inside(out)
    assert there.keys() == files.keys()
    assert all(there[key] == files[key] for key in files if ".programs" not in key)


@pytest.mark.more
def test_a_bucket_that_cannot_be_reached_is_not_called_damaged(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "RETRIES", {"max_retries": 0})
    out = f"s3://bucket/{uuid.uuid4().hex}"
    whole = sweeps.run(SWEEP, out, chunk=10, tile=2).load()
    store = Store.open(out)
    s3.control(every=1)
    for use in (store.verify, lambda: Store.open(out), lambda: sweeps.run(SWEEP, out)):
        with pytest.raises(StoreError, match=r"could not be read|cannot be reached") as failure:
            use()
        assert "damaged" not in str(failure.value)
    s3.control()
    write = Store.write

    def failing(its: Store, *arguments: Any) -> None:
        s3.control(every=1)
        write(its, *arguments)

    with monkeypatch.context() as during:
        during.setattr(Store, "write", failing)
        with pytest.raises(StoreError, match=r"a chunk could not be written .*500"):
            sweeps.run(SWEEP, f"{out}-2", chunk=10, tile=2)
    s3.control()
    assert sweeps.open(out).equals(whole)


@pytest.mark.more
def test_the_commands_read_and_write_a_bucket(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(
        'record = ["loss"]\naxes.eta_y = [0.5, 1]\n'
        'run = {problem = "yz", steps = 2, length = 8, batch = 4}\n'
    )
    out = f"s3://bucket/{uuid.uuid4().hex}/small"
    assert cli.main(["sweep", "s.toml", "--out", out]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    assert cli.main(["info", out, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["path"], about["runs_done"]) == (out, 2)
    assert cli.main(["plot", out, "--x", "eta_y", "--observable", "loss"]) == 0
    assert cli.main(["export", out]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"s.toml", "small.nc", "out"}
    assert cli.main(["info", "s3://no-such-bucket/run"]) == 2
    assert "s3://no-such-bucket/run: cannot be reached" in capsys.readouterr().err
