"""What the page of the explorer keeps, hands out and compares, in a real browser."""

import contextlib
import csv
import io
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sweeps
from dynsim import Status
from sweeps.commands.views import explore, live, serve
from sweeps.runner.labels import label

screens = pytest.importorskip(
    "tests.sweeps.commands.views.screen",
    reason="needs selenium of the extra `test`",
    exc_type=ModuleNotFoundError,
)
Keys, Screen, Select = screens.Keys, screens.Screen, screens.Select

FULL = pytest.mark.full("test_an_address_shows_the_same_again")
FLOAT = 1e-6
"""Numbers on the page are in float32."""
AXES = ("eta_y", "eta_z", "seed")
COMPARED = "1: {} − 2: theory"


def drawn(screen: Screen) -> dict[str, Any]:
    """What a map looks like: its colours, their ends, and the part of the axes that is seen."""
    return screen.run(
        "const { data: [map], layout: { xaxis, yaxis } } = overview.element;"
        "return { low: map.zmin, high: map.zmax, colours: map.colorscale, x: xaxis.range, "
        "y: yaxis.range, title: document.getElementById('runs-title').textContent, "
        "told: document.getElementById('readout').textContent }"
    )


def cells(screen: Screen) -> np.ndarray:
    """Values of a map, a row for each value of the vertical axis."""
    rows = screen.run("return overview.element.data[0].z.map((row) => Array.from(row))")
    return np.array([[np.nan if v is None else v for v in row] for row in rows], float)


def test_an_address_shows_the_same_again(screen: Screen, path: Path, runs: xr.Dataset) -> None:
    screen.open(path.as_uri())
    screen.choose("observable", label(runs["loss"]))
    screen.choose("value-scale", "logarithmic")
    screen.choose("range", "by hand")
    screen.run(
        "document.getElementById('low').value = 0.5; document.getElementById('low').onchange()"
    )
    screen["map"].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP, "+", Keys.ENTER)
    screen.until(lambda: "open=true" in screen.run("return location.hash"))
    screen.until(lambda: "zoom=" in screen.run("return location.hash"))
    before, fragment = drawn(screen), screen.run("return location.hash")
    assert before["low"] == pytest.approx(np.log10(0.5))
    # A step of zoom halves the part that is seen: of three columns over three decades.
    assert np.diff(before["x"]) == pytest.approx(1.5)
    screen.driver.get("about:blank")
    screen.open(path.as_uri() + fragment)
    again = drawn(screen)
    # The address has seven digits of the part that is seen.
    for axis in "xy":
        np.testing.assert_allclose(again.pop(axis), before.pop(axis), rtol=1e-6)
    assert again == before
    assert "eta_y = 5, eta_z = 1" in before["title"]
    # A link to another view that is pasted into the same tab.
    screen.run("document.body.dataset.drawn = 'before'; location.hash = '#at-eta_z=10&cell=true'")
    screen.until(lambda: screen.run("return document.body.dataset.drawn") != "before")
    assert screen["readout"].text.startswith("eta_y = 5, eta_z = 10\nentropy")
    assert screen.errors() == []


def test_a_cell_stays_the_same_when_axes_change(screen: Screen, path: Path) -> None:
    screen.open(path.as_uri())
    screen.click((2, 0))
    wanted = "eta_y = 0.5, eta_z = 10"
    assert screen["runs-title"].text.endswith(wanted)
    learning = "learning rate of {} (1/step)"
    for control, words in (
        ("y", "none: lines"),
        ("x", learning.format("Y")),
        ("x", learning.format("Z")),
        ("y", learning.format("Y")),
        ("x", learning.format("Y")),
    ):
        screen.choose(control, words)
        assert screen["runs-title"].text.endswith(wanted), words
        told = screen["readout"].text.split("\n")[0]
        assert set(told.split(", ")) == set(wanted.split(", ")), words


@FULL
def test_python_of_a_cell_gives_what_the_page_says(
    screen: Screen, stored: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    explore.run(explore.Explore(paths=(str(stored),), out=page, where=("eta_y=5",)))
    screen.open(page.as_uri())
    screen.slide("time", Keys.ARROW_LEFT)
    screen["map"].send_keys(Keys.END, Keys.ENTER)
    screen.until(lambda: screen["runs-title"].text)
    snippet = screen.run("return document.querySelector('#snippets code').textContent")
    told = re.search(r": (\S+) ± (\S+)$", screen["readout"].text, re.MULTILINE)
    assert told
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(snippet, {})
    found = [float(each) for each in printed.getvalue().split()[-2:]]
    # The page shows four digits.
    np.testing.assert_allclose(found, [float(told[1]), float(told[2])], rtol=1e-3)
    cell = sweeps.open(stored)["entropy"].sel(eta_y=5, eta_z=10).isel(time=-2)
    np.testing.assert_allclose(found, [cell.mean(), cell.std(ddof=1)], rtol=FLOAT)


@FULL
def test_what_is_shown_is_downloaded(
    screen: Screen, path: Path, runs: xr.Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    asked = {"behavior": "allow", "downloadPath": str(folder)}
    screen.driver.execute_cdp_cmd("Browser.setDownloadBehavior", asked)
    screen.open(path.as_uri())
    screen.choose("observable", label(runs["loss"]))
    screen["map"].send_keys(Keys.ENTER)
    screen.until(lambda: screen["runs-title"].text)
    for tools in ("map-tools", "curve-tools"):
        for kind in ("PNG", "SVG", "CSV"):
            screen.run(
                "[...document.querySelectorAll(`#${arguments[0]} button`)]"
                ".find((each) => each.textContent === arguments[1]).click()",
                tools,
                kind,
            )
    names = [f"{stem}.{kind}" for stem in ("map", "trajectories") for kind in ("png", "svg", "csv")]
    screen.until(lambda: all((folder / name).exists() for name in names))
    assert (folder / "map.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (folder / "map.svg").read_text().startswith("<svg")
    head, *rows = csv.reader((folder / "map.csv").read_text().splitlines())
    assert head[:3] == ["eta_z", "eta_y", "quantity"]
    assert len(rows) == 6
    for row in rows:
        runs_of = runs[["loss", "status"]].sel(eta_y=float(row[1]), eta_z=float(row[0]))
        good = runs_of["loss"].isel(time=-1).values[runs_of["status"].values == 0]
        assert row[6] == str(2 - len(good))
        if len(good):
            assert float(row[3]) == pytest.approx(good.mean(), rel=FLOAT)
        else:
            assert row[3] == ""
        if len(good) > 1:
            assert float(row[5]) == pytest.approx(good.std(ddof=1) / 2**0.5, rel=1e-4)
        else:
            assert row[5] == "", "one run of training tells no error"
    assert len((folder / "trajectories.csv").read_text().splitlines()) == 1 + 2 * 5 + 6
    assert screen.errors() == []


def luminance(colour: str) -> float:
    """Relative luminance of a colour as #rrggbb (WCAG 2.2)."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@FULL
@pytest.mark.parametrize("dark", [False, True])
def test_failed_cells_stand_out_from_all_colours(screen: Screen, path: Path, dark: bool) -> None:
    screen.open(path.as_uri(), dark=dark)
    script = "return overview.element.data.slice(1, 5).map((each) => each.line.color)"
    lines = screen.run(script)
    colours = screen.run("return [...about.scale, ...DIVERGING.map(([, c]) => c), themed().back]")
    for colour in colours:
        assert max(contrast(colour, line) for line in lines) >= 3, colour


@FULL
def test_one_outlier_flattens_no_map(screen: Screen, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 12)).astype(np.float32)
    values[3, 4] = 1000
    axes = {"a": np.arange(12.0), "b": np.arange(12.0)}
    status = (("a", "b"), np.zeros((12, 12), np.int8))
    found = xr.Dataset({"loss": (("a", "b"), values), "status": status}, axes)
    screen.open(sweeps.explore(found).write(tmp_path / "page.html").as_uri())
    ends = np.percentile(values, [2, 98])
    seen = drawn(screen)
    # The page interpolates between numbers in float32.
    np.testing.assert_allclose([seen["low"], seen["high"]], ends, rtol=1e-5)
    beyond = int(((values < ends[0]) | (values > ends[1])).sum())
    assert f"{beyond} cells lie beyond" in screen["beyond"].text
    screen.choose("range", "all values")
    assert drawn(screen)["high"] == 1000
    assert screen["beyond"].text == ""


@FULL
def test_differences_are_absolute_relative_or_ratios(
    screen: Screen, path: Path, runs: xr.Dataset, theory: xr.Dataset
) -> None:
    screen.open(path.as_uri())
    screen.choose("observable", label(runs["loss"]))
    screen.choose("show", COMPARED.format(runs.title))
    time = runs["time"].values[-1]
    loss = runs["loss"].where(runs["status"] == Status.OK).sel(time=time)
    ours = loss.mean("seed", skipna=True).transpose("eta_y", "eta_z").values
    theirs = theory["loss"].sel(time=time).transpose("eta_y", "eta_z").values
    for kind, wanted in (
        ("relative to the second", (ours - theirs) / theirs),
        ("ratio, in powers of ten", np.log10(ours / theirs)),
        ("absolute", ours - theirs),
    ):
        screen.choose("kind", kind)
        np.testing.assert_allclose(cells(screen), wanted, rtol=1e-5, err_msg=kind)
        seen = drawn(screen)
        assert seen["low"] == pytest.approx(-seen["high"])
    screen.choose("value-scale", "logarithmic")
    np.testing.assert_allclose(cells(screen), np.log10(abs(ours - theirs)), rtol=1e-4)
    screen.choose("value-scale", "linear")
    off = ours - theirs
    for name, place in (("Lowest", np.nanargmin(off)), ("Highest", np.nanargmax(off))):
        row, column = np.unravel_index(place, off.shape)
        at = f"eta_y = {runs['eta_y'].values[row]:g}, eta_z = {runs['eta_z'].values[column]:g}"
        found = re.search(
            rf"{name}: (\S+) at {re.escape(at)} \((\w+) other", screen["extremes"].text
        )
        assert found, screen["extremes"].text
        assert float(found[1]) == pytest.approx(off[row, column], rel=1e-3)
    # A theory is no further seed, and has no spread.
    line = screen.over((0, 1), r"± (\S+), .* errors \(.*; \S+\)\n.*: 2 OK; 2: theory: 1 OK$")
    spread = float(loss.sel(eta_y=5, eta_z=0.1).std("seed", ddof=1))
    assert float(line[1]) == pytest.approx(spread, rel=1e-3)


@FULL
def test_differences_that_seeds_may_have_made_are_marked(
    screen: Screen, runs: xr.Dataset, theory: xr.Dataset, tmp_path: Path
) -> None:
    """A theory that is off by known numbers of standard errors; in two of the cells runs diverged,
    so that one or no run is left, which tells no error."""
    time = runs["time"].values[-1]
    loss = runs["loss"].where(runs["status"] == Status.OK).sel(time=time)
    error = loss.std("seed", ddof=1, skipna=False) / 2**0.5
    off = xr.DataArray([[1.9, 2.1, 0.5], [-1.9, -2.1, -40]], dims=("eta_y", "eta_z"))
    moved = (loss.mean("seed") - off * error).transpose("eta_y", "eta_z")
    theory["loss"].loc[{"time": time}] = moved.fillna(1.0)
    screen.open(sweeps.explore(runs, theory).write(tmp_path / "page.html").as_uri())
    screen.choose("observable", label(runs["loss"]))
    screen.choose("show", COMPARED.format(runs.title))
    xs, ys = screen.run("const { x, y } = overview.chance()[1]; return [[...x], [...y]]")
    across, up = screen.run("return [overview.drawn.x, overview.drawn.y].map((axis) => axis.edges)")
    pieces = {
        (across.index(first), across.index(last), np.searchsorted(up, y))
        for first, last, y in zip(xs[::3], xs[1::3], ys[::3], strict=True)
    }
    assert pieces == {(0, 1, 1), (2, 3, 1), (0, 1, 2)}
    assert screen["chance"].is_displayed()
    line = screen.over((0, 0), r", (\S+) standard errors, may be chance \(")
    assert float(line[1]) == pytest.approx(1.9, rel=1e-2)
    screen.choose("show", f"1: {runs.title}")
    assert not screen["chance"].is_displayed()


def shares(values: xr.DataArray) -> dict[str, float]:
    """Variance of the means over each dimension as a share of that of all values."""
    total = float(values.var())
    return {
        str(dim): float(values.mean([d for d in values.dims if d != dim]).var()) / total
        for dim in values.dims
    }


@FULL
def test_all_runs_are_filtered_sorted_and_explained(
    screen: Screen, stored: Path, tmp_path: Path
) -> None:
    runs = sweeps.open(stored).load()
    runs["status"].values[0, 0, 0] = Status.DIVERGED
    screen.open(sweeps.explore(runs).write(tmp_path / "page.html").as_uri(), height=2000)
    rows = lambda: screen.run(
        "return every.rows().slice(1).map((row) => [...row.slice(0, 4), row.at(-1)])"
    )
    screen.run("document.getElementById('every').open = true")
    screen.until(lambda: "12 of 12 runs" in screen["filtered"].text)
    last = runs["entropy"].isel(time=-1)
    table: Any = last.transpose(*AXES).to_series()
    wanted = [[*at, pytest.approx(value, rel=FLOAT)] for at, value in table.items()]
    assert [row[:4] for row in rows()] == wanted
    assert [row[4] for row in rows()] == ["DIVERGED"] + 11 * ["OK"]
    screen.run("[...document.querySelectorAll('[data-sort=entropy]')][0].click()")
    found = [row[3] for row in rows()]
    assert found == sorted(found)
    # By status, by a field, and by the mouse along a line, which ends at the upper one.
    pick = screen.driver.find_element("css selector", "[aria-label='status: only']")
    Select(pick).select_by_visible_text("OK")
    assert len(rows()) == 11
    field = screen.driver.find_element("css selector", "[aria-label='eta_y: from']")
    field.send_keys("5", Keys.ENTER)
    screen.until(lambda: "6 of 12 runs" in screen["filtered"].text)
    told = dict(
        screen.run(
            "return [...document.querySelectorAll('#explained tbody tr')]"
            ".map(({ cells: [axis, share] }) => [axis.textContent, parseFloat(share.textContent)])"
        )
    )
    part = last.sel(eta_y=5)
    for name, share in shares(part).items():
        assert told[name] == pytest.approx(100 * share, abs=0.051), name
    together = float(part.mean("seed").var() / part.var())
    assert told["all axes together"] == pytest.approx(100 * together, abs=0.051)
    assert "filters=eta_y" in screen.run("return location.hash")
    at = screen.run("const { across, top, bottom } = every.drawn; return [across(1), top, bottom]")
    screen.run("document.getElementById('parallel').scrollIntoView()")
    box = screen.run("return document.getElementById('parallel').getBoundingClientRect().toJSON()")
    for kind, height in (("mousePressed", 0.4), ("mouseMoved", 0.9), ("mouseReleased", 1.2)):
        y = box["y"] + at[2] - min(height, 1) * (at[2] - at[1])
        mouse = {"type": kind, "x": box["x"] + at[0], "y": y, "button": "left", "clickCount": 1}
        screen.driver.execute_cdp_cmd("Input.dispatchMouseEvent", mouse)
    screen.until(lambda: "4 of 12 runs" in screen["filtered"].text)
    assert {(row[0], row[1]) for row in rows()} == {(5, 1), (5, 10)}
    assert screen.barriers() == []
    fragment = screen.run("return location.hash")
    screen.driver.get("about:blank")
    screen.open((tmp_path / "page.html").as_uri() + fragment)
    screen.until(lambda: "4 of 12 runs" in screen["filtered"].text)
    screen.run("[...document.querySelectorAll('#every-table tbody button')].at(-1).click()")
    screen.until(lambda: "eta_y = 5, eta_z = 1" in screen["runs-title"].text)
    assert screen.errors() == []


@FULL
def test_a_pinned_cell_stays_beside_the_next_one(
    screen: Screen, path: Path, runs: xr.Dataset
) -> None:
    screen.open(path.as_uri())
    screen.click((0, 0))
    press = "[...document.querySelectorAll('#curve-tools button')].at(-1).click()"
    screen.run(press)
    screen.until(lambda: screen["pinned"].is_displayed())
    screen.click((2, 0))
    figures = [f"document.getElementById('{name}')" for name in ("pinned-curves", "curves")]
    data = [screen.run(f"return Array.from({each}.data[0].y)") for each in figures]
    ranges = [screen.run(f"return {each}.layout.yaxis.range") for each in figures]
    assert data[0] != data[1]
    assert ranges[0] == ranges[1]
    values = [v for each in data for v in each if v is not None]
    assert ranges[0][0] < min(values) < max(values) < ranges[0][1]
    assert screen["pinned-title"].text == "Pinned: eta_y = 0.5, eta_z = 0.1"
    # Runs of one seed are compared, of which the theory has none.
    last = runs["entropy"].sel(eta_y=0.5).isel(time=-1)
    apart = last.sel(eta_z=10.0) - last.sel(eta_z=0.1)
    told, exact = screen["pinned-words"].text.split("\n")
    found = re.search(r"pinned = (\S+) ± (\S+) \(standard error over 2 seeds\)", told)
    assert found
    # Four digits are shown.
    want = [apart.mean(), apart.std(ddof=1) / 2**0.5]
    np.testing.assert_allclose([float(each) for each in found.groups()], want, rtol=1e-3)
    # 97.5 % of Student's distribution with one degree of freedom lie below 12.7.
    assert ("may be chance" in told) == bool(abs(want[0]) < 12.7 * want[1])
    assert "±" not in exact
    assert screen.barriers() == []


@FULL
def test_the_page_says_that_theory_is_being_compiled(
    screen: Screen, started: Callable[..., serve.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    source = live.Theory(sweeps.experiment(task="overlapping", K=10, steps=50))
    answer = source.answer

    def slow(*asked: Any) -> Any:
        assert told.wait(60)
        return answer(*asked)

    monkeypatch.setattr(source, "answer", slow)
    screen.driver.get(started(None, source).address)
    screen.until(lambda: "Compiling the theory" in screen["busy"].text)
    told.set()
    screen.until(lambda: not screen["busy"].text and "Regime" in screen["words"].text)
