"""Examples of one's own as a field of a problem: descent on them and draws from them."""

import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from sweeps import cli
from sweeps.runner.store import StoreError
from tests.doors.test_data import Mean

X = np.random.default_rng(0).standard_normal((20, 3))
Y = X @ [1.0, -2.0, 0.5]
KEY = jax.random.key(0)


class Line(dynsim.Problem):
    """Linear regression on examples."""

    data: dynsim.Data

    def init(self, key: Any) -> Any:
        return jnp.zeros(3)

    def draw(self, key: Any, batch: int) -> Any:
        return self.data.draw(key, batch)

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.mean((data["x"] @ params - data["y"]) ** 2) / 2

    def population_loss(self, params: Any) -> Any:
        return self.loss(params, self.data.train)

    def observables(self) -> Any:
        return {"test_loss": lambda self, params: self.loss(params, self.data.held_out)}


def saved(path: Path, rows: slice = slice(None), scale: float = 1.0) -> Path:
    np.savez(path, x=X[rows], y=scale * Y[rows])
    return path


def test_gradient_descent_on_arrays_is_that_of_numpy() -> None:
    data = dynsim.Arrays({"x": X, "y": Y}, test=0.25)
    options: Any = {"steps": 7, "batch": float("inf"), "dtype": "float64"}
    run = dynsim.train(Line(data), dynsim.sgd(0.1), KEY, record=["loss", "test_loss"], **options)
    w = np.zeros(3)
    for _ in range(7):
        w -= 0.1 * X[:15].T @ (X[:15] @ w - Y[:15]) / 15
    for name, rows in (("loss", slice(15)), ("test_loss", slice(15, 20))):
        want = np.mean((X[rows] @ w - Y[rows]) ** 2) / 2
        # Rounding in float64 of seven steps.
        np.testing.assert_allclose(run[name][-1], want, rtol=1e-12)


@pytest.mark.parametrize("replace", [True, False])
def test_batches_are_drawn_evenly_from_the_training_examples(replace: bool) -> None:
    data = dynsim.Arrays({"n": np.arange(10)}, test=0.2, replace=replace)
    keys = jax.random.split(jax.random.key(1), 4000)
    drawn = np.asarray(jax.vmap(lambda key: data.draw(key, 6)["n"])(keys))
    shares = np.bincount(drawn.ravel(), minlength=10) / drawn.size
    assert not shares[8:].any()
    # Four standard errors of a share of 1/8 among 24 000.
    np.testing.assert_allclose(shares[:8], 1 / 8, atol=4 * np.sqrt(1 / 8 * 7 / 8 / drawn.size))
    twice = np.mean([len({*row}) < 6 for row in drawn])
    # With replacement six of eight are all different with probability 8! / 2! / 8^6 = 0.077.
    assert twice == pytest.approx(1 - 0.0769, abs=0.02) if replace else twice == 0
    if not replace:
        assert sorted(data.draw(KEY, 8)["n"].tolist()) == [*range(8)]


def test_a_folder_is_its_files_in_order_and_known_by_their_bytes(tmp_path: Path) -> None:
    saved(tmp_path / "b.npz", slice(5, 20))
    saved(tmp_path / "a.npz", slice(5))
    found = dynsim.ArrayFile(tmp_path, test=0.5).build()
    np.testing.assert_array_equal(found.arrays["x"], X)
    np.testing.assert_array_equal(found.held_out["y"], Y[10:])
    both = (tmp_path / "a.npz").read_bytes() + (tmp_path / "b.npz").read_bytes()
    want = {"data_holds": hashlib.sha256(both).hexdigest()[:16]}
    assert dynsim.ArrayFile(tmp_path).contents() == want
    assert dynsim.Arrays({"x": X}).contents() == {}


@pytest.mark.more
def test_a_file_is_a_setting_and_a_store_knows_what_was_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "line.npz")
    other = saved(tmp_path / "other.npz", scale=2.0)
    run = sweeps.Experiment(Line(dynsim.ArrayFile(path)), dynsim.sgd(0.1), steps=3, batch=4)
    sweep = sweeps.Sweep(run, {"data": [str(path), str(other)], "eta": [0.1, 0.2]}, record="loss")
    found = sweeps.run(sweep, tmp_path / "store", progress=False)
    # The problem is linear: labels of twice the size have four times the loss.
    np.testing.assert_allclose(found["loss"][1], 4 * found["loss"][0], rtol=1e-5)
    in_memory = run.at({"problem": Line(dynsim.Arrays({"x": X, "y": Y}))})
    alone = sweeps.run(sweeps.Sweep(in_memory, {"eta": [0.1, 0.2]}, record="loss"), progress=False)
    np.testing.assert_array_equal(alone["loss"], found["loss"][0])
    saved(path, scale=3.0)
    again = sweeps.Sweep(run, {"data": [str(path), str(other)], "eta": [0.1, 0.2]}, record="loss")
    with pytest.raises(StoreError, match="data_holds"):
        sweeps.run(again, tmp_path / "store", progress=False)
    monkeypatch.chdir(tmp_path)
    given = cli.parse(["compare", f"{__name__}:Line", "--data", "line.npz", "--test", "0.5"])
    assert given.run.problem.data == dynsim.ArrayFile("line.npz", test=0.5)


class Known(Mean):
    """Where some numbers may be missing, and do not count."""

    def loss(self, params: Any, data: Any) -> Any:
        known = jnp.isfinite(data)
        return jnp.sum(jnp.where(known, jnp.abs(params - data), 0) ** 2) / 2 / jnp.sum(known)

    def allows_nonfinite(self) -> bool:
        return True


NUMBERS = np.arange(1.0, 9.0)


def at_end(problem: Any, way: str) -> float:
    """Return the loss after 5 steps with rate 0.1, by training, a flow or a sweep."""
    rule, steps, options = dynsim.sgd(0.1), 5, {"batch": float("inf"), "dtype": "float64"}
    if way == "flow":
        return float(odes.flow(problem, rule, [0, steps], key=KEY)["loss"][-1])
    if way == "train":
        run = dynsim.train(problem, rule, KEY, steps=steps, times=[steps], **options)
        return float(run["loss"][-1])
    run = sweeps.Experiment(problem, rule, steps, **options)
    sweep = sweeps.Sweep(run, {"eta": [0.1]}, record="loss")
    return sweeps.run(sweep, progress=False)["loss"].values.ravel()[-1].item()


@pytest.mark.parametrize("way", ["train", "flow", "sweep"])
@pytest.mark.parametrize(
    "y",
    [NUMBERS + 1j * NUMBERS**2, np.where(NUMBERS == 3, np.nan, NUMBERS)],
    ids=["complex", "missing"],
)
@pytest.mark.more
def test_complex_numbers_keep_both_parts_and_missing_ones_do_not_count(y: Any, way: str) -> None:
    # w follows the mean of the real parts; the rest of the loss stays.
    left = np.exp(-0.5) if way == "flow" else 0.9**5
    w = np.nanmean(y.real) * (1 - left)
    want = np.nanmean(np.abs(w - y) ** 2) / 2
    # Arrays have no missing numbers.
    given = [y, dynsim.Arrays({"y": y})] if np.isfinite(y).all() else [y]
    for problem in map(Known, given):
        # The solver's tolerance in float64.
        assert at_end(problem, way) == pytest.approx(want, rel=1e-6)


def test_complex_batches_are_trained_on_as_they_are() -> None:
    y = np.array([[1 + 2j, 3 - 1j], [2 + 1j, 4j]])
    run = dynsim.train(Known(NUMBERS), dynsim.sgd(0.5), KEY, steps=2, times=[0, 1], data=y)
    # w = 0, then half of the mean of the first real parts, 2.
    want = [np.mean(np.abs(w - each) ** 2) / 2 for w, each in zip((0, 1), y, strict=True)]
    np.testing.assert_allclose(run["batch_loss"], want, rtol=1e-6)


def test_a_callback_and_fixed_examples_are_functions_of_the_key() -> None:
    class Drawn(Known):
        def draw(self, key: Any, batch: int) -> Any:
            like = jax.ShapeDtypeStruct((batch,), "f4")
            normal = jax.random.normal(key, (batch,))
            if self.y == "fixed":
                return np.float32([1, 2, 4, 5])[:batch] if batch <= 4 else np.ones(batch, "f4")
            return jax.pure_callback(lambda x: self.y * np.asarray(x), like, normal)

    options: Any = {"steps": 3, "batch": 4, "record": "batch_loss"}
    losses = [dynsim.train(Drawn(y), dynsim.sgd(0.0), KEY, **options) for y in (2, 1, "fixed")]
    twice, once, fixed = (run["batch_loss"] for run in losses)
    np.testing.assert_allclose(twice, 4 * once, rtol=1e-6)
    np.testing.assert_allclose(fixed, np.mean(np.square([1, 2, 4, 5])) / 2, rtol=1e-6)
