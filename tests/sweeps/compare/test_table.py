"""The table of a comparison, character by character, from a report made up by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dynsim
from odes.decoder import Stages
from sweeps import cli
from sweeps.compare import comparison, scatter, theories
from sweeps.compare.layer import LayerComparison
from sweeps.compare.settings import CompareOptions
from sweeps.systems.experiment import experiment


def report(sampling: float | None, floored: bool, status: dict[str, int], theories: int) -> Any:
    """Two observables, of which the second one has no value of its own."""
    errors = {
        "loss": {"over_time": 0.01234, "at_end": 0.5, "floored": floored},
        "xi": {"over_time": None, "at_end": 2.0, "floored": False},
    }
    theory = {
        "relative_error": errors,
        "sampling_errors": {"loss": sampling, "xi": None},
        "status": status,
    }
    own = {name: {"over_time": 0.1, "at_end": 0.25, "floored": False} for name in errors}
    names = [f"theory-{i}" for i in range(theories)]
    return {
        "simulation": {"sampling_error": own},
        "theories": dict.fromkeys(names, theory),
    }


EXPLAINED = [
    "about",
    "",
    "Relative error in % against the mean of the runs: over time (root mean square over the",
    "recorded times, divided by that of the mean) / at the end.",
    "'sampling' is the standard error of that mean: smaller differences mean nothing.",
]
FLOORED = "* The mean at the end is below its sampling error; the error is relative to that."
CHANCE = "The same over time, in sampling errors: differences of about 1 are due to chance."


def row(first: str, *others: str) -> str:
    return f"{first:<17}" + "".join(f"{each:>19}" for each in others)


@pytest.mark.parametrize("floored", [False, True])
@pytest.mark.parametrize("sampling", [None, 1.2345])
@pytest.mark.parametrize("status", [{"OK": 3}, {"OK": 2, "DIVERGED": 1}])
def test_the_table_has_the_numbers_of_the_report(
    floored: bool, sampling: float | None, status: dict[str, int]
) -> None:
    found = comparison.lines(report(sampling, floored, status, 1), ("loss", "xi"), ["about"])
    assert found == [
        *EXPLAINED,
        *[FLOORED] * floored,
        "",
        row("", "sampling", "theory-0"),
        row("loss", "10 / 25", "1.23 / 50" + "*" * floored),
        row("xi", "10 / 25", "- / 200"),
        *(
            ["", CHANCE, "", row("", "theory-0"), row("loss", "1.23"), row("xi", "-")]
            * bool(sampling)
        ),
        *["", "theory-0: 2 OK, 1 DIVERGED", found[-1]] * (len(status) > 1),
    ]
    assert found[-1].startswith("DIVERGED: ") == (len(status) > 1)


@pytest.mark.parametrize("status", ["DIVERGED", "MAX_STEPS", "SOLVER_FAILED", "BEYOND_EDGE"])
def test_a_theory_that_fails_says_how(status: str) -> None:
    """In place of its errors, which do not exist, and in words."""
    made = report(1.0, False, {"OK": 1}, 2)
    nothing = {"over_time": None, "at_end": None, "floored": False}
    made["theories"]["theory-1"] = {
        "relative_error": dict.fromkeys(("loss", "xi"), nothing),
        "sampling_errors": dict.fromkeys(("loss", "xi")),
        "status": {status: 1},
    }
    found = comparison.lines(made, ("loss", "xi"), ["about"])
    assert found[7:9] == [
        row("loss", "10 / 25", "1.23 / 50", status),
        row("xi", "10 / 25", "- / 200", status),
    ]
    assert found[-2] == f"theory-1: 1 {status}"
    assert found[-1].startswith(f"{status}: ")


@pytest.mark.parametrize("theories", [5, 6])
def test_more_than_six_columns_become_rows(theories: int) -> None:
    """Also those of `sampling`, which the table of sampling errors lacks."""
    found = comparison.lines(report(2.0, False, {"OK": 1}, theories), ("loss", "xi"), ["about"])
    names = [f"theory-{i}" for i in range(theories)]
    head = row("", "loss", "xi") if theories == 6 else row("", "sampling", *names)
    assert found[6] == head
    errors = row("theory-5", "1.23 / 50", "- / 200")
    assert (errors in found) == (theories == 6)
    at = found.index(CHANCE) + 2
    assert found[at] == row("", *names)
    assert found[at + 1] == row("loss", *["2"] * theories)


def test_long_names_have_wide_columns() -> None:
    made = report(2.0, False, {"OK": 1}, 1)
    made["theories"] = {"a-theory-of-24-characters": made["theories"]["theory-0"]}
    long = "an_observable_of_26_letters"
    for side in (made["simulation"]["sampling_error"], *(made["theories"].values())):
        for each in (side, side.get("relative_error", {}), side.get("sampling_errors", {})):
            if "loss" in each:
                each[long] = each.pop("loss")
    found = comparison.lines(made, (long,), ["about"])
    assert found[7] == f"{long:<28}{'10 / 25':>28}{'1.23 / 50':>28}"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"over_time": 0.5, "at_end": None}, "50 / -"),
        ({"over_time": None, "at_end": 1e-4}, "- / 0.01"),
        ({"over_time": 0.012345, "at_end": 2.0, "floored": True}, "1.23 / 200*"),
    ],
)
def test_a_cell_has_percent(given: dict[str, Any], text: str) -> None:
    assert comparison.cell(**given) == text


def test_standard_deviations_have_a_table_of_their_own() -> None:
    row = lambda *cells: f"{cells[0]:<17}" + "".join(f"{cell:>16}" for cell in cells[1:])
    head = row("", "predicted", "its error", "of the runs", "sampling error", "strained")
    about = "Standard deviation across seeds at the end."
    loss = dict(zip(NAMES, (0.12345, 0.01, None, 2.0, False), strict=True))
    line = row("loss", "0.123", "0.01", "-", "2", "-")
    assert scatter.lines({"loss": loss}) == ["", about, "", head, line]
    assert scatter.lines({"loss": loss}, "plain")[1] == f"plain: {about}"
    far = dict(zip(NAMES, (5.9e-10, 1e-11, 1.7e-5, 4e-6, True), strict=True))
    none = dict(zip(NAMES, (0.0, 0.0, 1.0, 0.1, True), strict=True))
    found = scatter.lines({"loss": loss, "far": far, "none": none})
    assert found[4] == line
    assert found[5] == row("far", "5.9e-10", "1e-11", "1.7e-05", "4e-06", "2.88e+04 times")
    assert found[6] == row("none", "0", "0", "1", "0.1", "inf times")
    assert found[8].startswith("Strained: ")


NAMES = ("predicted", "predicted_error", "measured", "error", "strained")


@pytest.mark.parametrize(
    ("predicted", "own", "measured", "rounding", "strained"),
    [
        # As in 32 runs, which know their standard deviation to an eighth.
        (5.9e-10, 1e-11, 1.7e-5, 0.0, True),
        (4.6e-18, 0.0, 3.4e-3, 1e-6, True),
        (1.0, 0.0, 1.5, 0.0, True),
        (1.0, 0.0, 0.5, 0.0, True),
        # Less than three of its errors; less than a fifth; the error of the prediction is large.
        (1.0, 0.0, 1.3, 0.0, False),
        (1.0, 0.0, 0.7, 0.0, False),
        (1.0, 0.3, 1.5, 0.0, False),
        # Rounding errors; nothing scatters; a single run.
        (1e-12, 0.0, 1e-8, 1e-7, False),
        (0.0, 0.0, 0.0, 0.0, False),
        (1.0, 0.0, math.nan, 0.0, False),
    ],
)
def test_a_row_is_strained_where_errors_do_not_explain_the_difference(
    predicted: float, own: float, measured: float, rounding: float, strained: bool
) -> None:
    values = np.array([[predicted], [own], [measured], [measured / 8]])
    found = scatter.Scatter(*values).at_end(rounding)
    assert found["strained"] == strained
    assert list(found) == list(NAMES)


def test_paths_of_a_theory_have_an_error_of_their_own() -> None:
    """Numbers written out: three paths, five runs, two times and two classes."""
    rng = np.random.default_rng(0)
    paths, runs = rng.normal(size=(3, 2, 2)), rng.normal(size=(5, 2, 2))
    found = scatter.over_paths(paths, runs)
    own, measured = paths.std(0, ddof=1), runs.std(0, ddof=1)
    np.testing.assert_allclose(found.predicted, own, rtol=1e-12)
    np.testing.assert_allclose(found.predicted_error, own / 2, rtol=1e-12)
    np.testing.assert_allclose(found.measured, measured, rtol=1e-12)
    np.testing.assert_allclose(found.error, measured / 8**0.5, rtol=1e-12)
    ends = found.at_end()
    assert ends["measured"] == pytest.approx(np.sqrt((measured[-1] ** 2).mean()), rel=1e-12)


def test_starts_of_a_theory_have_an_error_of_their_own() -> None:
    """That over many repetitions with means of variance 1, which have an error of 0.5, and a
    variance of 2 within each start, which has one of 0.2."""
    rng = np.random.default_rng(0)
    shape = (6, 4000, 2)
    mean = rng.normal(size=shape) * np.sqrt(1 + 0.5**2)
    std = np.sqrt(2 + 0.2 * rng.normal(size=shape))
    runs = rng.normal(size=shape)
    found = scatter.over_starts(runs, mean, std, np.full(shape, 0.5))
    # The mean of the variance has an error of 1 %.
    np.testing.assert_allclose((found.predicted**2).mean(0), 3, rtol=0.04)
    scattered = found.predicted.std(0)
    np.testing.assert_allclose(np.sqrt((found.predicted_error**2).mean(0)), scattered, rtol=0.15)
    one = scatter.over_starts(runs, mean[:1], std[:1], 0.5, np.full(shape, 0.1)[:1])
    np.testing.assert_array_equal(one.predicted, std[0])
    np.testing.assert_array_equal(one.predicted_error, np.full(shape[1:], 0.1))


def test_every_theory_of_the_layer_is_drawn_its_variants_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compared: list[tuple[str, ...]] = []
    made = object.__new__(LayerComparison)
    monkeypatch.setattr(theories, "compare", lambda given: compared.append(given.theories) or made)
    monkeypatch.setattr(theories, "draw", lambda result: "figure")
    monkeypatch.setattr(theories, "deliver", lambda *given: given)
    run = experiment(steps=5, length=math.inf)
    assert theories.run(theories.Theories(run, out=tmp_path)) == (made, "figure", "theories")
    assert theories.run(theories.Theories(run, theories=("best", "eq10"), out=tmp_path))
    every, some = compared
    assert {"plain", "corrected", "symmetric", "eq10", "lemma3"} <= {*every}
    # That of all weights is no theory of the layer.
    assert not {"flow", "central"} & {*every}
    assert some == (every[0], "eq10")
    usual = cli.parse(["figure", "theories"])
    assert (usual.run.steps, usual.seeds, usual.times) == (300, 4, 40)
    other = experiment("linear_icl", steps=5)
    with pytest.raises(ValueError, match="must be the attention layer, yz"):
        theories.run(theories.Theories(other, out=tmp_path))


def layer(**given: Any) -> LayerComparison:
    """A comparison of the layer whose results are given."""
    config = CompareOptions(experiment(steps=50, length=16, batch=8), seeds=3)
    made = LayerComparison(config, xr.Dataset(), {}, {}, ("speed",))
    vars(made).update(given)
    return made


@pytest.mark.parametrize(
    ("speed", "peak"),
    [
        ([0.0, 2.0, 5.0, 1.0], (4.0, 5.0, [1.0, 9.0])),
        ([7.0, 2.0, 5.0, 1.0], (0.0, 7.0, [0.0, 1.0])),
        ([0.0, 2.0, np.nan, 6.0], (9.0, 6.0, [4.0, 9.0])),
        ([np.nan] * 4, (None, None, None)),
    ],
)
def test_the_speed_peaks_at_a_recorded_time(speed: list[float], peak: tuple[Any, ...]) -> None:
    """Of the mean over two classes."""
    values = np.array(speed)[:, None] + [[-0.5, 0.5]]
    means = {"simulation": xr.Dataset({"speed": (("time", "class"), values)})}
    simulation = xr.Dataset(coords={"time": [0.0, 1.0, 4.0, 9.0]})
    made = layer(means=means, simulation=simulation)
    found = made.theory_facts("simulation")["peak_of_speed"]
    assert (found["time"], found["value"], found["between"]) == peak


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("time", "rising"), [(4.0, False), (9.0, True), (None, False)])
def test_lines_below_the_table_tell_peaks_and_what_is_left_out(
    closed: bool, time: float | None, rising: bool
) -> None:
    named = {"peak": 15.0, "peak_gamma": 0.25, "rise_end": 7.0, "snap": 21.5}
    stages = Stages(**{name: np.array([value - 1, value + 1]) for name, value in named.items()})
    found = {
        "left_out": "length = 16: too short",
        "spread_at_end": {"loss": dict(zip(NAMES, (1.0, 0.1, 2.0, 0.5, False), strict=True))},
        "simulation": {"peak_of_speed": {"time": time, "value": 0.1234, "between": [1.0, 9.0]}},
    }
    lines = layer(report=found, stages=stages if closed else None).further_lines()
    assert lines[:2] == ["", "Finite-T theories are left out. length = 16: too short"]
    assert lines[3] == "Standard deviation across seeds at the end."
    told = lines[7:]
    if not closed or time is None:
        assert told == []
        return
    where = "is still rising at the end, t = 9" if rising else "peaks at t = 4 (between 1 and 9)"
    assert told == [
        "",
        f"speed coefficient f.g {where}, value 0.123",
        "closed form: t0' = 7.00, peak at t = 15.00, value 0.250, t0 = 21.50",
    ]
    nothing = {**found, "left_out": None, "spread_at_end": {}}
    assert layer(report=nothing, stages=None).further_lines() == []


def test_the_heading_has_the_sizes_and_how_runs_ended() -> None:
    found = layer(report={"simulation": {"status": {"OK": 2, "DIVERGED": 1}}}).heading()
    assert found[0].startswith("yz: syn-small: K = 2, M = 34, ")
    assert found[0].endswith(", T = 16, batch = 8")
    assert found[1] == "3 runs of 50 steps: 2 OK, 1 DIVERGED"


@pytest.mark.parametrize(
    ("start", "seeds", "starts"), [("zero", 5, 1), ("uniform", 5, 5), ("uniform", 30, 8)]
)
def test_the_scatter_is_predicted_at_nine_times(start: str, seeds: int, starts: int) -> None:
    run = experiment(steps=1000, length=64, batch=8, start=start)
    (sweep,) = LayerComparison.further(CompareOptions(run, seeds=seeds, times=64, root=7)).values()
    assert (sweep.axes["seed"], sweep.root) == ({"range": starts}, 7)
    every = dynsim.log_times(1000, 64)
    places = np.searchsorted(every, sweep.times)
    np.testing.assert_array_equal(every[places], sweep.times)
    # Evenly among the times of the comparison, with both ends.
    assert len(places) == 9
    assert (places[0], places[-1]) == (0, len(every) - 1)
    assert np.ptp(np.diff(places)) <= 1
    names = [name for name in sweep.record if not name.endswith("_std")]
    assert [*sweep.record] == [*names, *(f"{name}_std" for name in names)]
    infinite = CompareOptions(run.at({"batch": math.inf}), seeds=seeds)
    assert LayerComparison.further(infinite) == {}
