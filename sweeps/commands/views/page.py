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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sweeps.commands.views.content import TIMES, Content, described
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


def filled(about: Mapping[str, Any], arrays: str, policy: str) -> str:
    """Return the page as HTML, with metadata `about` the sweeps and some `arrays`."""
    served = ["served.js"] if "live" in about else []
    parts = {
        "title": html.escape(about["title"]),
        "policy": policy,
        "style": (STATIC / "explorer.css").read_text("utf-8"),
        "about": _inside(about),
        "arrays": arrays,
        "plotly": _packed_plotly(),
        "scripts": "\n".join((STATIC / name).read_text("utf-8") for name in (*served, *SCRIPTS)),
    }
    pieces = (STATIC / "page.html").read_text("utf-8").split("@@")
    # Single pass: inserted text is not searched, as a title may contain a placeholder.
    return "".join(parts[each] if i % 2 else each for i, each in enumerate(pieces))


def fitted(content: Content, megabytes: float) -> Content:
    """Return the content with fewer times and seeds if the page would be too large, and with
    sentences about this.

    Raises:
        ValueError: if a page with a single time and a single seed is still too large.
    """
    budget = (megabytes * MEGABYTE - len(_packed_plotly()) - REST) * 3 / 4
    datasets, shown = content.datasets, content.observables
    notes = list(content.about["notes"])
    times = seeds = math.inf
    smaller = content
    while smaller.size() > budget:
        before = {n: max(_size(each, n) for each in smaller.datasets.values()) for n in SPARED}
        if max(before.values()) <= 1:
            smallest = (smaller.size() * 4 / 3 + len(_packed_plotly()) + REST) / MEGABYTE
            raise ValueError(
                f"max_megabytes = {megabytes:g}: one time and one seed of these sweeps take "
                f"{smallest:.3g} MB; choose --observables (of {', '.join(shown)}), values of axes "
                "with --where NAME=VALUE, or a larger --max-megabytes"
            )
        if before["time"] >= before["seed"]:
            times = math.ceil(before["time"] / 2)
        else:
            seeds = math.ceil(before["seed"] / 2)
        told = [*_told("time", content, times), *_told("seed", content, seeds)]
        common = np.array(content.about["times"])
        if times < len(common):
            # Keep the last time, which users look at first.
            places = np.linspace(len(common) - 1, 0, int(times)).round().astype(int)
            common = common[places[::-1]]
        kept = {name: _thinned(each, common, seeds) for name, each in datasets.items()}
        smaller = described(kept, shown, [*notes, *told])
    return smaller


SPARED = ("time", "seed")
"""Dimensions that are thinned out if a page would be too large."""


def _size(dataset: xr.Dataset, name: str) -> int:
    names = TIMES if name == "time" else (name,)
    return max(dataset.sizes.get(each, 1) for each in names)


def _told(name: str, content: Content, kept: float) -> list[str]:
    full = max(_size(each, name) for each in content.datasets.values())
    if kept >= full:
        return []
    return [
        f"Left out to keep the page small: it has {kept} of {count(full, name)}. "
        f"{'--times and ' * (name == 'time')}--observables choose, --max-megabytes allows more."
    ]


def _thinned(dataset: xr.Dataset, times: np.ndarray, seeds: float) -> xr.Dataset:
    """Select some of the shared times or records, and the first seeds."""
    if "time" in dataset.dims:
        dataset = dataset.sel(time=times)
    if "record" in dataset.dims:
        dataset = dataset.isel(record=times.astype(int))
    if dataset.sizes.get("seed", 1) > seeds:
        dataset = dataset.isel(seed=slice(int(seeds)))
    return dataset


@functools.cache
def _packed_plotly() -> str:
    """Return Plotly, compressed to a third of its size, in base64."""
    from plotly.offline import get_plotlyjs

    # Without a time, equal pages are equal files.
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def _inside(about: object) -> str:
    """Return JSON that cannot end the enclosing HTML element."""
    return json.dumps(about, allow_nan=False).replace("<", "\\u003c")


def packed(name: str, values: np.ndarray) -> bytes:
    """Encode an array for the scripts: little-endian, of the types in `numbers.js`."""
    kind = np.int8 if name == "status" else np.float64 if name == "time" else np.float32
    # float64 values of theories may overflow float32 to inf.
    with np.errstate(over="ignore"):
        return values.astype(np.dtype(kind).newbyteorder("<")).tobytes()
