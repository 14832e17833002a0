"""No damage goes unseen, and no store runs code: flipped bits, lost files, strange metadata."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sweeps
from sweeps import StoreError, Sweep, cli, experiment, output
from sweeps.runner.store import MARKER, RECORDS, manifest, sha
from sweeps.runner.store.store import Store
from tests.sweeps.runner.store.damage import SWEEP, Damage, deletions, flip, flips


@pytest.fixture(scope="module")
def damage(tmp_path_factory: pytest.TempPathFactory) -> Damage:
    return Damage(tmp_path_factory.mktemp("damage"), ("open", "info", "check"))


@pytest.fixture
def group(damage: Damage, tmp_path: Path) -> Path:
    """The zarr.json of a copy of the store."""
    return shutil.copytree(damage.out, tmp_path / "copy") / "zarr.json"


def assert_seen(counts: dict[str, int], ways: int, *told: str) -> None:
    assert {each.split(": ")[1] for each in counts} <= {"error", *told}
    assert len({each.split(": ")[0] for each in counts}) == ways


@pytest.mark.more
def test_flipped_bits_and_lost_files_are_errors_that_name_the_file(damage: Damage) -> None:
    assert_seen(flips(damage, 25), 3, "same")
    records = Store.open(damage.out).place.records
    some = ["zarr.json", "eta_y/zarr.json", "eta_y/c/0", "time/c/0/0", "loss/zarr.json"]
    counts = deletions(damage, [*some, f"{records}/{MARKER}"])
    assert_seen(counts, 3)
    assert sum(counts.values()) == 3 * (len(some) + 1)
    # What runs ended with the records know as well.
    for key, opened in (("loss/c/0/0/1/0", "error"), ("status/c/0/0/0", "same")):
        counts = {f"open: {opened}": 1, "info: same": 1, "check: error": 1}
        assert deletions(damage, [key]) == counts
    assert_seen(deletions(damage, [f"{records}/0.json"]), 3, "not computed")
    (made,) = (key for key in damage.keys if key.startswith("status/.made"))
    assert deletions(damage, [made]) == {"open: same": 1, "info: error": 1, "check: error": 1}
    for way, told in (("info", "error"), ("check", "error"), ("open", "same")):
        with damage.damaged(made, flip(100)):
            assert damage.seen(made, way) == told


# Each in all ways, of which resuming and drawing take their time.
@pytest.mark.full("test_flipped_bits_and_lost_files_are_errors_that_name_the_file")
def test_a_thousand_flips_and_every_lost_file_are_seen_in_all_ways(tmp_path: Path) -> None:
    damage = Damage(tmp_path)
    assert_seen(flips(damage, 1000, seed=1), 6, "same")
    # A sweep that goes on computes what is gone anew, to the same numbers.
    assert_seen(deletions(damage, damage.keys), 6, "same", "not computed")


def test_a_chunk_that_lost_a_file_is_computed_anew(damage: Damage, tmp_path: Path) -> None:

    out = shutil.copytree(damage.out, tmp_path / "copy")
    gone = ["loss/c/0/0/1/0", "first_bad_step/c/1/0/0"]
    for key in gone:
        (out / key).unlink()
    (out / "entropy/c/1/1/1/0").write_bytes(b"")
    lines: list[str] = []
    assert sweeps.run(SWEEP, out, report=lines.append).identical(damage.whole["open"])
    assert any(
        "3 files of complete chunks are missing, such as entropy/c/1/1/1/0" in line
        for line in lines
    )
    for key in damage.keys:
        # The records of the chunks that were computed anew say how long that took.
        if not key.startswith(RECORDS):
            assert (out / key).read_bytes() == damage.files[key], key


def rewritten(group: Path, change: Callable[[dict], object]) -> None:
    about = json.loads(group.read_bytes())
    change(about)
    group.write_text(json.dumps(about))


def resealed(out: Path) -> None:
    """Digests as somebody would make them who wants to be believed."""
    files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    group = json.loads(files["zarr.json"])
    sealed = group["attributes"][manifest.SEAL]
    sealed["files"] = {key: sha(files[key]) for key in sealed["files"]}
    sealed["digest"] = manifest._digest(group)
    (out / "zarr.json").write_text(json.dumps(group))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a["codecs"].insert(0, {"name": "numcodecs.pickle", "configuration": {}}),
        lambda a: a.update(codecs=[{"name": "sharding_indexed", "configuration": {}}]),
        lambda a: a.update(data_type={"name": "object", "configuration": {}}),
        lambda a: a.update(data_type="string"),
        lambda a: a.update(zarr_format=2),
    ],
)
@pytest.mark.parametrize("array", ["loss", "eta_y"])
def test_only_what_dynsim_writes_is_decoded(group: Path, change: Callable, array: str) -> None:
    rewritten(group.parent / array / "zarr.json", change)
    resealed(group.parent)
    with pytest.raises(StoreError, match=f"{array}/zarr.json is not as dynsim writes it"):
        sweeps.open(group.parent)


def test_a_store_of_zarr_2_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / ".zattrs").write_text('{"format": 3}')
    with pytest.raises(StoreError, match=r"something other than a sweep .* zarr.json is damaged"):
        sweeps.open(tmp_path)


def test_a_store_of_an_older_format_is_refused_with_what_to_do(group: Path) -> None:
    """As of format 3, which had no ids and no records."""

    def change(about: dict) -> None:
        about["attributes"]["format"] = 3
        del about["attributes"]["store"]

    rewritten(group, change)
    resealed(group.parent)
    for use in (lambda: sweeps.open(group.parent), lambda: sweeps.run(SWEEP, group.parent)):
        with pytest.raises(
            StoreError, match=r"format 3 .* reads format 5\. .*with the version that"
        ):
            use()


def test_versions_are_noted_for_the_chunks_that_they_made(
    group: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, real = group.parent, output.environment()
    for number in (4, 7):
        (out / Store.open(out).chunks.file(number)).unlink()
    monkeypatch.setattr(output, "environment", lambda *_: real | {"jax": "99"})
    changed = re.escape(f"jax {real['jax']} -> 99")
    with pytest.raises(StoreError, match=f"strict forbids .*{changed}"):
        sweeps.run(SWEEP, out, strict=True)
    lines: list[str] = []
    sweeps.run(SWEEP, out, report=lines.append)
    assert any(re.search(f"from another environment: {changed}", line) for line in lines)
    assert cli.main(["info", str(out)]) == 0
    assert f"chunks 4 to 4, 7 to 7: jax {real['jax']} -> 99" in capsys.readouterr().out
    (made,) = (p for p in (out / "status/.made").iterdir() if '"99"' in p.read_text())
    made.write_text(made.read_text().replace("99", "98"))
    assert cli.main(["info", str(out)]) == 2
    assert f"the file status/.made/{made.name} is damaged" in capsys.readouterr().err


@pytest.mark.full(
    "sweeps/runner/store/test_identity.py::test_versions_are_those_of_the_chunk_whatever_the_clock_says"
)
def test_strict_writers_of_other_versions_share_no_store(tmp_path: Path) -> None:
    """Whoever comes first: before, neither knows of the other. A note of versions that was lost is
    missed."""
    sweep = Sweep(experiment(steps=2, length=8, batch=4), {"eta_y": [0.5, 1.0]}, record=("loss",))
    whole = sweeps.run(sweep, tmp_path / "s", chunk=1).load()
    first, second = (Store.open(tmp_path / "s") for _ in range(2))
    for number in range(2):
        first.place.remove(first.chunks.file(number))
    chunks = [
        (region, {name: whole[name].values[region] for name in first.names})
        for region in map(first.layout.region, range(first.layout.num_chunks))
    ]
    first.enter({"jax": "1"}, strict=True)
    second.enter({"jax": "2"}, strict=True)
    first.write(*chunks[0])
    with pytest.raises(StoreError, match="strict forbids resuming; then -> now: jax 1 -> 2"):
        second.write(*chunks[1])
    for made in (tmp_path / "s/status/.made").iterdir():
        made.unlink()
    with pytest.raises(StoreError, match=r"status/.made/\w+.json is missing"):
        Store.open(tmp_path / "s").enter({"jax": "2"}, strict=True)
