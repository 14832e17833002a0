"""Sweeps that take over what others have computed: the same numbers, and nothing twice."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import Sweep, Training
from sweeps.runner.store.growth import boxes
from sweeps.runner.work import Work
from sweeps.systems import registry

RECORD = ("loss", "z_top_distinct")
SMALL = {"seed": [0, 1], "eta_y": [0.5, 2.0]}
LARGE = {"eta_z": [0.1, 0.3], "seed": [2, 1, 0], "eta_y": [0.5, 1.0, 2.0]}


def swept(axes: dict[str, Any], **change: Any) -> Sweep:
    options = {"record": RECORD, "times": 3, **change}
    return Sweep(axes, Training(steps=4, batch=8, length=8, eta_z=0.1), **options)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("small") / "run"
    sweeps.run(swept(SMALL), out, tile=4)
    return out


def test_what_is_there_is_not_computed_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more axis, more seeds in another order, a value between others."""
    fewer = {name: LARGE[name] for name in LARGE if name != "eta_z"}
    want = sweeps.run(swept(fewer), tile=4).load()
    computed = 0
    compute = Work.compute

    def counted(self: Work, region: tuple[slice, ...], *options: Any) -> dict[str, np.ndarray]:
        nonlocal computed
        computed += int(np.prod([part.stop - part.start for part in region]))
        return compute(self, region, *options)

    monkeypatch.setattr(Work, "compute", counted)
    found = sweeps.run(swept(LARGE), tmp_path / "large", chunk=7, tile=4, reuse=[small]).load()
    assert computed == 2 * 3 * 3 - 2 * 2
    assert (found.status == 0).all()
    # Bit for bit what is computed at once.
    for name in RECORD:
        have = found[name].sel(eta_z=0.1).transpose(*want[name].dims)
        np.testing.assert_array_equal(have, want[name])
    # What has been taken over is the store's own: it goes on without the other.
    again = sweeps.run(swept(LARGE), tmp_path / "large").load()
    assert found.identical(again)
    assert computed == 2 * 3 * 3 - 2 * 2


def test_part_of_a_sweep_is_found_in_it(small: Path, tmp_path: Path) -> None:
    found = sweeps.run(
        Sweep(
            {"seed": [1]},
            Training(steps=4, batch=8, length=8, eta_z=0.1, eta_y=2.0),
            record=RECORD,
            times=3,
        ),
        tmp_path / "one",
        reuse=[small],
    )
    want = sweeps.open(small)["loss"].sel(eta_y=2.0, seed=[1])
    np.testing.assert_array_equal(found["loss"], want)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (swept(SMALL, root=1), "root = 0 there, 1 here"),
        (swept(SMALL, times=4), "times = 3 there, 4 here"),
        (swept(SMALL, engine="plain"), "engine = 'simulation' there, 'plain' here"),
        (swept(SMALL, record=("entropy",)), "has not recorded 'entropy'"),
        (
            Sweep(SMALL, Training(steps=5, batch=8, length=8), record=RECORD, times=3),
            "has no checkpoints of its runs of 4 steps",
        ),
        (swept({"seed": [0]}), "has no run with eta_y = 1.0"),
    ],
)
def test_other_runs_are_refused(small: Path, tmp_path: Path, sweep: Sweep, message: str) -> None:
    with pytest.raises(ValueError, match="reuse = ") as caught:
        sweeps.run(sweep, tmp_path / "other", reuse=[small])
    assert message in str(caught.value)
    assert not (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of six steps with checkpoints."""
    out = tmp_path_factory.mktemp("begun") / "run"
    sweeps.run(longer(6, (0, 2, 6), SMALL), out, tile=4)
    return out


def longer(
    steps: int, times: Any, axes: dict[str, Any], momentum: float = 0.5, **change: Any
) -> Sweep:
    run = Training(steps=steps, batch=8, length=8, momentum=momentum)
    return Sweep(axes, run, record=("loss", "xi"), times=times, checkpoint=True, **change)


def test_runs_go_on_for_more_steps(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several chunks, beside runs of which there is no beginning, and once more, with the seeds
    on another axis than where they were."""
    fewer = {name: LARGE[name] for name in ("eta_y", "seed")}
    ten, end = longer(10, (0, 2, 6, 9, 10), fewer), longer(12, "end", fewer)
    want = sweeps.run(longer(12, (0, 2, 6, 9, 10, 12), fewer), tile=4).load()
    computed: list[tuple[int, int]] = []
    compute = Work.compute

    def counted(self: Work, region: tuple[slice, ...], *options: Any) -> dict[str, np.ndarray]:
        runs = int(np.prod([part.stop - part.start for part in region]))
        computed.append((self.begin, runs))
        return compute(self, region, *options)

    monkeypatch.setattr(Work, "compute", counted)
    found = sweeps.run(ten, tmp_path / "ten", chunk=5, tile=4, reuse=[begun]).load()
    # Each run there was went on, and no other one began anew.
    assert sum(runs for begin, runs in computed if begin == 6) == 2 * 2
    assert sum(runs for begin, runs in computed if begin == 0) == 3 * 3 - 2 * 2
    for name in ("loss", "xi"):
        np.testing.assert_array_equal(found[name], want[name].isel(time=slice(5)))
    assert (found.status == 0).all()
    # The one that has most of a run is the one that goes on; nothing of its records is needed.
    computed.clear()
    found = sweeps.run(end, tmp_path / "twelve", reuse=[begun, tmp_path / "ten"]).load()
    assert {begin for begin, _ in computed} == {10}
    np.testing.assert_array_equal(found.loss, want.loss.isel(time=-1))


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (longer(10, (0, 6, 10), SMALL), "recorded at the steps [0, 2, 6], and this sweep, until"),
        (longer(10, (0, 2, 6), SMALL), "has none after the 6"),
        (longer(10, "end", SMALL, momentum=0.4), "run.momentum = 0.5 there, 0.4 here"),
        (longer(4, "end", SMALL), "times = [0, 2, 6] there, 'end' here"),
    ],
)
def test_what_cannot_go_on_is_refused(
    begun: Path, tmp_path: Path, sweep: Sweep, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        sweeps.run(sweep, tmp_path / "other", reuse=[begun])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (swept(SMALL, engine="plain", checkpoint=True), "engine 'plain' of yz keeps none; those"),
        (swept(SMALL, record=("checkpoint",)), "is no observable; set checkpoint = true"),
        (
            swept(SMALL, record=("relative_loss",), checkpoint=True),
            "leave it or the checkpoint out",
        ),
    ],
)
def test_what_keeps_no_checkpoint_says_so(tmp_path: Path, sweep: Sweep, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        sweeps.run(sweep, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> type:
    """Runs whose settings do not say over how many steps their schedules go."""
    kind = registry.system("linear_icl").run
    reads = kind.reads
    hide = lambda run, field, axes: field != "eta_steps" and reads(run, field, axes)
    monkeypatch.setattr(kind, "reads", hide)
    return kind


def cosine(kind: type, steps: int, **options: Any) -> Sweep:
    run = kind(steps=steps, batch=8, schedule="cosine", **options)
    return Sweep({"seed": [0, 1]}, run, record=("loss",), checkpoint=True)


def test_a_schedule_that_follows_from_the_steps_is_no_beginning_of_a_longer_one(
    hidden: type, tmp_path: Path
) -> None:
    """Whether its settings say so or not."""
    sweeps.run(cosine(hidden, 6), tmp_path / "short")
    with pytest.raises(ValueError, match="schedule of its runs follows from their 6 steps"):
        sweeps.run(cosine(hidden, 9), tmp_path / "long", reuse=[tmp_path / "short"])


@pytest.mark.full("test_runs_go_on_for_more_steps")
def test_a_schedule_of_its_own_length_goes_on(hidden: type, tmp_path: Path) -> None:
    sweeps.run(cosine(hidden, 6, eta_steps=9.0), tmp_path / "begun")
    longer = cosine(hidden, 9, eta_steps=9.0)
    found = sweeps.run(longer, tmp_path / "long", reuse=[tmp_path / "begun"])
    assert found.equals(sweeps.run(longer))


@dataclasses.dataclass(frozen=True)
class Listed(Training):
    """A run with a field that is lists in JSON and none in Python."""

    s: tuple[tuple[float, ...], ...] = ((3.0, 2.0), (1.0,))


def test_what_json_makes_a_list_of_is_the_same_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._KNOWN, "listed", registry.system("yz")._replace(run=Listed))
    monkeypatch.setattr(Listed, "NAME", "listed", raising=False)
    run = Listed(steps=2, batch=4, length=8)
    sweep = Sweep({"eta_y": [0.5]}, run, record=RECORD)
    one = sweeps.run(sweep, tmp_path / "one")
    more = dataclasses.replace(sweep, axes={"eta_y": [0.5, 1.0]})
    found = sweeps.run(more, tmp_path / "more", reuse=[tmp_path / "one"])
    np.testing.assert_array_equal(found.loss[:1], one.loss)
    other = dataclasses.replace(sweep, run=dataclasses.replace(run, steps=3))
    with pytest.raises(ValueError, match="steps: 2 -> 3") as caught:
        sweeps.run(other, tmp_path / "one")
    assert "run.s:" not in str(caught.value)


def test_boxes_cover_each_missing_cell_once() -> None:
    draw = np.random.default_rng(0)
    for shape in ((5,), (3, 4), (2, 3, 4), ()):
        missing = draw.random(shape) < 0.5
        count = np.zeros(shape, int)
        for box in boxes(missing):
            count[box] += 1
        np.testing.assert_array_equal(count, missing)
