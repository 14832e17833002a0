"""The page of the explorer in a real browser: Chromium, from disk, without a network."""

import re
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
By, Keys, Select, Screen = screens.By, screens.Keys, screens.Select, screens.Screen

DIGITS = 1e-3
"""Values on the page are rounded to four digits."""

FULL = pytest.mark.full(
    "test_a_cell_is_read_by_mouse_and_its_runs_are_those_of_the_store", "test_everybody_can_use_it"
)


def measured(text: str) -> tuple[float, float]:
    """The value and the spread that a line of text says."""
    found = re.search(r": (\S+) ± (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1]), float(found[2])


def test_a_cell_is_read_by_mouse_and_its_runs_are_those_of_the_store(
    screen: Screen, path: Path, runs: xr.Dataset, theory: xr.Dataset
) -> None:
    screen.open(path.as_uri())
    screen.choose("observable", label(runs["loss"]))
    screen.over((0, 1), "eta_y = 5, eta_z = 0.1")
    text = screen["readout"].text
    assert "2 OK" in text
    cell = runs["loss"].sel(eta_y=5.0, eta_z=0.1)
    last = cell.isel(time=-1).values
    np.testing.assert_allclose(measured(text), [last.mean(), last.std(ddof=1)], rtol=DIGITS)
    assert not screen["tip"].get_attribute("hidden")

    screen.click((0, 1))
    rows = screen.table()
    wanted = [
        [seed, time, float(cell.sel(seed=seed, time=time))]
        for seed in (0, 1)
        for time in runs["time"].values
    ]
    own = theory["loss"].sel(eta_y=5.0, eta_z=0.1)
    found = [[int(s or 0), float(t), float(v)] for _, s, _, t, v in rows]
    wanted += [[0, time, float(own.sel(time=time))] for time in theory["time"].values]
    # Seven digits are shown of numbers in float32.
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert {name for name, *_ in rows} == {f"1: {runs.title}", "2: theory"}
    # The next click opens another cell, although the map has lost the focus to the title.
    screen.click((2, 0))
    assert "eta_y = 0.5, eta_z = 10" in screen["runs-title"].text
    # Addresses that were cut off, or are of another sweep, pin nothing.
    for pin in ("null", "-1", '{"eta_y":9}', '{"constructor":0}', '{"eta_y":0', "%E0%A4%A"):
        before = screen.run("return document.body.dataset.drawn")
        screen.run("location.hash = arguments[0]", f"pin={pin}")
        screen.until(lambda b=before: screen.run("return document.body.dataset.drawn") != b)
        assert not screen["pinned"].is_displayed()
    assert screen.errors() == []


def test_a_slider_draws_theory_over_the_runs_of_a_cell(
    screen: Screen, stored: Path, started: Callable[..., serve.Server]
) -> None:
    source = live.Theory(sweeps.open(stored))
    screen.open(started(serve.Stored([str(stored)]), source).address)
    screen["map"].send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    answers = lambda: screen.run("return document.getElementById('live').dataset.answers")
    screen.until(answers)
    # Too short for the theory, which is told; infinity is at the end.
    assert screen["words"].text.startswith("length = 8: the theory is an expansion in 1/T")
    screen["live-length"].send_keys(Keys.END)
    screen.until(lambda: "Regime" in screen["words"].text)
    before = answers()
    screen["live-eta_y"].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    screen.until(lambda: answers() != before and screen.run("return !live.asking"))
    chosen = {"eta_y": 0.5, "eta_z": 1.0}
    values = screen.run("return live.values")
    assert values["eta_y"] > 0.5
    script = "return document.getElementById('curves').data.map((t) => Array.from(t.y))"
    *drawn, curve = screen.run(script)
    assert len(drawn) == 2, screen["words"].text
    wanted = source.answer(chosen, values)
    np.testing.assert_allclose(curve, wanted["curves"]["entropy"], rtol=1e-12)
    assert [line for line in screen["words"].text.split("\n") if line] == wanted["words"]
    assert screen.barriers() == []
    runs = sweeps.open(stored)["entropy"].sel(chosen)
    found = [value for value in drawn[0] if value is not None]
    np.testing.assert_allclose(found, runs.transpose("seed", "time").values.ravel(), rtol=1e-6)
    assert screen.errors() == []


def test_a_phase_diagram_says_the_region_and_the_numbers_of_a_cell(
    screen: Screen, diagram: Any, tmp_path: Path
) -> None:
    page, shape = tmp_path / "page.html", (3, 2)
    across, up = diagram.axes().values()
    explore.run(explore.Explore(paths=(str(diagram.out),), out=page))
    screen.open(page.as_uri())
    found = sweeps.diagrams.maps(diagram)["simulation"]
    legend = diagram.rule().legend
    drawn = screen.run("return overview.element.data[0]")
    runs = sweeps.open(diagram.out / "simulation")
    for cell in np.ndindex(*shape):
        name, colour = legend[int(found["region"][cell])]
        share = float(found["probability"][cell].max())
        text = f"region: {name} \\({round(3 * share)} of 3 runs\\)"
        place = f"eta_y = {across[cell[0]]:g}, eta_z = {up[cell[1]]:g}"
        screen.over(cell, f"^{place}\n{text}\n", shape)
        value, spread = measured(screen["readout"].text)
        own = runs["entropy"].isel(eta_y=cell[0], eta_z=cell[1], time=-1).values
        # Four digits of each are shown.
        np.testing.assert_allclose([value, spread], [own.mean(), own.std(ddof=1)], rtol=DIGITS)
        z, low, high = drawn["z"][cell[1]][cell[0]], drawn["zmin"], drawn["zmax"]
        place = (z - low) / (high - low)
        assert [c for at, c in drawn["colorscale"] if at <= place][-1] == colour
    assert len(np.unique(found["region"])) == 3
    assert float(found["probability"][2, 1].max()) < 1

    screen.click((2, 1), shape)
    rows = [float(value) for name, *_, value in screen.table() if name == "training"]
    wanted = runs["entropy"].isel(eta_y=2, eta_z=1).transpose("seed", "time").values.ravel()
    np.testing.assert_allclose(rows, wanted, rtol=1e-6)
    screen.choose("show", "training − descent, T and batch infinite")
    theory = sweeps.diagrams.maps(diagram)["symmetric-descent"]
    same = (theory["region"] == found["region"]).values
    differ = screen.run("return overview.element.data[0].z.map((row) => Array.from(row))")
    np.testing.assert_array_equal(np.array(differ).T, ~same)
    assert screen.errors() == []


def test_theory_alone_shows_no_rounding_follows_the_theme_and_has_no_barriers(
    screen: Screen, started: Callable[..., serve.Server]
) -> None:
    # All distinct tokens are alike, so that the entropy is constant but for its last digits.
    source = live.Theory(sweeps.experiment(task="overlapping", K=10, steps=50))
    screen.open(started(None, source).address)
    screen.until(lambda: screen.run("return document.getElementById('live').dataset.answers"))
    # The page begins with a quantity that changes.
    screen.until(lambda: screen["observable"].get_attribute("value") == "loss")
    Select(screen["observable"]).select_by_value("entropy")
    figure = "document.getElementById('curves')"
    low, high = screen.run(f"return {figure}.layout.yaxis.range")
    values = screen.run(f"return {figure}.data[0].y")
    assert 0 < max(values) - min(values) < 1e-10
    assert low < min(values) < max(values) < high
    assert high - low > 1e-5 * max(values)
    colour = f"return {figure}.layout.font.color"
    before = screen.run(colour)
    screen.theme(dark=True)
    screen.until(lambda: screen.run(colour) != before)
    assert screen.barriers() == []
    assert screen.errors() == []


@FULL
def test_axes_times_seeds_and_differences_follow_the_controls(
    screen: Screen, path: Path, runs: xr.Dataset, theory: xr.Dataset
) -> None:
    screen.open(path.as_uri())
    screen.choose("observable", label(runs["loss"]))
    # Choosing the other axis makes both change places: two columns, three rows.
    screen.choose("x", "learning rate of Y (1/step)")
    screen.slide("time", Keys.HOME)
    screen.over((0, 2), "eta_y = 0.5, eta_z = 10", (2, 3))
    first = runs["loss"].sel(eta_y=0.5, eta_z=10.0).isel(time=0)
    found = measured(screen["readout"].text)
    # Seeds start alike, so that their spread is rounding.
    np.testing.assert_allclose(found[0], first.mean(), rtol=DIGITS)

    screen.slide("time", Keys.END)
    screen.choose("seed", "seed 1")
    one = float(runs["loss"].sel(eta_y=5.0, eta_z=0.1, seed=1).isel(time=-1))
    line = screen.over((1, 0), r"eta_y = 5.*\n.*: (\S+)\n1 OK", (2, 3))
    assert float(line[1]) == pytest.approx(one, rel=DIGITS)

    screen.choose("seed", "mean of 2")
    screen.choose("show", f"1: {runs.title} − 2: theory")
    line = screen.over((1, 0), r"eta_y = 5.*\ndifference.*: (\S+) ± \S+, ", (2, 3))
    at = {"eta_y": 5.0, "eta_z": 0.1}
    time = runs["time"].values[-1]
    ours, theirs = (each["loss"].sel(at).sel(time=time) for each in (runs, theory))
    assert float(line[1]) == pytest.approx(float(ours.mean()) - float(theirs), rel=DIGITS)

    screen.choose("show", f"1: {runs.title}")
    screen.choose("y", "none: lines")
    assert "learning rate of Z" in screen["at-eta_z"].find_element(By.XPATH, "..").text
    assert screen.errors() == []


@FULL
def test_what_diverged_is_hatched_and_said(
    screen: Screen, path: Path, runs: xr.Dataset, tmp_path: Path
) -> None:
    screen.open(path.as_uri())
    hatched = "return overview.element.data.slice(3, 5).map((t) => t.x.map((x, i) => [x, t.y[i]]))"
    some, none = (
        {(x > 0.1 * 10**0.5, x > 10**0.5, y > 2.75) for x, y in lines if x is not None}
        for lines in screen.run(hatched)
    )
    # eta_z = 1 at eta_y = 0.5, and eta_z = 10 at eta_y = 5; borders of cells lie in the middle.
    assert some == {(True, False, False), (True, True, True)}
    assert none == {(True, True, True)}
    screen.over((2, 1), "2 DIVERGED")
    assert "no value" in screen["readout"].text
    screen.over((1, 0), "1 OK, 1 DIVERGED|1 DIVERGED, 1 OK")
    # When they failed: of these runs alone.
    steps = xr.where(runs["status"] > 0, 3 + 4 * runs["seed"] + 0 * runs["status"], -1)
    failed = tmp_path / "failed.html"
    screen.open(
        sweeps.explore(runs.assign(first_bad_step=steps.assign_attrs(runs["first_bad_step"].attrs)))
        .write(failed)
        .as_uri()
    )
    screen.choose("observable", label(runs["first_bad_step"]))
    rows = screen.run("return overview.element.data[0].z.map((row) => Array.from(row))")
    assert rows == [[None, 7, None], [None, None, 5]]
    screen.run("document.getElementById('every').open = true")
    table = "#every-table tbody tr td:nth-child(4)"
    told = lambda: [each.text for each in screen.driver.find_elements(By.CSS_SELECTOR, table)]
    screen.until(lambda: sorted(told()) == [*[""] * 9, "3", "7", "7"])


@FULL
def test_the_keyboard_does_what_the_mouse_does(
    screen: Screen, path: Path, runs: xr.Dataset
) -> None:
    screen.open(path.as_uri())
    screen["map"].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    screen.until(lambda: "eta_y = 5, eta_z = 1\n" in screen["readout"].text)
    screen["map"].send_keys(Keys.END, Keys.ARROW_LEFT, Keys.HOME, Keys.ARROW_UP, Keys.ENTER)
    screen.until(lambda: "eta_y = 5, eta_z = 0.1" in screen["runs-title"].text)
    focused = screen.driver.switch_to.active_element
    assert focused.get_attribute("id") == "runs-title"
    values = [float(row[4]) for row in screen.table() if row[0].startswith("1: ")]
    wanted = runs["entropy"].sel(eta_y=5.0, eta_z=0.1).transpose("seed", "time").values.ravel()
    np.testing.assert_allclose(values, wanted, rtol=1e-6)


@FULL
def test_text_of_a_sweep_stays_text(screen: Screen, path: Path, runs: xr.Dataset) -> None:
    screen.open(path.as_uri())
    assert screen["title"].text == screen.driver.title == runs.title
    screen["map"].send_keys(Keys.ENTER)
    screen.until(lambda: screen["runs-title"].text)
    assert screen.run("return window.harmed") is None
    assert screen.run("return document.querySelectorAll('h1 *, h2 *, option *').length") == 0
    legend = screen.until(
        lambda: screen.run("return document.querySelector('#curves .legendtext')")
    )
    assert "<b>& more</b>" in legend.text


@FULL
def test_the_command_of_a_cell_gives_its_runs_again(
    screen: Screen, path: Path, runs: xr.Dataset, tmp_path: Path
) -> None:
    screen.open(path.as_uri())
    screen["map"].send_keys(Keys.ENTER)
    command = "return document.querySelector('#commands .command')?.innerText"
    lines = screen.until(lambda: screen.run(command))
    first, *file, end, run = lines.split("\n")
    assert (first, end) == ("cat > cell.toml <<'END'", "END")
    assert run.startswith("dynsim sweep cell.toml --out ")
    (tmp_path / "cell.toml").write_text("\n".join(file))
    again = sweeps.run(sweeps.load(tmp_path / "cell.toml"))
    # The same program on the same numbers: one run beside others may round in another order.
    there = runs.sel(eta_y=[0.5], eta_z=[0.1])
    for name in ("entropy", "loss", "z_top_distinct"):
        np.testing.assert_allclose(again[name], there[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("width", "dark"), [pytest.param(1200, False, marks=FULL), (400, True)])
def test_everybody_can_use_it(screen: Screen, path: Path, width: int, dark: bool) -> None:
    screen.open(path.as_uri(), width, dark)
    screen["map"].send_keys(Keys.ENTER)
    screen.table()
    assert screen.run("return document.documentElement.scrollWidth") <= width
    assert screen.errors() == []
    assert screen.barriers() == []


@FULL
def test_one_axis_gives_lines_and_none_gives_trajectories(
    screen: Screen, runs: xr.Dataset, theory: xr.Dataset, tmp_path: Path
) -> None:
    line = sweeps.explore(runs.sel(eta_y=0.5), theory.sel(eta_y=0.5))
    screen.open(line.write(tmp_path / "line.html").as_uri())
    assert Select(screen["y"]).first_selected_option.text == "none: lines"
    screen["map"].send_keys(Keys.END, Keys.ENTER)
    assert {float(row[3]) for row in screen.table()} == set(theory["time"].values)
    # The axis is that of the values, with and without a cursor, and not of those shown before.
    screen.choose("show", f"1: {runs.title} − 2: theory")
    low, high = screen.run("return overview.element.layout.yaxis.range")
    values = screen.run("return overview.element.data[0].y.filter(Number.isFinite)")
    bars = screen.run("return overview.element.data[0].error_y.array.filter(Number.isFinite)")
    room = 0.2 * (max(values) - min(values) + 2 * max(bars))
    assert min(values) - max(bars) - room < low < high < max(values) + max(bars) + room
    one = runs.sel(eta_y=0.5, eta_z=0.1).isel(time=-1)
    screen.open(sweeps.explore(one).write(tmp_path / "one.html").as_uri())
    assert not screen["map"].is_displayed()
    found = [float(row[4]) for row in screen.table()]
    np.testing.assert_allclose(found, one["entropy"].values, rtol=1e-6)
    assert {row[2] for row in screen.table()} == {Status.OK.name}
    assert screen.errors() == []
