"""The page of the explorer: one HTML file that contains its data, its scripts and Plotly.

The scripts in `static` read numbers through the function `slice`, which here reads arrays of the
page. Text from a sweep is embedded as JSON in an element without markup, and the scripts insert it
as text. The page's content security policy forbids all requests.
"""

import base64
import functools
import gzip
import html
import importlib.util
import json
import math
from pathlib import Path

import numpy as np

from sweeps.commands.views.content import TIME_DIMS, Content
from sweeps.output import JsonObject
from sweeps.runner.progress import count

STATIC = Path(__file__).with_name("static")
SCRIPTS = (
    "numbers.js",
    "marks.js",
    "controls.js",
    "map.js",
    "runs.js",
    "every.js",
    "cells.js",
    "explorer.js",
)
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src data:"
)
REST = 2**17
"""Size of the page in bytes without Plotly and the arrays."""
MEGABYTE = 10**6


def check_plotly() -> None:
    """Raise `ValueError` with instructions if Plotly is not installed."""
    if importlib.util.find_spec("plotly") is None:
        raise ValueError('the explorer needs plotly: pip install "dynsim[explore]"')


def page(content: Content) -> str:
    """Return the page as HTML, with all values of `content`."""
    arrays = (
        f'<script type="text/plain" data-array="{html.escape(name)}">'
        f"{base64.b64encode(packed(str(array.name), array.values)).decode()}</script>"
        for name, array in content.arrays().items()
    )
    return filled(content.about, "\n".join(arrays), POLICY)


def filled(about: JsonObject, arrays: str, policy: str) -> str:
    """Return the page as HTML, with metadata `about` the sweeps and some `arrays`."""
    served = ["served.js"] if "live" in about else []
    parts = {
        "title": html.escape(about["title"]),
        "policy": policy,
        "style": (STATIC / "explorer.css").read_text("utf-8"),
        # JSON that cannot end the HTML element that it is in.
        "about": json.dumps(about, allow_nan=False).replace("<", "\\u003c"),
        "arrays": arrays,
        "plotly": _packed_plotly(),
        "scripts": "\n".join((STATIC / name).read_text("utf-8") for name in (*served, *SCRIPTS)),
    }
    pieces = (STATIC / "page.html").read_text("utf-8").split("@@")
    # Single pass: inserted text is not searched, as a title may contain a placeholder.
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def fit(content: Content, megabytes: float) -> Content:
    """Return the content with fewer times and seeds if the page would be too large, and with
    sentences about this.

    Raises:
        ValueError: if a page with a single time and a single seed is still too large.
    """
    # Bytes of all arrays: in base64, three of them take four characters of the page.
    budget = (megabytes * MEGABYTE - len(_packed_plotly()) - REST) * 3 / 4
    sizes = _sizes(content)
    limits: dict[str, float] = dict.fromkeys(sizes, math.inf)
    smaller = content
    while smaller.size() > budget:
        before = _sizes(smaller)
        if max(before.values()) <= 1:
            smallest = (smaller.size() * 4 / 3 + len(_packed_plotly()) + REST) / MEGABYTE
            raise ValueError(
                f"max_megabytes = {megabytes:g}: one time and one seed of these sweeps take "
                f"{smallest:.3g} MB; choose --observables (of {', '.join(content.observables)}), "
                "values of axes with --where NAME=VALUE, or a larger --max-megabytes"
            )
        name = "time" if before["time"] >= before["seed"] else "seed"
        limits[name] = math.ceil(before[name] / 2)
        notes = [
            f"Left out to keep the page small: it has {limits[name]} of {count(size, name)}. "
            f"{'--times and ' * (name == 'time')}--observables choose, --max-megabytes allows more."
            for name, size in sizes.items()
            if limits[name] < size
        ]
        times = np.array(content.about["times"])
        if limits["time"] < len(times):
            # Keep the last time, which users look at first.
            places = np.linspace(len(times) - 1, 0, int(limits["time"])).round().astype(int)
            times = times[places[::-1]]
        datasets = {}
        for name, dataset in content.datasets.items():
            if "time" in dataset.dims:
                dataset = dataset.sel(time=times)
            if "record" in dataset.dims:
                dataset = dataset.isel(record=times.astype(int))
            if dataset.sizes.get("seed", 1) > limits["seed"]:
                dataset = dataset.isel(seed=slice(int(limits["seed"])))
            datasets[name] = dataset
        smaller = Content.of(datasets, content.observables, [*content.about["notes"], *notes])
    return smaller


def _sizes(content: Content) -> dict[str, int]:
    """Return the largest number of times and of seeds, along which a large page is thinned out."""
    every = [dataset.sizes for dataset in content.datasets.values()]
    return {
        "time": max(sizes.get(dim, 1) for sizes in every for dim in TIME_DIMS),
        "seed": max(sizes.get("seed", 1) for sizes in every),
    }


@functools.cache
def _packed_plotly() -> str:
    """Return Plotly, compressed to a third of its size, in base64."""
    from plotly.offline import get_plotlyjs

    # Without a time, equal pages are equal files.
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def packed(name: str, values: np.ndarray) -> bytes:
    """Encode an array for the scripts: little-endian, of the types in `numbers.js`."""
    kind = np.int8 if name == "status" else np.float64 if name == "time" else np.float32
    # float64 values of theories may overflow float32 to inf.
    with np.errstate(over="ignore"):
        return values.astype(np.dtype(kind).newbyteorder("<")).tobytes()
