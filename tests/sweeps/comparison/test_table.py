"""The table of a comparison, from a report made by hand, and its standard deviations."""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sweeps.comparison import scatter, table

NAMES = ("predicted", "predicted_error", "measured", "error", "strained")


def errors(over_time: float | None, at_end: float | None, floored: bool = False) -> dict[str, Any]:
    return {"over_time": over_time, "at_end": at_end, "floored": floored}


def deviations(*values: Any) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


def grids(lines: list[str]) -> Iterator[dict[tuple[str, str], str]]:
    """Each table of a text, as its cells by row and column."""
    for block in re.split(r"\n\n+", "\n".join(lines)):
        head, *rows = (re.split(r" {2,}", line) for line in block.splitlines())
        if head[0] == "":
            assert len({*map(len, block.splitlines())}) == 1
            yield {
                (name, column): cell
                for name, *cells in rows
                for column, cell in zip(head[1:], cells, strict=True)
            }


LONG = "an_observable_of_26_letters"
ERRORS = {"loss": errors(0.01234, 0.5, True), LONG: errors(None, 2.0)}
"""The second observable has no value of its own."""


@pytest.mark.parametrize("number", [2, 6, 7])
def test_the_table_has_the_numbers_of_the_report(number: int) -> None:
    """Of many theories the names go down. One fails; one does for one of its runs."""
    usual = {
        "relative_error": ERRORS,
        "sampling_errors": {"loss": 1.2345, LONG: None},
        "status": {"OK": 1},
        "summary": {"peak": [2.0], "learned": [None]},
        "spread_at_end": {"loss": deviations(0.12345, 0.01, None, 2.0, False)},
    }
    report: Any = {
        "simulation": {
            "sampling_error": dict.fromkeys(ERRORS, errors(0.1, 0.25)),
            "status": {"OK": 2, "DIVERGED": 1},
            "summary": {"peak": [1.0, 2.0, None], "learned": [4.0, 6.0, 8.0]},
        },
        "theories": {f"theory-{i}": usual for i in range(number)},
    }
    report["theories"]["theory-0"] = {
        "relative_error": dict.fromkeys(ERRORS, errors(None, None)),
        "sampling_errors": dict.fromkeys(ERRORS),
        "status": {"MAX_STEPS": 1},
    }
    far = deviations(5.9e-10, 1e-11, 1.7e-5, 4e-6, True), deviations(0.0, 0.0, 1.0, 0.1, True)
    report["theories"]["theory-1"] = usual | {
        "spread_at_end": dict(zip(ERRORS, far, strict=True)),
        "status": {"OK": 2, "SOLVER_FAILED": 1},
    }
    lines = table.lines(report, tuple(ERRORS), ["about", "runs"])
    assert lines[:2] == ["about", "runs: 2 OK, 1 DIVERGED"]
    relative, chance, summary, strained, *others = grids(lines)

    def at(grid: dict[tuple[str, str], str], side: str, name: str) -> str:
        # 'sampling' is in the first table alone, and what fails is not in the last one.
        turned = number + (grid is relative) > 6
        return grid[(side, name) if turned else (name, side)]

    assert len(relative) == 2 * (number + 1)
    assert [at(relative, "sampling", name) for name in ERRORS] == ["10 / 25"] * 2
    assert [at(relative, "theory-0", name) for name in ERRORS] == ["MAX_STEPS"] * 2
    assert [at(relative, "theory-1", name) for name in ERRORS] == ["1.23 / 50*", "- / 200"]
    assert [at(chance, "theory-1", name) for name in ERRORS] == ["1.23", "-"]
    assert at(chance, "theory-0", "loss") == "-"
    assert at(summary, "simulation", "peak") == "1.5 ± 0.71 (1 of 3 never)"
    assert at(summary, "simulation", "learned") == "6 ± 2"
    assert [at(summary, "theory-1", each) for each in ("peak", "learned")] == ["2", "never"]
    columns = ("predicted", "its error", "of the runs", "sampling error", "strained")
    found = [[each["loss", column] for column in columns] for each in (strained, *others)]
    assert found == [
        ["5.9e-10", "1e-11", "1.7e-05", "4e-06", "2.88e+04 times"],
        *[["0.123", "0.01", "-", "2", "-"]] * (number - 2),
    ]
    assert strained[LONG, "strained"] == "inf times"
    text = "\n".join(lines)
    assert "theory-0: 1 MAX_STEPS" in text
    assert "theory-1: 2 OK, 1 SOLVER_FAILED" in text
    for word, times in (("MAX_STEPS: ", 1), ("SOLVER_FAILED: ", 1), ("* The mean", 1)):
        assert sum(line.startswith(word) for line in lines) == times
    assert sum(line.startswith("Strained: ") for line in lines) == 1


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


@pytest.mark.parametrize("width", [1.0, 0.1])
def test_starts_of_a_theory_have_an_error_of_their_own(width: float) -> None:
    """That over many repetitions with means of standard deviation `width`, which have an error of
    half of that, and a variance within each start of mean 2 and variance 1."""
    rng = np.random.default_rng(0)
    shape = (6, 4000, 2)
    mean = rng.normal(size=shape) * width * np.sqrt(1 + 0.5**2)
    std = np.sqrt(rng.gamma(4, 0.5, size=shape))
    runs = rng.normal(size=shape)
    found = scatter.over_starts(runs, mean, std, np.full(shape, 0.5 * width))
    # The mean over repetitions has an error of 1 %.
    np.testing.assert_allclose((found.predicted**2).mean(0), 2 + width**2, rtol=0.04)
    scattered = found.predicted.std(0)
    np.testing.assert_allclose(np.sqrt((found.predicted_error**2).mean(0)), scattered, rtol=0.15)
    one = scatter.over_starts(runs, mean[:1], std[:1], 0.5, np.full(shape, 0.1)[:1])
    np.testing.assert_array_equal(one.predicted, std[0])
    np.testing.assert_array_equal(one.predicted_error, np.full(shape[1:], 0.1))
