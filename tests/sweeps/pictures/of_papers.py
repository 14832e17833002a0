"""The papers' figures from made-up data."""

import functools

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from sweeps.studies.paper import (
    attention_maps,
    closed_forms,
    figure6,
    figure7,
    figure10,
    recall,
    transformer,
)
from sweeps.systems.yz import DRIFT, STD


def growth_factor() -> Figure:
    config = closed_forms.Figure3()
    t = np.linspace(0, config.end, 71)
    B = np.log1p(np.outer(config.eta_y, t) / 20)
    t0 = 370 / np.array(config.eta_y)
    return config.draw(
        {"t": t, "lower": np.exp(B / 2), "upper": np.exp(2 * B), "t0_prime": t0 / 2.6, "t0": t0}
    )


def attention(*rates: float) -> Figure:
    """Attention that ends on a few tokens: half of them are never among the winners."""
    used, time = np.arange(34), np.array([0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100])
    z = np.outer(time, np.linspace(-1, 1, used.size)) / 10
    share = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    share[:, ::5] = 0
    values = np.broadcast_to(share[None, :, None], (len(rates), time.size, 2, used.size))
    data = xr.Dataset(
        {"attention": (("eta_y", "time", "class", "token"), values)},
        {"eta_y": list(rates), "time": time},
    )
    return attention_maps.draw({"training": data, "flow": data}, used, 1.0)


def entropies(*queries: int, theory: bool = True, training: bool = True) -> Figure:
    """Entropy that falls with the smaller rate and rises with their ratio."""
    seeds, eta_z, ratio = 3, np.array([0.5, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0, 10.0])
    mean = 4 - 0.8 * np.log1p(np.multiply.outer(eta_z, 1 / ratio))
    values = mean[None, ..., None] + 0.05 * np.arange(seeds) + np.zeros((len(queries), 1, 1, 1))
    dims = ("num_queries", "eta_z", "ratio", "seed")
    coords = {"num_queries": list(queries), "eta_z": eta_z, "ratio": ratio}

    def of(shift: float, **more: float) -> xr.Dataset:
        found = {"entropy": (dims, values + shift)}
        found |= {name: (dims, np.full_like(values, value)) for name, value in more.items()}
        return xr.Dataset(found, coords)

    scatter = {"entropy" + STD: 0.05, "entropy" + DRIFT: 0.01}
    found = {"simulation": of(0)} if training else {}
    found |= {figure6.THEORY: of(0.02, **scatter)} if theory else {}
    found |= {"matched": of(0.1), "descent": of(0.15)} if theory and training else {}
    return figure6.draw(found, figure6.published())


def text_attention(*layers: int) -> Figure:
    """Attention of transformers on text that moves to a few keys."""
    config = figure7.Figure7(layers=layers)
    size = transformer(config.run).length
    steps = np.linspace(0, config.run.steps or 0, 21)
    sharp = np.tril(np.exp(-np.arange(size)[:, None] + np.arange(size)) + 0.02)
    found = {}
    for number in layers:
        maps = np.broadcast_to(sharp / sharp.sum(1, keepdims=True), (21, 1, 1, number, size, size))
        curve = np.exp(-steps / 500)[None, :, None] * (1 + np.arange(number)) / number
        curve = curve * np.array([0.9, 1.0, 1.1])[:, None, None]
        over = ("seed", "time", "layer")
        found[number] = xr.Dataset(
            {
                "attention": (("time", "prompt", "head", "layer", "query", "key"), maps),
                "layer_entropy": (over, 1 + curve),
                "layer_top": (over, 1 - curve / 1.3),
                "layer_change": (over, curve / 4),
            },
            {"time": steps},
        ).assign(attention=lambda data: data["attention"].expand_dims(seed=3))
    lines = "the captain said that the $ ship was <unk> and the violin of the hospital airport"
    words = (lines.split() * 3)[:size]
    return figure7.draw(config, found, words)


def decoder() -> Figure:
    arrays = {}
    for M, rates in closed_forms.DECODERS.items():
        s = np.arange(71)
        h = np.log1p(np.outer(rates, s)) / M
        arrays |= {f"M{M}/s": s, f"M{M}/h": h, f"M{M}/h_star": h + np.exp(-s / 10) / M}
    return closed_forms.Figure8().draw(arrays)


def bounds() -> Figure:
    arrays = {}
    for nu, (_, end) in closed_forms.RATIOS.items():
        t = np.linspace(0, end, 51)
        B = np.log1p(np.outer(closed_forms.RATES, t) / end)
        t0 = end / np.array(closed_forms.RATES)
        data = {"t": t, "B": B, "t0": t0, "B_at_t0": np.array(0.7)}
        arrays |= {f"nu{nu}/{name}": value for name, value in data.items()}
    return closed_forms.Figure9().draw(arrays)


def text_entropy() -> Figure:
    config = figure10.Figure10()
    time = np.linspace(0, config.run.steps or 0, 21)
    fall = np.exp(-np.multiply.outer(config.eta, time) / 2000)[:, None]
    values = 1 + 1.4 * fall * (1 + 0.05 * np.arange(3))[:, None]
    entropy = xr.DataArray(values, {"eta": list(config.eta), "time": time}, ("eta", "seed", "time"))
    line = figure10.trend(np.array(config.eta), values[..., -1])
    return figure10.draw(config, entropy, {"equal steps": line, "equal eta-time": line})


def recalled(*queries: int) -> Figure:
    threshold, eta_z, ratio = np.geomspace(0.1, 30, 20), [0.5, 1.0, 2.0, 3.0], [1.0, 2.0, 5.0, 10.0]
    curve = 1 / (1 + (threshold / np.array(ratio)[:, None, None]) ** 2)
    values = curve * (1 - 0.02 * np.arange(3))[:, None]
    data = xr.Dataset(
        {
            "recall": (
                ("num_queries", "eta_z", "ratio", "seed", "threshold"),
                np.broadcast_to(values, (len(queries), 4, *values.shape)),
            )
        },
        {"num_queries": list(queries), "eta_z": eta_z, "ratio": ratio, "threshold": threshold},
    )
    return recall.draw(data)


EXAMPLES = {
    "figure 3": growth_factor,
    "figure 4": functools.partial(attention, 1.0, 10.0),
    "figure 5": functools.partial(attention, 0.1, 0.5, 1.0),
    "figure 6": functools.partial(entropies, 1, 3, 5, 10),
    "figure 6, two": functools.partial(entropies, 1, 3),
    "figure 6, one": functools.partial(entropies, 1),
    "figure 6, theory": functools.partial(entropies, 5, training=False),
    "figure 6, training": functools.partial(entropies, 5, theory=False),
    "figure 7": functools.partial(text_attention, 1, 3),
    "figure 7, one": functools.partial(text_attention, 1),
    "figure 8": decoder,
    "figure 9": bounds,
    "figure 10": text_entropy,
    "figure 11": functools.partial(recalled, 1, 3),
    "figure 12, one": functools.partial(recalled, 5),
}
