"""A page in a real browser, Chromium, and what a reader does with it."""

import contextlib
import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

__all__ = ["CHROMIUM", "DRIVER", "By", "Keys", "Screen", "Select", "opened"]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SERIOUS = ("serious", "critical")
CORNER = {"x": 1, "y": 1, "button": "none"}
FITS = """
const map = document.getElementById("map");
return Math.abs(map._fullLayout.width - map.getBoundingClientRect().width) < 1;
"""
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Screen:
    """A page that was opened, and what a reader does with it."""

    def __init__(self, driver):
        self.driver, self.run = driver, driver.execute_script

    def open(self, address, width=1200, dark=False, height=900):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.theme(dark)
        self.driver.get_log("browser")
        self.driver.get(address)
        self.until(lambda: self.run("return document.body.dataset.drawn"))

    def theme(self, dark):
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})

    def until(self, holds):
        return WebDriverWait(self.driver, 60, poll_frequency=0.02).until(lambda _: holds())

    def __getitem__(self, name):
        return self.driver.find_element(By.ID, name)

    def redrawn(self, act):
        """Do something, and wait for the map that follows."""
        before = self.run("return document.body.dataset.drawn")
        act()
        self.until(lambda: self.run("return document.body.dataset.drawn") != before)

    def choose(self, control, words):
        """Choose by the words that a reader sees, and wait for what follows."""
        self.redrawn(lambda: Select(self[control]).select_by_visible_text(words))

    def slide(self, control, key):
        self.redrawn(lambda: self[control].send_keys(key))

    def over(self, cell, words, shape=(3, 2)):
        """Move the mouse over a cell, as long as it takes to read `words` there: a single move may
        come before the map listens."""

        def moved():
            self.mouse(cell, shape, "mouseMoved")
            return re.search(words, self["readout"].text)

        # From elsewhere: a map says nothing new of the cell that the mouse is on already.
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **CORNER})
        return self.until(moved)

    def point(self, cell, shape=(3, 2)):
        """Move the mouse from elsewhere to a cell, until the page says what is there. The map has
        to have its size, which is another one once trajectories are next to it."""
        self.until(lambda: self.run(FITS))
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **CORNER})
        self.until(lambda: not self["tip"].is_displayed())

        def told():
            self.mouse(cell, shape, "mouseMoved")
            return self["tip"].is_displayed()

        self.until(told)

    def click(self, cell, shape=(3, 2)):
        """Click on a cell once, and wait for its runs, which are not those of the last one."""
        self.point(cell, shape)
        before = self["runs-title"].text
        self.mouse(cell, shape, "mousePressed", "mouseReleased")
        self.until(lambda: self["runs-title"].text != before)

    def mouse(self, cell, shape, *kinds):
        """Use the mouse in the middle of a cell, columns and rows from below left; cells of these
        sweeps are as wide as each other."""
        column, row = cell
        area = self.driver.find_element(By.CSS_SELECTOR, "#map .nsewdrag")
        box = self.run("return arguments[0].getBoundingClientRect().toJSON()", area)
        x = box["x"] + box["width"] * (column + 0.5) / shape[0]
        y = box["y"] + box["height"] * (1 - (row + 0.5) / shape[1])
        mouse = {"x": x, "y": y, "clickCount": 1}
        for kind in kinds:
            mouse["button"] = "none" if kind == "mouseMoved" else "left"
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **mouse})

    def table(self):
        """The numbers of the trajectories: sweep, seed, status, step, value."""
        self.run("document.getElementById('numbers').open = true")
        script = "return [...document.querySelectorAll('#table tbody tr')]"
        cells = f"{script}.map((row) => [...row.cells].map((cell) => cell.textContent))"
        return self.until(lambda: self.run(cells))

    def errors(self):
        return [each["message"] for each in self.driver.get_log("browser")]

    def barriers(self):
        """What axe finds that keeps somebody from using the page, and where; skips without axe."""
        found = importlib.util.find_spec("axe_core_python")
        if found is None or found.origin is None:
            pytest.skip("needs axe-core-python of the extra `test`")
        self.run(Path(found.origin).with_name("axe.min.js").read_text())
        report = self.driver.execute_async_script("axe.run().then(arguments[0])")
        assert report["passes"]
        serious = [each for each in report["violations"] if each["impact"] in SERIOUS]
        return [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious]


@contextlib.contextmanager
def opened(profile):
    """A browser with a profile of its own, which nobody asks to download anything."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    with webdriver.Chrome(options=options, service=Service(DRIVER)) as driver:
        yield Screen(driver)
