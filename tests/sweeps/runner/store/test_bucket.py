"""What buckets need in place of renames and locks: claims, leases, and requests sent again; and
answers of a server that are not what they seem."""

import contextlib
import datetime
import itertools
import json
import re
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import Sweep, cli, output
from sweeps.runner.config import create, files
from sweeps.runner.store import RECORDS, StoreError, bucket, leases
from sweeps.runner.store.bucket import Bucket
from sweeps.runner.store.storage import as_storage
from sweeps.runner.store.store import Store
from tests.sweeps.runner.store.places import (
    AXES,
    EMPTY,
    LAYOUT,
    VARIABLES,
    InBucket,
    Killed,
    at,
    filled,
    values,
)

obstore = pytest.importorskip("obstore", reason="needs obstore of the extra `test`")


@pytest.fixture
def address() -> str:
    """A place in the memory of this process, which knows conditions as buckets do."""
    return InBucket().out


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only waiting moves, and no lease but those asked for is renewed."""
    found = [0.0]
    monkeypatch.setattr(leases, "clock", lambda: found[0])
    for module in (bucket, leases):
        monkeypatch.setattr(module, "pause", lambda seconds: found.append(found.pop() + seconds))
    return found


def make(address: str, values: list[float]) -> None:
    """An empty store along `values`, which its configuration and coordinate hold; the sweep may be
    one that another process has begun to make."""
    sweep = Sweep(EMPTY.run, {**AXES, "eta_y": values}, record=("loss",), times=(0, 2))
    as_storage(address).create(files(sweep, LAYOUT, VARIABLES))


def inside(address: str) -> dict[str, bytes]:
    """What there is at an address, but for the group and the marker, which are of one store."""
    kept = InBucket()
    kept.path = str(Bucket(address).path)
    return {
        key: value
        for key, value in kept.files().items()
        if key != "zarr.json" and not key.startswith(RECORDS)
    }


def test_the_first_commit_of_a_chunk_counts(address: str) -> None:
    storage = filled(address).storage
    commits = [storage.commit(0, {"c/0": value}, value, lambda: None) for value in (b"1", b"2")]
    assert commits == [True, False]
    assert storage.read("c/0") == b"1"


def interrupted(
    monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object], create: Callable
) -> int:
    """Create while something else happens before put number `at`; returns the number of puts."""
    count, turn, put = itertools.count(1), threading.Lock(), Bucket.swap
    dead = []

    def counted(its: Bucket, *arguments: Any) -> Any:
        with turn:
            if dead:
                raise Killed
            if next(count) == at:
                try:
                    act()
                except Killed:
                    # Nothing is heard of what the dying do afterwards.
                    dead.append(True)
                    raise
            return put(its, *arguments)

    with monkeypatch.context() as during:
        during.setattr(Bucket, "swap", counted)
        create()
    return next(count) - 1


def die() -> None:
    raise Killed


def test_a_creation_that_is_killed_or_overtaken_anywhere_is_completed_or_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = AXES["eta_y"], [3.0, 4.0, 5.0, 6.0, 7.0]
    puts = interrupted(monkeypatch, 0, die, lambda: make(f"{address}/alone", mine))
    wanted, swap = inside(f"{address}/alone"), Bucket.swap
    assert puts > 5
    for at_put in range(1, puts + 1):
        out = f"{address}/killed-{at_put}"
        with pytest.raises(Killed):
            interrupted(monkeypatch, at_put, die, lambda out=out: make(out, mine))
        with pytest.raises(StoreError, match="no such sweep"):
            Store.open(out)
        if at_put > 1:
            with pytest.raises(FileExistsError, match="another process is creating"):
                make(out, other)
            with pytest.raises(FileExistsError, match="has been made by another"):
                make(out, mine)
            assert inside(out) == wanted
            assert Store.open(out).config["axes"]["eta_y"] == mine
        for others in (mine, other):
            out = f"{address}/overtaken-{at_put}-{others[0]}"

            def overtake(
                out: str = out, at_put: int = at_put, others: list[float] = others
            ) -> None:
                # Whoever has put the group, all files are those that it speaks of.
                late = pytest.raises(FileExistsError) if at_put > 1 else contextlib.nullcontext()
                with late, monkeypatch.context() as alone:
                    alone.setattr(Bucket, "swap", swap)
                    make(out, others)

            with pytest.raises(FileExistsError) if at_put == 1 else contextlib.nullcontext():
                interrupted(monkeypatch, at_put, overtake, lambda out=out: make(out, mine))
            assert Store.open(out).config["axes"]["eta_y"] == (others if at_put == 1 else mine)


def test_a_dead_writer_is_waited_for_and_one_that_was_stopped_finds_its_lease_gone(
    address: str, now: list[float]
) -> None:
    stopped, lines = filled(address), []
    first, second = (LAYOUT.region(number) for number in range(2))
    with stopped.storage.lock(0, 1, None) as stopped.check_lock:
        worker = Store.open(address)
        worker.check_lock = worker.storage.watch(stopped.storage.fence)
        stopped.write(first, at(first, 0))
        later = Store.open(address)
        with later.storage.lock(0, 1, lines.append) as later.check_lock:
            assert leases.DURATION <= now[0] <= leases.DURATION + 3
            assert "up to 60 s" in lines[0]
            for late in (stopped, worker):
                with pytest.raises(StoreError, match="another one writes here instead"):
                    late.write(second, at(second, 0))
            later.write(second, at(second, 0))
    with Store.open(address).storage.lock(0, 1, lines.append):
        assert len(lines) == 1, "a lease that was released is waited for by nobody"


def test_a_lease_is_renewed_early_enough_to_miss_a_turn(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, waits = leases.Lease(Bucket(address), "turn"), []
    held.take()

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return True

    stand_in = SimpleNamespace(Event=Event, Thread=threading.Thread)
    monkeypatch.setattr(leases, "threading", stand_in)
    with held.keep_alive():
        pass
    assert {*waits} == {20.0}


def lease(owner: str, seconds: float, token: str) -> bytes:
    about = {"owner": owner, "seconds": seconds, "token": token}
    return json.dumps({"dynsim_lease": about}).encode()


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """The keys of requests of a kind, from now on."""
    keys: list[str] = []
    act = getattr(Bucket, name)
    noted = lambda its, key, *more: (keys.append(key), act(its, key, *more))[1]
    monkeypatch.setattr(Bucket, name, noted)
    return keys


def test_a_lease_is_looked_at_after_ten_seconds_and_renewed_after_thirty(
    address: str, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Bucket(address)
    key = f"{where.path}-turn"
    writes, looks = counted(monkeypatch, "swap"), counted(monkeypatch, "look")
    held = leases.Lease(where, key)
    held.take()
    for now[0], number in ((30.0, 1), (30.1, 2), (60.1, 2), (60.2, 3)):
        held.check()
        assert (len(writes), held.version is not None) == (number, True)
    words = json.loads(where.look(key).value)["dynsim_lease"]
    assert (words["seconds"], words["token"], words["renewals"]) == (60, held.token, 2)
    watching = leases.Lease(where, key)
    watching.renewed = 100.0
    looks.clear()
    for now[0], seen in ((110.0, 0), (110.1, 1), (120.1, 1), (120.2, 2)):
        watching.require(held.token)
        assert len(looks) == seen
    now[0] = 131.0
    for found in (lease("me", 60, "another"), leases.RELEASED):
        where.bucket.put(key, found)
        with pytest.raises(StoreError, match="another one writes here instead"):
            watching.require(held.token)
    with pytest.raises(StoreError, match="another one writes here instead"):
        held.check()


@pytest.mark.parametrize(("seconds", "longest"), [(60.0, 60.0), (1e9, 600.0), (4.0, 4.0)])
def test_a_lease_of_others_is_waited_for_but_not_for_ever(
    seconds: float,
    longest: float,
    address: str,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, said = Bucket(address), []
    key = f"{where.path}-turn"
    where.swap(key, lease("somebody", seconds, "theirs"), None)
    looks = counted(monkeypatch, "look")
    leases.Lease(where, key).take(said.append)
    assert f"{longest:g} s for the lease of somebody" in said[0]
    # It looks every second, or twenty times.
    often = min(1.0, longest / 20)
    assert now[0] == pytest.approx(longest, abs=often)
    assert len(looks) == pytest.approx(longest / often, abs=2)
    where.bucket.put(key, b"{}")
    with pytest.raises(StoreError, match="is not a lease of dynsim"):
        leases.Lease(where, key).take(said.append)


@pytest.mark.parametrize(("held", "asked"), [((0, 1), (0, 1)), ((1, 3), (0, 1)), ((0, 1), (1, 2))])
def test_a_second_writer_of_a_bucket_raises_an_error(
    held: tuple[int, int],
    asked: tuple[int, int],
    address: str,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, other = filled(address).storage, Store.open(address).storage
    # Who waits sees the lease renewed, as it is by a holder that is alive.
    alive, take = [], leases.Lease.take
    monkeypatch.setattr(leases.Lease, "take", lambda its, *more: (take(its), alive.append(its)))
    pause = leases.pause
    monkeypatch.setattr(leases, "pause", lambda s: (pause(s), [its.renew() for its in alive]))
    mine, theirs = where.lock(*held, None), other.lock(*asked, None)
    refused = pytest.raises(StoreError, match="another process is writing")
    with mine, refused, theirs:
        pass
    assert now == [1.0]
    with where.lock(0, 2, None), other.lock(1, 2, None):
        pass


def test_a_reader_asks_once_for_each_array_of_a_chunk_and_once_for_its_record(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(address, 0, 3, 5)
    asked = counted(monkeypatch, "look")
    sweeps.open(address).load()
    chunks = [key for key in asked if re.search(r"/\w+/c/\d/\d(/0)*$|/[0-9]+\.json$", key)]
    # The statuses are in the record.
    assert len(chunks) == len(set(chunks)) == len(VARIABLES) * 3


def test_whether_a_store_is_there_is_asked_once_a_second(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(address)
    asked, where = counted(monkeypatch, "look"), store.storage
    asked.clear()
    for now, number in ((100.0, 1), (101.0, 1), (101.1, 2), (102.0, 2), (102.2, 3)):
        monkeypatch.setattr(bucket.time, "monotonic", lambda now=now: now)
        where.check_exists()
        assert len(asked) == number
    where.remove(f"{where.records}/made")
    monkeypatch.setattr(bucket.time, "monotonic", lambda: 200.0)
    with pytest.raises(StoreError, match="has been moved or removed"):
        where.check_exists()


@pytest.mark.parametrize(
    ("number", "how"),
    [(n, how) for how, last in (("", 6), ("left", 11), ("same", 6)) for n in range(1, last + 1)],
)
def test_a_put_that_comes_after_the_lease_has_ended_changes_nothing(
    number: int, how: str, address: str, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two writers of a chunk, the put of this number of the first one arrives when the second
    one has waited for its lease and has written other values; or has the `same` lease, as two
    workers of one driver."""
    count, put = itertools.count(1), obstore.put
    first, second = filled(address), Store.open(address)
    # Puts at the same time would renew the lease while the late one stands still.
    monkeypatch.setattr(type(first.storage), "streams", 1)
    region = LAYOUT.region(0)
    for key in first.chunks.keys(0).values() if how == "left" else ():
        # Of a third writer, without a record: put over, where it has not changed since.
        put(first.storage.bucket, f"{first.storage.path}/{key}", b"left")
    second.register_environment()

    def late(bucket: Any, key: str, value: bytes, **options: Any) -> Any:
        if ".writers" not in key and ".made" not in key and next(count) == number:
            if how == "same":
                second.write(region, at(region, 2))
            else:
                with second.storage.lock(0, 1, lambda line: None) as second.check_lock:
                    second.write(region, at(region, 2))
        return put(bucket, key, value, **options)

    with first.storage.lock(0, 1, None) as first.check_lock:
        monkeypatch.setattr(obstore, "put", late)
        with contextlib.suppress(StoreError):
            first.write(region, at(region, 1))
    assert next(count) > number
    Store.open(address).verify()
    found = sweeps.open(address)
    for name, array in values(2).items():
        np.testing.assert_array_equal(found[name].values[region], array[region])


def test_a_put_whose_answer_was_lost_is_known_as_ones_own(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Requests are sent again at once.
    soon = datetime.timedelta(milliseconds=1)
    backoff = {"init_backoff": soon, "max_backoff": 10 * soon, "base": 2}
    monkeypatch.setattr(bucket, "RETRIES", bucket.RETRIES | {"backoff": backoff})
    where, key = Bucket("s3://bucket/any"), uuid.uuid4().hex
    s3.control(every=2)
    first = where.swap(key, b"first", None)
    second = where.swap(key, b"second", first)
    third = where.swap(key, b"third", second)
    assert third == where.look(key).version
    for version in (None, first):
        assert where.swap(key, b"another", version) is None
    assert where.look(key).value == b"third"


@pytest.mark.parametrize(("put", "times"), [(409, 2), (409, -1), (404, -1)])
def test_the_answer_to_a_put_is_not_taken_for_what_is_there(
    put: int, times: int, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(bucket, "RETRIES", {**bucket.RETRIES, "max_retries": 2})
    monkeypatch.setattr(bucket, "pause", waits.append)
    where, key = Bucket("s3://bucket/any"), uuid.uuid4().hex
    first = where.swap(key, b"first", None)
    for version, its in ((first, key), (None, uuid.uuid4().hex)):
        s3.control(put=put, times=times)
        if times > 0:
            assert where.swap(its, b"second", version) == where.look(its).version
            # For one of the two conditions obstore tries again by itself.
            assert len(waits) in (0, 2)
        elif (put, version) != (404, first):
            with pytest.raises(StoreError, match=f"s3://bucket/any: cannot be reached .*{put}"):
                where.swap(its, b"third", version)


# 500 to all requests, or a web page.
@pytest.mark.parametrize("how", ["every", "page"])
def test_an_outage_or_a_web_page_is_not_called_damage(
    how: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "RETRIES", {"max_retries": 0})
    out = f"s3://bucket/{uuid.uuid4().hex}"
    store = filled(out, 0)
    region = LAYOUT.region(1)
    s3.control(**{how: 1})
    for use in (
        store.verify,
        lambda: store.dataset().load(),
        lambda: Store.open(out),
        lambda: sweeps.run(EMPTY, out),
        lambda: create(out, EMPTY, LAYOUT, VARIABLES),
        *([lambda: store.write(region, at(region, 0))] if how == "every" else []),
    ):
        with pytest.raises(StoreError, match=r"be reached|be read|/made is missing") as failure:
            use()
        assert not re.search("damaged|Delete|something other", str(failure.value))
    s3.control()
    store.write(region, at(region, 0))
    Store.open(out).verify()


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_bucket_that_ignores_conditions_is_seen_when_a_sweep_is_created(
    condition: str, s3: Any
) -> None:
    kept = InBucket("s3://bucket")
    s3.control(blind=condition.upper().replace("-", "_"))
    with pytest.raises(StoreError, match=f"{kept.out}: .* {condition} "):
        filled(kept.out)
    assert not kept.files()


@pytest.mark.more
def test_the_commands_read_and_write_a_bucket(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(
        'record = ["entropy", "loss"]\naxes = {eta_y = [0.5, 1], seed = [0, 3]}\n'
        'run = {problem = "yz", steps = 2, length = 8, batch = 4}\n'
    )
    out = f"s3://bucket/{uuid.uuid4().hex}/small"
    for words in (
        ["sweep", "s.toml", "--out", out],
        ["plot", out, "--x", "eta_y", "--observable", "loss"],
        ["export", out],
        ["info", out],
    ):
        assert cli.main(words) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"s.toml", "small.nc", "out"}
    # The option --out of a figure is a path; its sweeps are in the bucket, its files in a folder.
    assert sweeps.open(Path(out)).equals(sweeps.open(out))
    (written,) = output.write(Path(out), "picture", arrays={"y": np.ones(2)})
    assert written == Path("out/small/picture.npz")
    assert cli.main(["info", "s3://no-such-bucket/run"]) == 2
    assert "s3://no-such-bucket/run" in capsys.readouterr().err
