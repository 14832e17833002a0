"""The page of the explorer in a real browser: Chromium, from disk, without a network."""

import re

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
Keys = screens.Keys

DIGITS = 1e-3
"""Values on the page are rounded to four digits."""


def measured(text):
    """The value and the spread that a line of text says."""
    found = re.search(r": (\S+) ± (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1]), float(found[2])


def test_a_cell_is_read_by_mouse_and_its_runs_are_those_of_the_store(screen, path, runs, theory):
    screen.open(path.as_uri())
    assert screen["title"].text == screen.driver.title == runs.title
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
    # Text of a sweep stays text.
    assert screen.run("return window.harmed") is None
    assert screen.run("return document.querySelectorAll('h1 *, h2 *, option *').length") == 0
    legend = "return document.querySelector('#curves .legendtext')"
    assert "<b>& more</b>" in screen.until(lambda: screen.run(legend)).text
    # The next click opens another cell, although the map has lost the focus to the title.
    screen.click((2, 0))
    assert "eta_y = 0.5, eta_z = 10" in screen["runs-title"].text
    # Addresses that were cut off, or are of another sweep, pin nothing.
    for pin in ("null", "-1", '{"eta_y":9}', '{"constructor":0}', '{"eta_y":0', "%E0%A4%A"):
        screen.redrawn(lambda p=pin: screen.run("location.hash = arguments[0]", f"pin={p}"))
        assert not screen["pinned"].is_displayed()
    assert screen.errors() == []


def test_a_slider_draws_theory_over_the_runs_of_a_cell(screen, stored, started):
    source = live.Theory(sweeps.open(stored))
    screen.open(started(serve.StoredSweeps([str(stored)]), source).address)
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


def test_a_phase_diagram_says_the_region_and_the_numbers_of_a_cell(screen, diagram, tmp_path):
    page, shape = tmp_path / "page.html", (3, 2)
    across, up = diagram.axes().values()
    explore.run(explore.Explore(paths=(str(diagram.out),), out=page))
    screen.open(page.as_uri())
    found = sweeps.diagrams.maps(diagram)["simulation"]
    legend = diagram.outcomes().legend
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


@pytest.fixture
def entries():
    """A quantity with three entries, step + seed + entry; of `eta` = 1, the second seed failed."""
    sizes = {"eta": [0.1, 1.0], "seed": [0, 1], "time": [0.0, 1.0, 2.0, 4.0]}
    values = xr.DataArray(np.zeros((2, 2, 4, 3)), sizes, ("eta", "seed", "time", "entry"))
    values = values + values.time + values.seed + xr.DataArray([0.0, 1.0, 2.0], dims="entry")
    status = xr.DataArray(np.zeros((2, 2), int), values[:, :, 0, 0].drop_vars("time").coords)
    values[1, 1] = [1.5, 1.5, 100]
    values[1, 1, -1, 0] = np.nan
    status[1, 1] = Status.DIVERGED
    return xr.Dataset({"v": values, "status": status})


def test_steps_play_entries_beside_theory(screen, entries, tmp_path):
    theory = entries.isel(seed=0, drop=True).assign_attrs(title="theory")
    page = sweeps.explore(entries.assign_attrs(title="training"), theory)
    screen.open(page.write(tmp_path / "page.html").as_uri())
    screen.choose("x", "entry")
    screen["map"].send_keys(Keys.ENTER)
    screen.until(lambda: screen["runs-title"].text)

    def drawn(figure="map"):
        traces = f"return byId('{figure}').data.filter((each) => each.visible !== false"
        found = screen.run(f"{traces} && each.x.length).map(({{name, x, y}}) => [name, x, y])")
        return {name: (x, y) for name, x, y in found if name}

    edge = lambda: screen.run("return byId('map').layout.yaxis.range[1]")
    place, failed = np.arange(3), "1: training: did not end well"
    screen.slide("time", Keys.HOME)
    for time in entries["time"].values:
        found = drawn()
        assert {*found} == {"1: training", failed, "2: theory"}
        np.testing.assert_allclose(found["1: training"], [place, time + place])
        np.testing.assert_allclose(found["2: theory"], [place, time + place])
        lost = [edge() if time == 4 else 1.5, 1.5, edge()]
        # What lies outside the axis is at its end.
        np.testing.assert_allclose(found[failed][1], lost)
        if time < 4:
            screen.slide("time", Keys.ARROW_RIGHT)
    legend = "return [...document.querySelectorAll('#map .legendtext')].map((e) => e.textContent)"
    assert {*screen.run(legend)} == {"1: training", failed, "2: theory"}
    # The run has its last value in step 2.
    np.testing.assert_allclose(drawn("curves")[failed], [[2], [1.5]])
    assert "no value" not in screen["readout"].text

    screen.slide("at-eta", Keys.HOME)
    np.testing.assert_allclose(drawn()["1: training"][1], 4.5 + place)
    assert failed not in drawn()
    watch = "new MutationObserver(() => seen.push(byId('overview-title').textContent))"
    screen.run(f"window.seen = []; {watch}.observe(byId('overview-title'), {{childList: true}})")
    play = screen.driver.find_element(screens.By.CSS_SELECTOR, "#steps button")
    play.send_keys(Keys.SPACE)
    screen.until(lambda: len(screen.run("return seen")) == 4 and play.text == "Play")
    assert [text.rsplit(" ", 1)[1] for text in screen.run("return seen")] == ["0", "1", "2", "4"]
    # The axis is that of all steps, up to 4 + 1/2 + 2 and its standard deviation.
    high = edge()
    assert 6.5 + 0.5**0.5 < high < 8
    screen.slide("time", Keys.HOME)
    assert edge() == high
    assert screen.errors() == []


@pytest.mark.parametrize(
    ("width", "dark"), [pytest.param(1200, False, marks=pytest.mark.full), (400, True)]
)
def test_everybody_can_use_it(screen, path, width, dark):
    screen.open(path.as_uri(), width, dark)
    screen["map"].send_keys(Keys.ENTER)
    screen.table()
    assert screen.run("return document.documentElement.scrollWidth") <= width
    assert screen.errors() == []
    assert screen.barriers() == []
