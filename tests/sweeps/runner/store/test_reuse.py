"""Sweeps that take over what others have computed: the same numbers, and nothing twice. In a store
that is reused all numbers have been multiplied by four, so that those that were copied show it."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim import schedules
from sweeps import Experiment, Sweep, experiment
from sweeps.runner import driver
from sweeps.runner.config import config_of
from sweeps.runner.program.identity import Identity
from sweeps.runner.store import CHECKPOINT
from sweeps.runner.store.reuse import ReusableRuns, boxes
from sweeps.runner.store.storage import as_storage
from sweeps.runner.store.store import Store
from tests.sweeps.runner.curves import Curve, Power, Square

RECORD = ("w", "first")
RUN = Experiment(Curve(shift=0.3), dynsim.sgd(0.1), 4, 3)


def swept(axes: dict[str, Any], run: Experiment = RUN, **change: Any) -> Sweep:
    return Sweep(run, axes, **{"record": RECORD, "times": 3, **change})


def marked(out: Path, ruined: bool = False) -> Path:
    """Multiply what the chunks of a store have recorded; their checkpoints only where `ruined`."""
    store = Store.open(out)
    for number, record in store.chunks.all().items():
        region = store.layout.region(number)
        inside = tuple(slice(part.stop - part.start) for part in region)
        arrays = {name: store.chunks.read(name, number)[inside] for name in store.names}
        store.set_environment(store.chunks.environment(record.environment), strict=False)
        store.chunks.remove(number)
        for name in {*arrays} - {"status", "first_bad_step", CHECKPOINT}:
            arrays[name] = 4 * arrays[name]
        if ruined:
            arrays[CHECKPOINT] = 0 * arrays[CHECKPOINT]
        store.write(region, arrays, program=record.program)
    return out


def reused(sweep: Sweep, *sources: Path, out: Path | None = None, **options: Any) -> Any:
    """The results of a sweep that takes over those of others, which are bit for bit what it
    computes at once or four times as much; and how many of its runs were not copied."""
    found = sweeps.run(sweep, out, tile=4, reuse=sources, **options).load()
    want = sweeps.run(sweep, tile=4).load()
    assert (found.status == 0).all()
    copied = (found.first != want.first).values
    while copied.ndim > found.status.ndim:
        copied = copied.any(-1)
    for name in sweep.names:
        factor = np.where(copied, 4, 1).reshape(
            copied.shape + (1,) * (found[name].ndim - copied.ndim)
        )
        np.testing.assert_array_equal(found[name], factor * want[name])
    return int((~copied).sum())


SMALL = {"seed": [0, 1], "eta": [0.125, 0.5]}
FORMS = {"square": Square(), "power": Power(3.0)}
POWER = Experiment(Curve(Power(2.5), 0.3), dynsim.sgd(0.1), 4, 3)
ADAM = {"kind": "adam", "b2": 0.99}


RUNS: dict[str, tuple[Sweep, Sweep, int]] = {
    # One more axis, more seeds in another order, a value between others.
    "axes": (
        swept(SMALL),
        swept({"shift": [0.3, 0.1], "seed": [2, 1, 0], "eta": [0.125, 0.25, 0.5]}),
        2 * 3 * 3 - 2 * 2,
    ),
    "part": (swept(SMALL), swept({"seed": [1]}, RUN.at({"eta": 0.5})), 0),
    # Another name for an axis, which has a value more, and values that are close.
    "name": (
        swept({"eta": [0.5, 2.0]}),
        swept({"rule.eta": [2.0, 1.0, 0.5, 2.0 * (1 + 1e-6)]}),
        2,
    ),
    # A kind by its word and by its label, in another order, with a third one.
    "labels": (
        swept({"rule": ["adam", "sgd"]}),
        swept({"rule": {"plain": "sgd", "a": "adam", "sign": "sign"}}),
        1,
    ),
    "number of a kind": (
        swept({"rule": {"heavy": {"kind": "sgd", "momentum": 0.5}, "a": ADAM}}),
        swept({"rule": {"heavy": {"kind": "sgd", "momentum": 0.5}, "a": "adam"}}),
        1,
    ),
    # A number within kinds, of which only one was there; and the reverse.
    "within kinds": (
        swept({"eta": [0.5, 2.0]}),
        swept({"rule": ["adam", "sgd"], "eta": [0.5, 2.0]}),
        2,
    ),
    "kinds within": (
        swept({"rule": ["adam", "sgd"]}, RUN.at({"eta": 1.0})),
        swept({"eta": [1.0, 2.0], "rule": ["sgd", "adam"]}),
        2,
    ),
    "fewer kinds": (
        swept({"form": FORMS, **SMALL}),
        swept({"form": {"p": Power(3.0)}, **SMALL}),
        0,
    ),
    "one kind": (
        swept({"form": FORMS, **SMALL}),
        swept(SMALL, Experiment(Curve(Power(3.0), 0.3), dynsim.sgd(0.1), 4, 3)),
        0,
    ),
    # Kinds that differ in a number are runs of an axis of it.
    "numbers": (
        swept({"form": {"three": Power(3.0), "two": Power(2.0), "square": Square()}}, POWER),
        swept({"exponent": [2.0, 2.5, 3.0]}, POWER),
        1,
    ),
    # The values of one of the axes are new, and one is of sizes.
    "zip": (
        swept({"width": [2, 3], "eta": [0.5, 2.0]}, zip=[("width", "eta")]),
        swept({"eta": [0.5, 2.0, 1.0], "width": [2, 3, 3]}, zip=[("eta", "width")]),
        1,
    ),
    "labels of numbers": (
        swept({"batch": [8, 16]}),
        swept({"batch": {"long": 16, "short": 8, "longer": 32}}),
        1,
    ),
    "steps without checkpoints": (swept({"steps": [4, 6]}), swept({"steps": [6, 4, 5]}), 1),
}
"""An old sweep, a new one, and how many of its runs are computed."""
FULL = (
    *("within kinds", "kinds within", "fewer kinds", "one kind", "labels of numbers"),
    "steps without checkpoints",
)


@pytest.mark.parametrize(
    "how", [pytest.param(n, marks=pytest.mark.full) if n in FULL else n for n in RUNS]
)
@pytest.mark.more
def test_runs_are_found_by_their_settings(how: str, tmp_path: Path) -> None:
    old, new, computed = RUNS[how]
    sweeps.run(old, tmp_path / "old", tile=4)
    out = tmp_path / "new"
    assert reused(new, marked(tmp_path / "old"), out=out, chunk=7) == computed
    # What has been taken over is the store's own: it goes on without the other.
    found = sweeps.open(out).load()
    (tmp_path / "old").rename(tmp_path / "gone")
    assert sweeps.run(new, out).load().identical(found)


def test_a_run_is_found_at_its_own_value_and_at_no_other(tmp_path: Path) -> None:
    """To the last bit of float64."""
    sweeps.run(swept(SMALL), tmp_path / "s", tile=4)
    rates = [0.5, 0.5 + 2**-53, 0.0, 5e-9, 0.125 * (1 + 1e-7), 0.125]
    source = ReusableRuns(Store.open(tmp_path / "s"), swept({"seed": [1], "eta": rates}))
    assert source.available[1].tolist() == [True, False, False, False, False, True]


def longer(steps: int, times: Any, axes: dict[str, Any], momentum: float = 0.5) -> Sweep:
    run = RUN.at({"momentum": momentum, "steps": steps})
    return swept(axes, run, times=times, checkpoint=True)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of six steps with checkpoints."""
    out = tmp_path_factory.mktemp("begun") / "run"
    sweeps.run(longer(6, (0, 2, 6), SMALL), out, tile=4)
    return marked(out)


@pytest.mark.more
def test_runs_go_on_for_more_steps(begun: Path, tmp_path: Path) -> None:
    """In several chunks, beside runs of which there is no beginning, and once more, with the seeds
    on another axis than where they were. What was recorded before is copied."""
    fewer = {"eta": [0.125, 0.25, 0.5], "seed": [2, 1, 0]}
    want = sweeps.run(longer(12, (0, 2, 6, 9, 10, 12), fewer), tile=4).load()
    ten = longer(10, (0, 2, 6, 9, 10), fewer)
    found = sweeps.run(ten, tmp_path / "ten", chunk=5, tile=4, reuse=[begun]).load()
    factor = np.ones((3, 3, 5))
    factor[::2, 1:, :3] = 4
    np.testing.assert_array_equal(found.first, factor * want.first.isel(time=slice(5)))
    np.testing.assert_array_equal(found.w, factor[..., None] * want.w.isel(time=slice(5)))
    assert (found.status == 0).all()
    # Nothing of the records is needed where only the end is wanted, and of two that have begun a
    # run the one that has most of it goes on.
    end, less = longer(12, "end", fewer), Path(shutil.copytree(begun, tmp_path / "less"))
    sources = [marked(less, ruined=True), tmp_path / "ten"]
    found = sweeps.run(end, tmp_path / "twelve", reuse=sources).load()
    np.testing.assert_array_equal(found.first, want.first.isel(time=-1))


@pytest.mark.more
def test_workers_compute_the_chunks_that_are_not_all_there(begun: Path, tmp_path: Path) -> None:
    sweeps.run(swept(SMALL), tmp_path / "old", tile=4)
    new, source = swept({**SMALL, "seed": [0, 1, 2]}), marked(tmp_path / "old")
    with ThreadPoolExecutor(2) as executor:
        assert reused(new, source, out=tmp_path / "new", chunk=2, executor=executor) == 2
        longer_one = longer(10, "end", SMALL)
        with pytest.raises(ValueError, match=r"reuse = .* without an executor"):
            sweeps.run(longer_one, tmp_path / "more", reuse=[begun], executor=executor)


@pytest.mark.more
def test_a_schedule_of_another_length_is_another_run(tmp_path: Path) -> None:
    def cosine(steps: int, end: float) -> Sweep:
        run = Experiment(Curve(), dynsim.sgd(schedules.cosine(0.1, end)), steps, 3)
        return swept({"seed": [0, 1]}, run, times="end", checkpoint=True)

    sweeps.run(cosine(6, 9), tmp_path / "begun")
    with pytest.raises(ValueError, match=r"rule\.eta\.steps = 9\.0 there, 8\.0 here"):
        sweeps.run(cosine(8, 8), reuse=[tmp_path / "begun"])
    found = sweeps.run(cosine(9, 9), tmp_path / "long", reuse=[tmp_path / "begun"])
    assert found.equals(sweeps.run(cosine(9, 9)))


def tenth(step: Any) -> Any:
    return 0.1 + 0 * step


def identity(weights: Any) -> Any:
    return weights


@pytest.mark.more
def test_runs_of_a_problem_of_ones_own_are_found(tmp_path: Path) -> None:
    """Its class is in a function, and its fields are an array, a function and an object."""

    class Line(Curve):
        slopes: np.ndarray = eqx.field(default_factory=lambda: np.ones(2))
        link: Callable = eqx.field(static=True, default=identity)
        anything: Any = eqx.field(static=True, default=1j)

        def population_loss(self, params: Any) -> Any:
            return jnp.sum((self.link(params) - self.slopes) ** 2)

    def of(slopes: Any, eta: list[float], **fields: Any) -> Sweep:
        run = Experiment(Line(slopes=np.array(slopes), **fields), dynsim.sgd(0.1), 3, np.inf)
        return Sweep(run, {"eta": eta}, record=("first",))

    old = tmp_path / "old"
    sweeps.run(of([2.0, 3.0], [0.1, 0.2]), old)
    assert reused(of([2.0, 3.0], [0.1, 0.3]), marked(old)) == 1
    for other in (of([1.0, 3.0], [0.1]), of([2.0, 3.0], [0.1], link=jnp.tanh)):
        with pytest.raises(ValueError, match=r"problem\.(slopes|link)"):
            sweeps.run(other, reuse=[old])


REFUSED: dict[str, tuple[Sweep, Sweep, str]] = {
    "root": (swept(SMALL), swept(SMALL, root=1), "root = 0 there, 1 here"),
    "times": (swept(SMALL), swept(SMALL, times=4), "times = 3 there, 4 here"),
    "theory": (swept(SMALL), swept(SMALL, theory="descent"), '"simulation" there, "descent" here'),
    "record": (swept(SMALL), swept(SMALL, record=("loss",)), "'loss'"),
    "steps": (swept(SMALL), swept(SMALL, RUN.at({"steps": 5})), "4 steps"),
    "run": (swept(SMALL), swept({"seed": [0]}), "rule.eta = 0.1"),
    "other": (swept(SMALL), swept(SMALL, RUN.at({"batch": 4})), "batch = 3 there, 4 here"),
    "zip": (
        swept({"eta": [0.5, 2.0], "shift": [0.1, 0.2]}, zip=[("eta", "shift")]),
        swept({"eta": [0.5, 2.0], "shift": [0.1, 0.2]}),
        "there and not here",
    ),
    "grid": (
        swept({"eta": [0.5, 2.0], "shift": [0.1, 0.2]}),
        swept({"eta": [0.5, 2.0], "shift": [0.1, 0.2]}, zip=[("eta", "shift")]),
        "here and not there",
    ),
    "early": (longer(6, (0, 2, 6), SMALL), longer(10, (0, 6, 10), SMALL), "[0, 2, 6]"),
    "late": (longer(6, (0, 2, 6), SMALL), longer(10, (0, 2, 6), SMALL), "step 6"),
    "momentum": (
        longer(6, (0, 2, 6), SMALL),
        longer(10, "end", SMALL, momentum=0.4),
        "rule.momentum = 0.5 there, 0.4 here",
    ),
    "shorter": (longer(6, (0, 2, 6), SMALL), longer(4, "end", SMALL), "times = [0, 2, 6] there"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_other_runs_are_not_reused(how: str, tmp_path: Path) -> None:
    old, new, named = REFUSED[how]
    sweeps.run(old, tmp_path / "old", tile=4)
    with pytest.raises(ValueError, match=r"^reuse = |^times = ") as caught:
        sweeps.run(new, tmp_path / "new", reuse=[tmp_path / "old"])
    assert named in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_workers_make_the_same_sweep(tmp_path: Path) -> None:
    """From its configuration, or from the sweep itself where there is a function in it."""
    rule = {"plain": dynsim.sgd(0.1), "cosine": dynsim.sgd(schedules.cosine(0.1, 1000))}
    made: list[Sweep] = [
        Sweep(Experiment(Curve(), dynsim.sgd(tenth), 6, 4), {"seed": [0]}),
        Sweep(Experiment(Curve(), dynsim.sgd(lambda step: 0.1 + 0 * step), 6, 4), {"seed": [0]}),
        Sweep(RUN, {"rule": rule}),
        Sweep(RUN, {"form": FORMS, "rule": {"heavy": {"kind": "sgd", "momentum": 0.5}, "a": ADAM}}),
    ]
    # An infinite number, integers and a list have to come back as what they are.
    for system, theory, axes, times in (
        ("yz", "simulation", {"length": [8, np.inf], "seed": [0, 3]}, (0, 3)),
        ("yz", "eq10", {"eta_y": [0.1, 1e17 / 3]}, 3),
        ("two_stage", "ode", {"tau": [0.1, 0.2]}, 3),
        ("transformer", "simulation", {"seed": [0, 3]}, 2),
    ):
        made.append(Sweep(experiment(system), axes, theory, times=times, root=5))
    for sweep in made:
        job = driver.job_of(Identity(sweep, "cpu"), as_storage(tmp_path / "x"), None)
        config = config_of(sweep)
        again = job.rebuild(json.loads(json.dumps(config)))
        assert config_of(again) == config
        assert (again.fields, again.times) == (sweep.fields, sweep.times)
        assert (job.sweep is None) == (sweep is not made[1])
        if job.sweep is None:
            found, wanted = (s.runs(next(s.slices())) for s in (again, sweep))
            assert found.call == wanted.call
            jax.tree.map(np.testing.assert_array_equal, found.numbers, wanted.numbers)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), ()])
def test_boxes_cover_each_missing_cell_once(shape: tuple[int, ...]) -> None:
    missing = np.random.default_rng(0).random(shape) < 0.5
    count = np.zeros(shape, int)
    for box in boxes(missing):
        count[box] += 1
    np.testing.assert_array_equal(count, missing)
