"""The measurements that the documentation quotes: `make tables`."""

import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

import dynsim
from dynsim import Trajectory
from sweeps import output
from sweeps.studies.scaling import Verdict
from tests.docs.test_site import DOCS, tool

pytestmark = pytest.mark.usefixtures("quick_theory")

# Where a script finds the others when it is run.
sys.path.append(str(DOCS / "tools" / "measured"))
NAMES = ("bursts", "eq10", "errata", "flows", "rules", "tails", "verdicts")
bursts, eq10, errata, flows, rules, tails, verdicts = (
    tool(f"tools/measured/{name}.py") for name in NAMES
)
PUBLISHED = (0.19, 0.10, 0.88, 0.23)
"""Corners of the map of the matched flow in docs/results/accuracy.md, in %."""
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def test_tables_in_markdown_and_in_columns() -> None:
    rows = [("a", "1"), ("longer", "-2")]
    assert output.markdown_table(("name", "value"), iter(rows)) == [
        "| name | value |",
        "|---|---|",
        "| a | 1 |",
        "| longer | -2 |",
    ]
    # The last width is that of all columns behind it.
    assert output.aligned([("a", "1", "2", "3")], 3, 2, 4) == ["a   1   2   3"]


@pytest.mark.more
def test_the_matched_flow_is_within_one_percent_on_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "GRID", np.geomspace(0.01, 1, 3))
    errors = flows.flow_error("matched", flows.momentum)
    assert errors.shape == (3, 3)
    # At the ends of the map; eta_Y is down.
    np.testing.assert_allclose(100 * errors[[0, 0, 2, 2], [0, 2, 0, 2]], PUBLISHED, atol=0.1)


def test_an_overlapping_task_has_the_overlap_asked_for() -> None:
    for K, overlap in ((2, 0.01), (5, 0.6)):
        probs = np.asarray(dynsim.Overlapping(K, overlap).build().probs)
        f = probs / np.linalg.norm(probs, axis=1, keepdims=True)
        want = overlap + (1 - overlap) * np.eye(K)
        np.testing.assert_allclose(f @ f.T, want, rtol=1e-12)


@pytest.mark.full("systems/test_yz.py::test_theories_in_equal_steps")
def test_eq10_is_exact_for_lemma_3_and_only_for_it() -> None:
    errors = eq10.eq10_errors(5, 0.3)
    # Twice the solver's tolerance of 1e-8, accumulated over the run.
    assert errors.finite_m < 1e-6
    # In the paper's convention all K = 5 classes count in full instead of 1/K each.
    np.testing.assert_allclose(errors.finite_m_paper, 4, rtol=0.5)
    assert errors.speed < 0.1 < errors.logit


def test_of_a_trajectory_the_worst_is_taken_behind_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B is the state where it is recorded, else pi eta_Z times the integral of xi."""
    bounds = []

    def sandwich(task: Any, z: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bounds.append(B)
        margins = np.array([[-9.0, -9], [0.3, 0.1], [0.2, 0.4]])
        return margins, margins[::-1] * 2

    monkeypatch.setattr(eq10.predictions, "sandwich", sandwich)
    signs = SimpleNamespace(distinct=0.75, common=0.5)
    monkeypatch.setattr(eq10.predictions, "agreement", lambda *given: signs)
    errors = np.array([[np.nan, 0.1], [0.3, 0.2]])
    monkeypatch.setattr(eq10.predictions, "relative_gain_error", lambda *given: errors)
    task, times = dynsim.SynSmall().build(), np.array([0.0, 2, 6])
    xi = np.array([[1.0, 0], [3, 2], [5, 4]])
    observables = {"z": np.zeros((3, 1, 34)), "xi": xi}
    run = Trajectory(times, observables, None, np.array(0), np.array(-1), "")
    found = eq10.tested(task, times, run)
    assert found == pytest.approx((0.75, 0.5, 0.3, 0.1, -18))
    # Half of 0.1 times 2 * 2 + 4 * 4, and 2 * 1 + 4 * 3.
    np.testing.assert_allclose(bounds[0], [[0, 0], [0.2, 0.1], [1.0, 0.7]])
    known = Trajectory(times, observables | {"B": xi * 7}, None, np.array(0), np.array(-1), "")
    eq10.tested(task, times, known)
    np.testing.assert_array_equal(bounds[1], xi * 7)


@pytest.mark.more
def test_the_table_of_rules_has_the_orders_of_flows() -> None:
    tested = rules.RULES["SGD"]
    network = rules.PROBLEMS["tanh network"]
    errors = rules.errors_of(network, tested, tested.rates[0], "decoupled decay")
    orders = {flow: np.log2(coarse / fine) for flow, (coarse, fine) in errors.items()}
    # Terms of the next order change it by eta times a curvature, 0.2 at most.
    assert orders["plain"] == pytest.approx(1, abs=0.2)
    # Equal steps leave an error of their own, below that.
    assert max(errors["corrected"]) < errors["plain"][1]


def test_the_table_of_tails_has_the_errors_of_theories(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = np.array([[1.0, 3.0], [2.0, 5.0], [3.0, 7.0]])
    theories = ({"a": np.array([2.2, 4.5])}, {"a": np.array([0.5, 0.25])})
    monkeypatch.setattr(tails, "trained", lambda seeds, times: made_up)
    monkeypatch.setattr(tails, "predicted", lambda times: theories)
    assert list(tails.rows(3, (10, 20))) == [
        ("mean, runs", "2 ± 0.6", "5 ± 1"),
        ("mean, a", "+10.00 %", "-10.00 %"),
        ("standard deviation, runs (± 50 %)", "1.00e+00", "2.00e+00"),
        ("standard deviation, a", "5.00e-01", "2.50e-01"),
    ]


@pytest.mark.full(
    "test_the_table_of_tails_has_the_errors_of_theories",
    "odes/symmetric/test_saddle.py::test_the_loss_is_that_of_all_sequences_where_the_first_order_fails",
)
def test_rare_sequences_make_the_loss_late_in_training() -> None:
    runs = tails.trained(8, (300,))[:, 0]
    means, _ = tails.predicted((300,))
    error = runs.std(ddof=1) / 8**0.5
    assert abs(means["4096 sequences"][0] - runs.mean()) < 4 * error
    # The first order is 1.8 % off, of which the runs know 0.1 %.
    assert abs(means["first order"][0] - runs.mean()) > 8 * error


# All measurements of a page.
@pytest.mark.full(
    "odes/formulas/test_growth.py::test_the_printed_bound_lacks_a_constant",
    "odes/formulas/test_predictions.py::test_conventions_differ_by_the_prior",
    "odes/formulas/test_predictions.py::test_remark_1_is_a_slower_decoder",
)
def test_the_page_of_errata_is_current() -> None:
    written, kept = errata.markdown(), errata.PAGE.read_text()
    assert NUMBER.sub("#", written) == NUMBER.sub("#", kept)
    for new, old in zip(NUMBER.findall(written), NUMBER.findall(kept), strict=True):
        # Rounding errors, quoted to one digit, differ from machine to machine.
        if abs(float(old)) > 1e-3:
            assert abs(float(new) / float(old) - 1) < 0.02, (new, old)


@pytest.mark.parametrize("law", [stats.logistic, stats.gumbel_r])
def test_steps_have_the_width_that_is_asked_for(law: stats.rv_continuous) -> None:
    """That of the density, which is largest at 0, at half height."""
    half = lambda x: law.pdf(x) - law.pdf(0) / 2
    low, high = (float(np.asarray(optimize.brentq(half, 0, side))) for side in (-9, 9))
    unit = verdicts.UNITS[law.name.removesuffix("_r")]
    assert unit == pytest.approx(high - low, rel=1e-9)


@pytest.mark.more
def test_verdicts_on_steps_of_known_widths_are_false_as_often_as_the_level_says() -> None:
    def shares(number: int, seeds: int, column: str, draws: int) -> Any:
        curve, widths = verdicts.COLUMNS[column]
        return verdicts.shares(number, seeds, widths, draws, curve)[0.025]

    smooth, stops, slow = (shares(5, 32, name, 80) for name in ("a = 0", "stops", "a = 0.25"))
    # Of 80 draws more than 6 are 1 in 200 at 2.5 %.
    assert smooth[Verdict.TRANSITION] <= 6 / 80
    assert stops[Verdict.TRANSITION] <= 6 / 80
    assert slow[Verdict.CROSSOVER] <= 6 / 80
    assert smooth[Verdict.CROSSOVER] > 0.15
    narrow = shares(3, 128, "a = 0.5", 20)
    assert narrow[Verdict.CROSSOVER] == 0
    assert narrow[Verdict.TRANSITION] > 0.4


@pytest.mark.more
def test_the_networks_with_bursts_have_73_weights_and_the_sharpness_of_numpy() -> None:
    problem = bursts.network(1)
    assert problem.begin.size == 73
    x, (first, last) = problem.x, (problem.begin[:48], problem.begin[60:72])

    def loss(w: np.ndarray) -> float:
        hidden = x @ w[:48].reshape(12, 4).T + w[48:60]
        out = (hidden * stats.norm.cdf(hidden)) @ w[60:72] + w[72]
        return float(np.mean((out - np.sin(2 * x[:, 0]) - x[:, 0] * x[:, 1] / 2) ** 2) / 2)

    assert np.std(first) == pytest.approx(0.6 / 2, rel=0.3)
    assert np.std(last) == pytest.approx(0.6 / 12**0.5, rel=0.6)
    # Along a direction, half a thousandth away on either side.
    (found,) = bursts.sharpness(problem, problem.begin[None])
    bend = lambda v: loss(problem.begin + v) + loss(problem.begin - v) - 2 * loss(problem.begin)
    directions = np.eye(73) * 1e-3
    hessian = np.array([[bend(a + b) - bend(a) - bend(b) for a in directions] for b in directions])
    want = 0.8 * np.linalg.eigvalsh(hessian / 2e-6)[-1]
    assert found == pytest.approx(want, rel=1e-4)


def test_widths_that_level_off_are_those_of_their_names() -> None:
    sizes = np.array([8, 32, 64, 128])
    np.testing.assert_allclose(verdicts.stops(sizes), [4, 2, 2, 2])
    np.testing.assert_allclose(verdicts.approaches(sizes), [4, 2.5, 2.25, 2.125])
    np.testing.assert_allclose(verdicts.power(0.5, sizes), [4, 2, 2**0.5, 1])
