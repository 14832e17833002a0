"""The tables of `dynsim validate` from made-up trajectories, whose errors are known."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Status, Trajectory
from sweeps.studies import tables

TOP = tables.TOP


def cells(text: str) -> list[list[str]]:
    """The cells of a table in Markdown, below its head."""
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def rate(rule: Any, name: str) -> float:
    """The learning rate of Y or Z."""
    (number,) = jax.tree.leaves(rule.eta[name])
    return float(number)


def test_the_table_of_corrections_has_signed_errors_at_the_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Descent reaches 2 eta_Y, and each flow misses it by its own share, by its end only."""
    off = {("sgd", "plain"): 0.1, ("momentum", "matched"): -0.05, "corrected": 0.002}

    def descend(task: Any, rule: Any, *, steps: int, times: list[int], record: Any = ()) -> Any:
        assert (steps, times) == (100, [100])
        return {TOP: np.array([2 * rate(rule, "Y")])}

    def solve(task: Any, rule: Any, times: list[int], *, flow: str) -> Any:
        assert times == [0, 100]
        kind = "momentum" if np.any(rule.mu) else "sgd"
        share = off.get((kind, flow), off.get(flow)) * rate(rule, "Z")
        return {TOP: np.array([7.0, 2 * rate(rule, "Y") * (1 + share)])}

    monkeypatch.setattr(tables.symmetric, "descend", descend)
    monkeypatch.setattr(tables.symmetric, "solve", solve)
    rates = [("0.1", "0.1"), ("1", "1"), ("3", "1"), ("5", "1"), ("10", "1")]
    wanted = []
    for rule, usual, small in (("sgd", 10, "+1.000 %"), ("momentum 0.9", -5, "-0.500 %")):
        for i, pair in enumerate(rates):
            errors = [f"{usual:+.3f} %", "+0.200 %"] if i else [small, "+0.020 %"]
            wanted.append([rule, *pair, *errors])
    assert cells(tables.correction().text) == wanted


def test_the_error_of_a_flow_is_the_largest_at_either_time_if_both_end_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flow misses descent by 0.2 eta_Y upwards at the first time, and by 0.3 eta_Z downwards at
    the second. It fails at the largest rate of Z, and descent at the largest one of Y."""
    grid = np.array([0.1, 0.5, 2.0, 3.0])
    monkeypatch.setattr(tables, "GRID", grid)
    rates = lambda rule: (jax.tree.leaves(rule.eta[name])[0] for name in "YZ")

    def ended(times: np.ndarray, values: Any, status: Any, record: Any) -> Trajectory:
        assert (times.tolist(), record) == ([50, 100], (TOP,))
        return Trajectory(jnp.asarray(times), {TOP: values}, None, status, jnp.int32(-1), "")

    def descend(task: Any, rule: Any, *, steps: int, times: np.ndarray, record: Any) -> Trajectory:
        assert steps == 100
        y, _ = rates(rule)
        failed = jnp.int32(Status.DIVERGED) * (y > 2.5)
        return ended(times, -times * y, failed, record)

    def solve(task: Any, rule: Any, times: np.ndarray, *, flow: str, record: Any) -> Trajectory:
        assert flow == "matched"
        y, z = rates(rule)
        off = 1 + jnp.stack([0.2 * y, -0.3 * z])
        failed = jnp.int32(Status.SOLVER_FAILED) * (z > 2.5)
        return ended(times, -times * y * off, failed, record)

    monkeypatch.setattr(tables.symmetric, "descend", descend)
    monkeypatch.setattr(tables.symmetric, "solve", solve)
    want = np.maximum(0.2 * grid[:, None], 0.3 * grid)
    want[3], want[:, 3] = np.inf, np.inf
    np.testing.assert_allclose(tables.flow_error("matched", tables.MOMENTUM), want, rtol=1e-12)


def test_maps_of_errors_have_their_shares_and_those_of_small_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 144 points, of which nine rates each way, up to 0.28, make 81."""
    made_up = np.full((12, 12), 0.001)
    made_up[:9, :9] = 0.2
    made_up[0, :9], made_up[1, :5], made_up[8, 3] = 0.03, 0.04, 0.5
    scales = {"corrected-adam": 1.0, "matched-adam": 2.0, "adam": 0.1}

    def flow_error(flow: str, optimizer: Any) -> np.ndarray:
        assert optimizer is dynsim.adam
        return scales[flow] * made_up

    monkeypatch.setattr(tables, "flow_error", flow_error)
    monkeypatch.setattr(tables, "draw", lambda *given: given)
    text, arrays, drawn = tables.adam()
    assert cells(text) == [
        ["`corrected-adam`", "43.8 %", "50.0 %", "53.5 %", "50 %"],
        ["`matched-adam`", "43.8 %", "43.8 %", "53.5 %", "1e+02 %"],
        ["`adam`", "53.5 %", "99.3 %", "100.0 %", "5 %"],
    ]
    assert text.splitlines()[-5:] == [
        "Within 3 % where both rates are at most 0.3:",
        "",
        "* `corrected-adam`: 11.1 %",
        "* `matched-adam`: 0.0 %",
        "* `adam`: 98.8 %",
    ]
    rows = [line.split() for line in text.splitlines() if line.startswith("    ")]
    written = np.array(rows, float).reshape(3, 12, 12)
    assert list(drawn[1]) == list(scales)
    for shown, (flow, scale) in zip(written, scales.items(), strict=True):
        # To two digits behind the point.
        np.testing.assert_allclose(shown, 100 * scale * made_up, atol=0.005)
        np.testing.assert_array_equal(arrays[f"error/{flow}"], scale * made_up)
        assert drawn[1][flow] is arrays[f"error/{flow}"]
    np.testing.assert_allclose(arrays["rates"], 10 ** np.linspace(-2, 0, 12))


def test_errors_of_eq_10_are_l2_norms_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow is 3 and 4 with 38 zeros, of norm 5; each solution is off by a number of its own."""
    asked = []
    off = {(False, "sgd"): 1, (False, "paper"): 2, (True, "sgd"): 3, (True, "paper"): 4}

    def solved(scale: float, *, wrong: float = 0.0, speed: float = 0.0) -> Any:
        def solve(task: Any, rule: Any, times: np.ndarray, **options: Any) -> Any:
            asked.append((task, rule, times))
            curve = np.zeros(41)
            curve[:2] = 3 * scale, 4 * scale
            miss = off.get((options.get("finite_m"), options.get("convention")), 0)
            return {TOP: curve + miss * (np.arange(41) == 0), "speed": curve * (1 + miss / 100)}

        return solve

    monkeypatch.setattr(tables.population, "solve", solved(1))
    monkeypatch.setattr(tables.lemma3, "solve", solved(2))
    monkeypatch.setattr(tables.eq10, "solve", solved(1))
    found = tables.eq10_errors(4, 0.3)
    assert found.speed == pytest.approx(0.01)
    assert (found.logit, found.logit_paper) == pytest.approx((1 / 5, 2 / 5))
    # Of (6, 8), from (3 + miss, 4).
    wanted = [np.hypot(3 - miss, 4) / 10 for miss in (1, 3, 4)]
    assert found[3:] == pytest.approx(wanted)
    for task, rule, times in asked:
        f = np.asarray(task.probs) / np.linalg.norm(task.probs, axis=1, keepdims=True)
        assert (len(f), f[0] @ f[1]) == pytest.approx((4, 0.3))
        assert (rate(rule, "Y"), rate(rule, "Z")) == pytest.approx((1, 0.1))
        end = 12 * 4 * np.log(f.shape[1])
        np.testing.assert_allclose(times, [0, *np.logspace(-1, np.log10(end), 40)])


def test_the_table_of_overlaps_leaves_out_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def errors(K: int, overlap: float) -> tables.Eq10Errors:
        return tables.Eq10Errors(K / 1000, overlap, 0.125, 2, 3e-7, 99)

    shown: list[str] = []

    def each(items: Any, unit: str, name: Any) -> Any:
        shown.extend(f"{unit} {name(item)}" for item in items)
        return items

    monkeypatch.setattr(tables, "eq10_errors", errors)
    monkeypatch.setattr(tables.progress, "each", each)
    rows = cells(tables.overlap().text)
    assert (shown[0], shown[-1]) == ("case K=2, overlap=0.01", "case K=10, overlap=0.6")
    assert len(rows) == 15
    assert rows[0] == ["2", "0.01", "0.2 %", "1 %", "12 %", "2e+02 %", "3e-05 %"]
    assert rows[-1][:4] == ["10", "0.6", "1 %", "60 %"]


def test_theorems_are_averaged_over_runs_and_bounds_are_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def theory(name: str, number: float) -> Any:
        def solve(task: Any, rule: Any, times: np.ndarray, **options: Any) -> Any:
            asked[name] = (rate(rule, "Y"), rate(rule, "Z"), times, options["record"])
            # So that laws which are exact on this flow are missed by rounding alone.
            assert options["tolerances"].rtol <= 1e-10
            assert options["tolerances"].atol <= 1e-12
            return number

        return solve

    def train(task: Any, rule: Any, key: Any, **options: Any) -> Any:
        asked["train"] = (rule, options)
        return {"z": jax.random.uniform(key, dtype="float32")}

    keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(8)]
    drawn = np.array([float(jax.random.uniform(key, dtype="float32")) for key in keys])

    def tested(task: Any, times: np.ndarray, run: Any) -> tuple[float, ...]:
        value = float(run["z"]) if isinstance(run, dict) else run
        return value, value / 2, value / 10, value - 1, -value

    monkeypatch.setattr(tables.eq10, "solve", theory("eq10", 1.0))
    monkeypatch.setattr(tables.population, "solve", theory("population", 0.5))
    monkeypatch.setattr(tables.dynsim, "train", train)
    monkeypatch.setattr(tables, "tested", tested)
    closed, flow, runs = cells(tables.theorems().text)
    assert closed[1:] == ["100.0 %", "50.0 %", "10 %", "+0.0e+00", "-1.0e+00"]
    assert flow[1:] == ["50.0 %", "25.0 %", "5 %", "-5.0e-01", "-5.0e-01"]
    mean = drawn.mean()
    assert runs[1:3] == [f"{100 * mean:.1f} %", f"{50 * mean:.1f} %"]
    assert runs[3:] == [
        f"{10 * drawn.max():.2g} %",
        f"{drawn.min() - 1:+.1e}",
        f"{-drawn.max():+.1e}",
    ]
    assert asked["eq10"][:2] == pytest.approx((1, 0.1))
    assert asked["eq10"][3] == ("z", "xi", "B")
    np.testing.assert_array_equal(asked["population"][2], dynsim.log_times(1000, 40))
    assert (asked["train"][1]["steps"], asked["train"][1]["batch"]) == (1000, 128)
    assert runs[0] == "simulation, T = 128, 8 runs"


def test_of_a_trajectory_the_worst_is_taken_behind_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B is the state where it is recorded, else pi eta_Z times the integral of xi."""
    bounds = []

    def sandwich(task: Any, z: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bounds.append(B)
        margins = np.array([[-9.0, -9], [0.3, 0.1], [0.2, 0.4]])
        return margins, margins[::-1] * 2

    monkeypatch.setattr(tables.predictions, "sandwich", sandwich)
    signs = SimpleNamespace(distinct=0.75, common=0.5)
    monkeypatch.setattr(tables.predictions, "agreement", lambda *given: signs)
    errors = np.array([[np.nan, 0.1], [0.3, 0.2]])
    monkeypatch.setattr(tables.predictions, "relative_gain_error", lambda *given: errors)
    task, times = dynsim.SynSmall().build(), np.array([0.0, 2, 6])
    xi = np.array([[1.0, 0], [3, 2], [5, 4]])
    observables = {"z": np.zeros((3, 1, 34)), "xi": xi}
    run = Trajectory(times, observables, None, np.array(0), np.array(-1), "")
    found = tables.tested(task, times, run)
    assert found == pytest.approx((0.75, 0.5, 0.3, 0.1, -18))
    # Half of 0.1 times 2 * 2 + 4 * 4, and 2 * 1 + 4 * 3.
    np.testing.assert_allclose(bounds[0], [[0, 0], [0.2, 0.1], [1.0, 0.7]])
    known = Trajectory(times, observables | {"B": xi * 7}, None, np.array(0), np.array(-1), "")
    tables.tested(task, times, known)
    np.testing.assert_array_equal(bounds[1], xi * 7)


def test_the_seconds_of_a_huge_task_are_the_median_of_three_warm_solves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def solve(task: Any, *, optimizer: Any, times: np.ndarray) -> Any:
        sizes = int(task.K), int(task.M), int(task.num_queries), times.size
        asked.append((sizes, rate(optimizer, "Y"), times[[0, 1, -1]].tolist()))
        run = Trajectory(times, {}, None, np.array(0), np.array(-1), "")
        return run

    monkeypatch.setattr(tables.symmetric, "solve", solve)
    ticks = iter([0.0, 5.0, 10.0, 10.25, 20.0, 21.0])
    monkeypatch.setattr(tables, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    text = tables.size().text
    assert text == "K = 1e5, M = 1e6, t = 1e8: 1.000 s warm, OK\n"
    assert [each[0] for each in asked] == [(10**5, 10**6, 10**5, 31)] * 4
    # The first of them compiles.
    assert [each[1] for each in asked] == pytest.approx([1, 0.9, 1.1, 1])
    assert asked[0][2] == pytest.approx([0, 1, 1e8])


def test_shares_and_colours_of_a_map_are_those_of_its_errors() -> None:
    import matplotlib.pyplot as plt

    errors = np.full((12, 12), 0.005)
    errors[0, :6], errors[1, 0], errors[2, 0] = 0.01, 3.0, 1e-6
    assert tables.share_within(errors, 0.01) == pytest.approx(143 / 144)
    ax = tables.plot_map(errors, plt.figure().subplots())
    shown = np.asarray(ax.collections[0].get_array())
    assert shown.shape == (12, 12)
    np.testing.assert_allclose(
        [shown[0, 5], shown[0, 6], shown[1, 0], shown[2, 0]], [1, 0.5, 100, 0.01]
    )
    assert re.search("eta_Z", ax.get_xlabel())
    plt.close("all")
