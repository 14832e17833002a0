"""No damage goes unseen: flipped bits and lost files, looked at in all ways."""

from pathlib import Path

import pytest

from sweeps.runner.store import MARKER
from sweeps.runner.store.store import Store
from tests.sweeps.runner.store.damage import Damage, deletions, flip, flips


def assert_seen(counts: dict[str, int], ways: int, *told: str) -> None:
    assert {each.split(": ")[1] for each in counts} <= {"error", *told}
    assert len({each.split(": ")[0] for each in counts}) == ways


@pytest.mark.more
def test_flipped_bits_and_lost_files_are_errors_that_name_the_file(tmp_path: Path) -> None:
    damage = Damage(tmp_path, ("open", "info", "check"))
    assert_seen(flips(damage, 25), 3, "same")
    records = Store.open(damage.out).storage.records
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
