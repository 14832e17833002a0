"""Sweeps that take over what others have computed: the same numbers, and nothing twice."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim import schedules
from sweeps import Sweep
from sweeps.runner.store import reuse
from sweeps.runner.store.reuse import boxes
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work
from sweeps.systems.experiment import Experiment, experiment
from tests.sweeps.studies.scaling.quadratic import Quadratic

RECORD = ("loss", "z_top_distinct")
SMALL = {"seed": [0, 1], "eta_y": [0.5, 2.0]}
LARGE = {"eta_z": [0.1, 0.3], "seed": [2, 1, 0], "eta_y": [0.5, 1.0, 2.0]}


def swept(axes: dict[str, Any], **change: Any) -> Sweep:
    options = {"record": RECORD, "times": 3, **change}
    return Sweep(run(), axes, **options)


def run(**settings: Any) -> Experiment:
    return experiment(**{"steps": 4, "batch": 8, "length": 8, "eta_z": 0.1, **settings})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("small") / "run"
    sweeps.run(swept(SMALL), out, tile=4)
    return out


@pytest.mark.more
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


def test_a_run_is_found_at_its_own_value_and_at_no_other(small: Path) -> None:
    """Copied numbers are those of the same rate, to the last bit; a close one is computed."""
    rates = [0.5, 0.5 + 2**-53, 0.0, 5e-9, 2.0 * (1 + 1e-7), 2.0]
    source = reuse.Reused(Store.open(small), swept({"seed": [1], "eta_y": rates}))
    assert source.known[1].tolist() == [True, False, False, False, False, True]


def test_part_of_a_sweep_is_found_in_it(small: Path, tmp_path: Path) -> None:
    found = sweeps.run(
        Sweep(run(eta_y=2.0), {"seed": [1]}, record=RECORD, times=3),
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
        (swept(SMALL, theory="plain"), 'theory = "simulation" there, "plain" here'),
        (swept(SMALL, record=("entropy",)), "has not recorded 'entropy'"),
        (
            Sweep(run(steps=5), SMALL, record=RECORD, times=3),
            "has no checkpoints of its runs of 4 steps",
        ),
        (swept({"seed": [0]}), "has no run with rule.eta.Y = 1.0"),
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
    start = run(steps=steps, momentum=momentum)
    return Sweep(start, axes, record=("loss", "xi"), times=times, checkpoint=True, **change)


@pytest.mark.more
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
        (longer(10, (0, 2, 6), SMALL), "none is after step 6"),
        (longer(10, "end", SMALL, momentum=0.4), "run.rule.momentum = 0.5 there, 0.4 here"),
        (longer(4, "end", SMALL), 'times = [0, 2, 6] there, "end" here'),
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
        (swept(SMALL, theory="plain", checkpoint=True), "theory 'plain' of yz keeps none; those"),
        (swept(SMALL, record=("checkpoint",)), "set checkpoint = true instead"),
        (
            swept(SMALL, record=("relative_loss",), checkpoint=True),
            "omit it or the checkpoint",
        ),
    ],
)
def test_what_keeps_no_checkpoint_says_so(tmp_path: Path, sweep: Sweep, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        sweeps.run(sweep, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.more
def test_a_schedule_of_another_length_is_another_run(tmp_path: Path) -> None:
    def cosine(steps: int, end: float) -> Sweep:
        rule = dynsim.sgd(schedules.cosine(0.1, end))
        start = Experiment(Quadratic(), rule, steps, batch=8)
        return Sweep(start, {"seed": [0, 1]}, record=("escaped",), checkpoint=True)

    sweeps.run(cosine(6, 9), tmp_path / "begun")
    with pytest.raises(ValueError, match=r"run\.rule\.eta\.steps = 9\.0 there, 8\.0 here"):
        sweeps.run(cosine(8, 8), tmp_path / "other", reuse=[tmp_path / "begun"])
    found = sweeps.run(cosine(9, 9), tmp_path / "long", reuse=[tmp_path / "begun"])
    assert found.equals(sweeps.run(cosine(9, 9)))


def reused(sweep: Sweep, old: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """The results of a sweep that takes over those of another one, and how many of its runs were
    computed."""
    computed, compute = [], Work.compute

    def counted(self: Work, region: tuple[slice, ...], *options: Any) -> dict[str, np.ndarray]:
        computed.append(int(np.prod([part.stop - part.start for part in region])))
        return compute(self, region, *options)

    with monkeypatch.context() as patch:
        patch.setattr(Work, "compute", counted)
        found = sweeps.run(sweep, out, tile=4, reuse=[old]).load()
    want = sweeps.run(sweep, tile=4)
    for name in sweep.names:
        # Batches of other sizes round otherwise.
        np.testing.assert_allclose(found[name], want[name], rtol=1e-5)
    return found, sum(computed)


def full(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.full("test_runs_are_found_by_their_settings"))


RULES = {"plain": dynsim.sgd({"Y": 1.0, "Z": 0.1}), "adam": "adam"}


@pytest.mark.parametrize(
    ("old", "new", "computed"),
    [
        # Another name for an axis, which has a value more.
        full({"eta_y": [0.5, 2.0]}, {"rule.eta.Y": [2.0, 1.0, 0.5]}, 1),
        # A kind by its word and by its label, in another order, with a third one.
        ({"rule": ["adam", "sgd"]}, {"rule": {**RULES, "sign": "sign"}}, 1),
        # A number within kinds, of which only one was there.
        full({"eta_y": [0.5, 2.0]}, {"rule": ["adam", "sgd"], "eta_y": [0.5, 2.0]}, 2),
        full({"rule": ["adam", "sgd"]}, {"eta_y": [1.0, 2.0], "rule": ["sgd", "adam"]}, 2),
        # Zipped axes, of which the values of one are new.
        ({"K": [2, 3], "eta_y": [0.5, 2.0]}, {"eta_y": [0.5, 2.0, 1.0], "K": [2, 3, 3]}, 1),
        # Labels of numbers.
        full({"length": [8, 16]}, {"length": {"long": 16, "short": 8, "longer": 32}}, 1),
        # An axis of steps, without checkpoints.
        full({"steps": [4, 6]}, {"steps": [6, 4, 5]}, 1),
    ],
    ids=["name", "labels", "within kinds", "kinds within", "zip", "numbers", "steps"],
)
@pytest.mark.more
def test_runs_are_found_by_their_settings(
    old: dict[str, Any],
    new: dict[str, Any],
    computed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(axes: dict[str, Any]) -> Sweep:
        task = {"task": "overlapping"} if "K" in axes else {}
        zipped = [tuple(axes)] if "K" in axes else []
        return Sweep(run(**task), axes, record=RECORD, zip=zipped)

    sweeps.run(of(old), tmp_path / "old", tile=4)
    _, found = reused(of(new), tmp_path / "old", tmp_path / "new", monkeypatch)
    assert found == computed


@pytest.mark.more
def test_axes_that_vary_together_on_one_side_are_an_error(tmp_path: Path) -> None:
    axes = {"eta_y": [0.5, 2.0], "eta_z": [0.1, 0.2]}
    zipped, grid = Sweep(run(), axes, zip=[tuple(axes)]), Sweep(run(), axes)
    for old, new, where in ((zipped, grid, "there and not here"), (grid, zipped, "here and not")):
        out = tmp_path / where
        sweeps.run(old, out)
        with pytest.raises(ValueError, match=where):
            sweeps.run(new, tmp_path / "other", reuse=[out])


def identity(weights: Any) -> Any:
    return weights


@pytest.mark.more
def test_runs_of_a_problem_of_ones_own_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is in a function, and its fields are an array, a function and an object."""

    class Line(dynsim.Problem):
        slopes: np.ndarray = eqx.field(default_factory=lambda: np.ones(2))
        link: Callable = eqx.field(static=True, default=identity)
        anything: Any = eqx.field(static=True, default=1j)

        def init(self, key: Any) -> Any:
            return jnp.zeros(2)

        def population_loss(self, params: Any) -> Any:
            return jnp.sum((self.link(params) - self.slopes) ** 2)

    def of(slopes: Any, eta: list[float], **fields: Any) -> Sweep:
        start = Experiment(Line(np.array(slopes), **fields), dynsim.sgd(0.1), 3, np.inf)
        return Sweep(start, {"eta": eta}, record=("loss",))

    old = tmp_path / "old"
    sweeps.run(of([1.0, 2.0], [0.1, 0.2]), old)
    _, computed = reused(of([1.0, 2.0], [0.1, 0.3]), old, tmp_path / "new", monkeypatch)
    assert computed == 1
    for other in (of([1.0, 3.0], [0.1]), of([1.0, 2.0], [0.1], link=jnp.tanh)):
        with pytest.raises(ValueError, match=r"problem\.(slopes|link)"):
            sweeps.run(other, tmp_path / "other", reuse=[old])


def test_many_times_are_told_by_the_first_ones_and_the_last() -> None:
    assert reuse._short(range(8)) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert reuse._short(range(9)) == "[0, 1, 2, 3, 4, 5, ..., 8]"


def test_boxes_cover_each_missing_cell_once() -> None:
    draw = np.random.default_rng(0)
    for shape in ((5,), (3, 4), (2, 3, 4), ()):
        missing = draw.random(shape) < 0.5
        count = np.zeros(shape, int)
        for box in boxes(missing):
            count[box] += 1
        np.testing.assert_array_equal(count, missing)
