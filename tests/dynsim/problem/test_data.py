"""Examples of one's own as a field of a problem."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from dynsim.problem.base import FullBatch
from sweeps import cli
from sweeps.runner.store import StoreError

X = np.random.default_rng(0).standard_normal((20, 3))
Y = X @ [1.0, -2.0, 0.5]


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
    run = dynsim.train(
        *(Line(data), dynsim.sgd(0.1), jax.random.key(0)),
        steps=7,
        batch=float("inf"),
        record=["loss", "test_loss"],
        dtype="float64",
    )
    w = np.zeros(3)
    for _ in range(7):
        w -= 0.1 * X[:15].T @ (X[:15] @ w - Y[:15]) / 15
    # Rounding in float64 of seven steps.
    np.testing.assert_allclose(run["loss"][-1], np.mean((X[:15] @ w - Y[:15]) ** 2) / 2, rtol=1e-12)
    np.testing.assert_allclose(
        run["test_loss"][-1], np.mean((X[15:] @ w - Y[15:]) ** 2) / 2, rtol=1e-12
    )


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


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    saved(tmp_path / "b.npz", slice(5, 20))
    saved(tmp_path / "a.npz", slice(5))
    found = dynsim.ArrayFile(tmp_path, test=0.5).build()
    np.testing.assert_array_equal(found.arrays["x"], X)
    np.testing.assert_array_equal(found.held_out["y"], Y[10:])


@pytest.mark.more
def test_a_file_is_a_setting_and_a_store_knows_what_was_in_it(tmp_path: Path) -> None:
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


def bad(tmp_path: Path, name: str) -> Any:
    (tmp_path / "text.npz").write_text("no arrays")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    np.savez(tmp_path / "mixed" / "a.npz", x=X)
    np.savez(tmp_path / "mixed" / "b.npz", y=Y)
    return dynsim.ArrayFile(tmp_path / name).build()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: dynsim.Arrays({"x": X, "y": Y[1:]}), "arrays: need the same number of examples"),
        (lambda _: dynsim.Arrays({"x": np.ones(())}), "arrays: need the same number of examples"),
        (lambda _: dynsim.Arrays({}), "arrays: need the same number of examples"),
        (lambda _: dynsim.Arrays({"x": X}, test=0.99), "at least one to train on"),
        (
            lambda _: dynsim.Arrays({"x": X}, test=1.0),
            "test = 1.0: must be finite and in",
        ),
        (lambda p: bad(p, "none.npz"), "none.npz: must be an .npz file, or a folder of them"),
        (lambda p: bad(p, "empty"), "empty: must be an .npz file, or a folder of them"),
        (lambda p: dynsim.Arrays({"x": np.array(["a"])}), r"\['x'\]: must be an array of numbers"),
        (lambda p: bad(p, "text.npz"), "text.npz: cannot be read as .npz"),
        (lambda p: bad(p, "mixed"), "mixed: its files must have arrays with the same names"),
    ],
)
def test_bad_examples_are_errors(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_a_batch_without_replacement_may_be_the_training_set() -> None:
    data = dynsim.Arrays({"n": np.arange(10)}, test=0.2, replace=False)
    drawn = data.draw(jax.random.key(0), 8)["n"]
    assert sorted(drawn.tolist()) == [*range(8)]
    with pytest.raises(ValueError, match="batch = 9: there are 8 examples to train on"):
        data.draw(jax.random.key(0), 9)


def test_files_are_known_by_their_bytes(tmp_path: Path) -> None:
    saved(tmp_path / "b.npz", slice(5, 20))
    saved(tmp_path / "a.npz", slice(5))
    both = (tmp_path / "a.npz").read_bytes() + (tmp_path / "b.npz").read_bytes()
    want = {"data_holds": hashlib.sha256(both).hexdigest()[:16]}
    assert dynsim.ArrayFile(tmp_path).contents() == want
    assert dynsim.Arrays({"x": X}).contents() == {}


@pytest.mark.usefixtures("unchecked")
def test_lists_of_different_lengths_are_no_array() -> None:
    with pytest.raises(ValueError, match=r"arrays\['x'\]: must be an array of numbers"):
        dynsim.Arrays({"x": [[1.0, 2.0], [3.0]]})


def test_a_batch_without_replacement_is_no_larger_than_the_training_set() -> None:
    problem = Line(dynsim.Arrays({"x": X, "y": Y}, replace=False))
    with pytest.raises(ValueError, match="batch = 21: there are 20 examples to train on"):
        dynsim.train(problem, dynsim.sgd(0.1), jax.random.key(0), steps=1, batch=21)


def test_a_command_takes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "line.npz")
    monkeypatch.chdir(tmp_path)
    given = cli.parse(["compare", f"{__name__}:Line", "--data", "line.npz", "--test", "0.5"])
    assert given.run.problem.data == dynsim.ArrayFile("line.npz", test=0.5)
    with pytest.raises(SystemExit):
        cli.parse(["compare", f"{__name__}:Line", "--data", "line.npz", "--test", "2"])
    message = "problem.data.test = 2: must be a number in [0, 1)"
    assert message in capsys.readouterr().err


class Mean(dynsim.Problem):
    """The number nearest to numbers: |w - y|^2 / 2, from w = 0."""

    y: Any

    def init(self, key: Any) -> Any:
        return jnp.zeros(())

    def numbers(self) -> Any:
        return self.y.train["y"] if isinstance(self.y, dynsim.Arrays) else jnp.asarray(self.y)

    def draw(self, key: Any, batch: int) -> Any:
        y = jnp.asarray(self.numbers())
        return y[jax.random.randint(key, (batch,), 0, len(y))]

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.mean(jnp.abs(params - data) ** 2) / 2

    def population_loss(self, params: Any) -> Any:
        return self.loss(params, self.numbers())


NUMBERS = np.arange(1.0, 9.0)
ENTRIES: dict[str, Callable[[Any], Any]] = {
    "field": Mean,
    "Arrays": lambda y: Mean(dynsim.Arrays({"y": y})),
}


def at_end(problem: Any, way: str) -> float:
    """Return the loss after 5 steps with rate 0.1, by training, a flow or a sweep."""
    rule, key, steps = dynsim.sgd(0.1), jax.random.key(0), 5
    if way == "flow":
        return float(odes.flow(problem, rule, [0, steps], key=key)["loss"][-1])
    if way == "train":
        options: Any = {"batch": float("inf"), "times": [steps], "dtype": "float64"}
        return float(dynsim.train(problem, rule, key, steps=steps, **options)["loss"][-1])
    run = sweeps.Experiment(problem, rule, steps, batch=float("inf"), dtype="float64")
    sweep = sweeps.Sweep(run, {"eta": [0.1]}, record="loss")
    return sweeps.run(sweep, progress=False)["loss"].values.ravel()[-1].item()


@pytest.mark.parametrize("way", ["train", "flow", "sweep"])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.more
def test_complex_numbers_keep_both_parts(entry: str, way: str) -> None:
    y = NUMBERS + 1j * NUMBERS**2
    # w follows the mean of the real parts; the rest of the loss stays.
    left = np.exp(-0.5) if way == "flow" else 0.9**5
    w = NUMBERS.mean() * (1 - left)
    want = np.mean(np.abs(w - y) ** 2) / 2
    # The solver's tolerance in float64.
    assert at_end(ENTRIES[entry](y), way) == pytest.approx(want, rel=1e-6)


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize("way", ["train", "flow", "sweep"])
@pytest.mark.parametrize("kind", [">f4", np.longdouble, ">i8"])
@pytest.mark.more
def test_other_layouts_of_the_same_numbers_give_the_same_run(kind: Any, way: str) -> None:
    w = NUMBERS.mean() * (1 - (np.exp(-0.5) if way == "flow" else 0.9**5))
    want = np.mean((w - NUMBERS) ** 2) / 2
    assert at_end(Mean(NUMBERS.astype(kind)), way) == pytest.approx(want, rel=1e-6)


WRONG = {
    "integers": (np.full(8, 2**32 + 3), "= 4294967299: is the largest integer; 8 of 8"),
    "masked": (np.ma.masked_equal(NUMBERS, 2), r"\[1\]: is masked, as are 1 of 8"),
    "structured": (np.zeros(8, [("a", "f4")]), "is structured"),
    "overflow": (np.where(NUMBERS == 3, 1e200, NUMBERS), r"\[2\] = 1e\+200: is infinite"),
    "missing": (np.where(NUMBERS == 3, np.nan, NUMBERS), r"\[2\] = nan: is not finite"),
}


@pytest.mark.parametrize("way", ["train", "flow", "sweep"])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_are_errors_that_name_them(name: str, entry: str, way: str) -> None:
    y, message = WRONG[name]
    where = {"field": r"(Mean|problem)\.y", "Arrays": r"(Mean\.y\.)?arrays\['y'\]"}[entry]
    with pytest.raises(ValueError, match=where + r".*" + message) as caught:
        at_end(ENTRIES[entry](y), way)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", WRONG)
def test_data_of_a_run_is_checked_like_fields(name: str) -> None:
    y, message = WRONG[name]
    data = {"y": y.reshape(2, 4)}
    message = message.replace(r"\[1", r"\[0, 1").replace(r"\[2", r"\[0, 2")
    with pytest.raises(ValueError, match=r"data\['y'\].*" + message):
        dynsim.train(Mean(NUMBERS), dynsim.sgd(0.1), jax.random.key(0), steps=2, data=data)


def test_complex_batches_are_trained_on_as_they_are() -> None:
    y = np.array([[1 + 2j, 3 - 1j], [2 + 1j, 4j]])
    run = dynsim.train(
        Mean(NUMBERS), dynsim.sgd(0.5), jax.random.key(0), steps=2, times=[0, 1], data=y
    )
    # w = 0, then half of the mean of the first real parts, 2.
    want = [np.mean(np.abs(w - each) ** 2) / 2 for w, each in zip((0, 1), y, strict=True)]
    np.testing.assert_allclose(run["batch_loss"], want, rtol=1e-6)


def test_files_are_checked_before_they_are_joined(tmp_path: Path) -> None:
    # Joined with float32, the integers would be rounded.
    np.savez(tmp_path / "a.npz", y=np.array([2**53 + 1]))
    np.savez(tmp_path / "b.npz", y=np.ones(1, "f4"))
    with pytest.raises(ValueError, match=r"a.npz: 'y'\[0\] = 9007199254740993: is the largest"):
        dynsim.ArrayFile(tmp_path).build()
    np.savez(tmp_path / "c.npz", y=[1.0, np.inf])
    with pytest.raises(ValueError, match=r"Mean\.y\.arrays\['y'\]\[1\] = inf: is not finite"):
        at_end(Mean(dynsim.ArrayFile(tmp_path / "c.npz")), "train")


class Partial(Mean):
    """Labels may be missing."""

    def allows_nonfinite(self) -> bool:
        return True

    def loss(self, params: Any, data: Any) -> Any:
        known = jnp.isfinite(data)
        return jnp.sum(jnp.where(known, params - data, 0) ** 2) / 2 / jnp.sum(known)


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize("way", ["train", "flow"])
def test_a_problem_may_want_missing_labels(way: str) -> None:
    y = np.where(NUMBERS == 3, np.nan, NUMBERS)
    w = np.nanmean(y) * (1 - (np.exp(-0.5) if way == "flow" else 0.9**5))
    assert at_end(Partial(y), way) == pytest.approx(np.nanmean((w - y) ** 2) / 2, rel=1e-6)
    fixed = dynsim.full_batch(Partial(np.full(8, np.nan)), jax.random.key(0), 4)
    assert fixed.allows_nonfinite()


def test_examples_that_a_problem_draws_are_checked() -> None:
    class Fixed(Mean):
        def draw(self, key: Any, batch: int) -> Any:
            return np.full(batch, 2**40)

    with pytest.raises(ValueError, match=r"Fixed.draw.*= 1099511627776: is the largest integer"):
        dynsim.train(Fixed(NUMBERS), dynsim.sgd(0.1), jax.random.key(0), steps=1, batch=2)
    with pytest.raises(ValueError, match=r"FullBatch\.data\[0\]\[0\] = nan"):
        at_end(FullBatch(Mean(NUMBERS), [np.full(8, np.nan)]), "train")


@pytest.mark.usefixtures("unchecked")
def test_numbers_and_weights_of_a_run_are_checked_in_its_precision() -> None:
    problem, key = Mean(NUMBERS), jax.random.key(0)
    with pytest.raises(ValueError, match=r"rule\.eta\.peak = 1e\+200: is infinite in float32"):
        dynsim.train(problem, dynsim.sgd(1e200), key, steps=1)
    options: Any = {"steps": 1, "batch": float("inf")}
    with pytest.raises(ValueError, match=r"init = 1e\+200: is infinite in float32"):
        dynsim.train(problem, dynsim.sgd(0.1), key, init=np.float64(1e200), **options)
    with pytest.raises(ValueError, match=r"init = c128.*: must be real weights"):
        dynsim.train(problem, dynsim.sgd(0.1), key, init=np.array(1j), **options)
    for times in (np.ma.masked_equal([0, 5, 9], 5), np.array([0, 1j])):
        with pytest.raises(ValueError, match="times"):
            odes.flow(problem, dynsim.sgd(0.1), times, key=key)
        with pytest.raises(ValueError, match="times"):
            dynsim.train(problem, dynsim.sgd(0.1), key, steps=9, times=times, batch=float("inf"))
    rates = np.ma.masked_equal([0.1, 0.2], 0.2)
    run = sweeps.Experiment(problem, dynsim.sgd(0.1), 5)
    with pytest.raises(ValueError, match=r"eta.*\[1\]: is masked"):
        sweeps.run(sweeps.Sweep(run, {"eta": rates}), progress=False)
