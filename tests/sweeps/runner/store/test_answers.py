"""Answers of a server that are not what they seem: conflicts, web pages, ignored conditions."""

import re
import uuid
from typing import Any

import pytest

import sweeps
from sweeps import Sweep, experiment
from sweeps.runner.run import create
from sweeps.runner.store import Layout, StoreError
from sweeps.runner.store import bucket as buckets
from sweeps.runner.store.bucket import Bucket
from sweeps.runner.store.store import Store

pytest.importorskip("obstore", reason="needs obstore of the extra `test`")

SWEEP = Sweep(
    experiment(steps=2, length=8, batch=4), {"eta_y": {"linspace": [0.1, 4, 20]}}, record=("loss",)
)


@pytest.mark.parametrize(("put", "times"), [(409, 2), (409, -1), (404, -1)])
@pytest.mark.more
def test_the_answer_to_a_put_is_not_taken_for_what_is_there(
    put: int, times: int, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(buckets, "RETRIES", {**buckets.RETRIES, "max_retries": 2})
    monkeypatch.setattr(buckets, "pause", waits.append)
    bucket, key = Bucket("s3://bucket/any"), uuid.uuid4().hex
    first = bucket.swap(key, b"first", None)
    for version, its in ((first, key), (None, uuid.uuid4().hex)):
        s3.control(put=put, times=times)
        if times > 0:
            assert bucket.swap(its, b"second", version) == bucket.look(its).version
            # For one of the two conditions obstore tries again by itself.
            assert len(waits) in (0, 2)
        elif (put, version) != (404, first):
            with pytest.raises(StoreError, match=f"s3://bucket/any: cannot be reached .*{put}"):
                bucket.swap(its, b"third", version)


def test_a_put_is_tried_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing is there the server says that it is; and of its words, so many are shown."""
    waits: list[float] = []
    monkeypatch.setattr(buckets, "pause", waits.append)
    bucket = Bucket(f"memory://runs/{uuid.uuid4().hex}")

    class Full:
        puts = 0

        def put(self, *_: object, **__: object) -> None:
            self.puts += 1
            raise bucket.lost[0]("y" * 401 + "\nand more")

        def get(self, key: str) -> None:
            raise FileNotFoundError(key)

    bucket.bucket = Full()
    with pytest.raises(StoreError, match=r"cannot be reached \(y{400}\)$"):
        bucket.swap("key", b"value", None)
    assert bucket.bucket.puts == 5
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_whether_a_store_is_there_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, asked = Bucket(f"memory://runs/{uuid.uuid4().hex}"), []
    bucket.records = "records"
    monkeypatch.setattr(bucket, "read", lambda key: asked.append(key) or b"")
    for now, number in ((100.0, 1), (101.0, 1), (101.1, 2), (102.0, 2), (102.2, 3)):
        monkeypatch.setattr(buckets.time, "monotonic", lambda now=now: now)
        bucket.own()
        assert asked == ["records/made"] * number
    monkeypatch.setattr(bucket, "read", lambda key: None)
    monkeypatch.setattr(buckets.time, "monotonic", lambda: 200.0)
    with pytest.raises(StoreError):
        bucket.own()


@pytest.mark.more
def test_a_web_page_in_place_of_a_bucket_is_an_outage(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "RETRIES", {"max_retries": 0})
    out = f"s3://bucket/{uuid.uuid4().hex}"
    sweeps.run(SWEEP, out, chunk=10, tile=2)
    store = Store.open(out)
    s3.control(page=1)
    for use in (
        store.verify,
        lambda: store.dataset().load(),
        lambda: Store.open(out),
        lambda: sweeps.run(SWEEP, out),
        lambda: create(out, SWEEP, Layout((20,), (1,)), {}),
    ):
        with pytest.raises(StoreError, match=r"be reached|be read|/made is missing") as failure:
            use()
        assert not re.search("damaged|Delete|something other", str(failure.value))


@pytest.mark.parametrize("blind", ["IF_NONE_MATCH", "IF_MATCH"])
def test_a_bucket_that_ignores_conditions_is_seen_when_a_sweep_is_created(
    blind: str, s3: Any
) -> None:
    out = f"s3://bucket/{uuid.uuid4().hex}"
    s3.control(blind=blind)
    condition = {"IF_NONE_MATCH": "If-None-Match", "IF_MATCH": "If-Match"}[blind]
    with pytest.raises(StoreError, match=f"{out}: the server ignores the condition {condition}"):
        sweeps.run(SWEEP, out)
    # But for the lease, nothing is left.
    left = [
        each["path"] for each in Bucket(out).listed("") if out.rpartition("/")[2] in each["path"]
    ]
    assert all(".writers/" in path for path in left)


def test_what_is_no_group_is_no_sweep_to_complete() -> None:
    address = f"memory://runs/{uuid.uuid4().hex}"
    for group in (b"", b"null", b"{}", b'{"attributes": {}}', b"words"):
        bucket = Bucket(address)
        bucket.swap(f"{bucket.path}/zarr.json", group, None)
        with pytest.raises(StoreError, match="holds something other than a sweep"):
            create(address, SWEEP, Layout((20,), (1,)), {})
        bucket.remove("zarr.json")
