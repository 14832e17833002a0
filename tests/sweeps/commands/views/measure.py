"""How fast the explorer is in a real browser: `python -m tests.sweeps.commands.views.measure`.

For sweeps of several sizes, as a file and served: megabytes, milliseconds from opening the address
to the map, and from a click to trajectories; then from the event of a slider to the curve. Clicks
and sliders end with the frame that shows what they change. The sweeps are exact descents, which
take seconds to compute; of each the file has the entropy alone.
"""

import tempfile
import threading
from pathlib import Path

import numpy as np

import sweeps
from sweeps import Sweep, experiment
from sweeps.commands.views import explore, live, serve
from tests.sweeps.commands.views.screen import Keys, opened

SIDES = (32, 100, 1000)
"""Values of each of the two axes."""
REPEATS = 20
WATCH = """
const [id, kind] = arguments;
window.took = null;
document.addEventListener(kind, () => {
  const began = performance.now();
  const frame = () => (window.took = performance.now() - began);
  const seen = new MutationObserver(() => {
    seen.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(frame));
  });
  seen.observe(document.getElementById(id), { attributeFilter: ["data-milliseconds"] });
}, { capture: true, once: true });
"""
"""Wait for an event, then for the element that notes its own milliseconds once it is drawn."""


def stored(side, out):
    rates = {"logspace": [0.01, 10, side]}
    run = experiment(steps=50)
    record = ("entropy", "loss")
    axes = {"eta_y": rates, "eta_z": rates}
    sweeps.run(Sweep(run, axes, "symmetric-descent", record, 10, title="descent"), out)
    return out


def took(screen):
    return screen.until(lambda: screen.run("return window.took"))


def of_page(screen, address, side):
    """Milliseconds to the map, and from clicks on five cells."""
    screen.open(address)
    marks = "return performance.getEntriesByName('drawn').map((each) => each.startTime)"
    (drawn,) = screen.until(lambda: screen.run(marks))
    clicks = []
    for place in (1, 3, 5, 7, 9):
        cell = (side * place // 10, side // 2)
        screen.point(cell, (side, side))
        screen.run(WATCH, "runs", "mouseup")
        screen.mouse(cell, (side, side), "mousePressed", "mouseReleased")
        clicks.append(took(screen))
    return f"map {drawn:.0f} ms, click {said(clicks)}"


def said(milliseconds):
    return f"{np.median(milliseconds):.0f} ms ({min(milliseconds):.0f} to {max(milliseconds):.0f})"


def served(screen, stored, theory, side):
    server = serve.Server(stored, theory)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        return of_page(screen, server.address, side) if stored else sliders(screen, server)
    finally:
        server.shutdown()
        server.server_close()


def sliders(screen, server):
    """Milliseconds from a slider to the curve of theory alone, when its program is compiled."""
    screen.open(server.address)
    screen.until(lambda: screen.run("return document.getElementById('live').dataset.answers"))
    found = []
    for _ in range(REPEATS):
        screen.run(WATCH, "live", "input")
        screen["live-eta_z"].send_keys(Keys.ARROW_RIGHT)
        found.append(took(screen))
    return said(found)


def report(screen, work):
    """Lines of the report."""
    for side in SIDES:
        path = stored(side, work / str(side))
        page = work / f"{side}.html"
        explore.run(explore.Explore(paths=(str(path),), out=page, observables=("entropy",)))
        runs = f"{side**2} runs"
        megabytes = page.stat().st_size / 1e6
        yield f"{runs}, file of {megabytes:.1f} MB: {of_page(screen, page.as_uri(), side)}"
        there = serve.StoredSweeps([str(path)])
        yield f"{runs}, served: {served(screen, there, live.Theory(sweeps.open(path)), side)}"
    for length in (float("inf"), 128):
        theory = live.Theory(experiment(task="overlapping", length=length))
        yield f"slider, T = {length:g}: {served(screen, None, theory, 0)}"


def main():
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "profile") as screen:
        for line in report(screen, Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
