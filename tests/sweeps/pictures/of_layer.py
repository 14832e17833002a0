"""Pictures of the attention layer from made-up data: comparisons, planes, transitions, a sweep."""

import functools
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import dynsim
import odes
from dynsim import Status, Trajectory
from sweeps.commands.views import plot
from sweeps.compare import picture
from sweeps.compare.comparison import Comparison
from sweeps.studies import tables
from sweeps.studies.phase import figure as phase
from sweeps.studies.phase import maps, validity
from sweeps.studies.phase.plane import Tally
from sweeps.studies.phase.regions import BY_STATUS, RULE, Rule
from sweeps.studies.transitions import collapse, snap
from sweeps.studies.transitions.collapse import FAMILIES
from sweeps.systems import registry
from sweeps.systems.experiment import experiment

TIMES = np.unique(np.geomspace(1, 1000, 30).astype(int))
ALL = tuple(
    name
    for name in odes.applicable(
        dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 1.0), variants=True
    )
    if name in registry.theories(registry.system_of(experiment()))
)
"""The theories of plain descent that sweeps compute, which are most of them."""


def trajectory(runs: int, source: str, shift: float) -> xr.Dataset:
    """Curves that fall, rise or peak, as training's do, a little apart from each other."""
    rng = np.random.default_rng(len(source) if runs > 1 else 0)
    times = np.r_[0, TIMES]
    noise = 1 + 0.03 * rng.normal(size=(runs, 1))
    fall = np.exp(-times / (200 * (1 + shift))) * noise
    rise = (1 - fall)[..., None] * np.ones(2)
    peak = (times / 60 * np.exp(1 - times / 60) * noise)[..., None] * np.ones(2)
    attention = np.zeros((runs, times.size, 2, 34))
    attention[..., :16] = (0.06 * fall)[..., None, None]
    found = {
        "loss": 3.4 * fall + 0.01,
        "accuracy": 1 - fall,
        "entropy": 1 + rise[..., ::-1] * -0.9 + 1.2,
        "z_top_distinct": 4 * rise,
        "z_top_common": -2 * rise,
        "speed": peak,
        "xi": 0.1 * rise,
        "attention": attention,
    }
    status, never = np.zeros(runs, int), np.full(runs, -1)
    times = np.broadcast_to(times, (runs, times.size))
    return Trajectory(times, found, None, status, never, source).to_xarray(("seed",))


def compare(*names: str, four: bool = False, **settings: object) -> Figure:
    """A comparison with these theories, of which the spread has standard deviations, at few times;
    or four panels, one of which has more entries than are drawn, with deviations at all times."""
    run = experiment(**settings)
    known = registry.theories(registry.system_of(run))
    simulation = trajectory(8, "simulation", 0.0)
    predictions = {name: trajectory(1, name, 0.02 * i) for i, name in enumerate(names)}
    noisy = predictions["spread"]
    deviations = {f"{name}_std": 0.05 * abs(noisy[name]) for name in dynsim.Layer.COMPARED}
    deviations |= {f"{name}_error": 0.2 * each for name, each in deviations.items()}
    noisy = noisy.assign(deviations)
    predictions["spread"] = noisy if four else noisy.isel(time=slice(None, None, 4))
    shown = ("loss", "entropy", "attention", "xi") if four else dynsim.Layer.COMPARED
    if four:
        of_one = lambda each: each.assign(attention=each["attention"].isel(attention_0=0))
        simulation, *others = map(of_one, (simulation, *predictions.values()))
        predictions = dict(zip(predictions, others, strict=True))
    return picture.draw(Comparison(run, {}, simulation, predictions, known, shown))


def plane(config: phase.Plane, theory: str, shift: float = 0.0) -> xr.Dataset:
    """What training, or a theory, says of a plane: the smaller both rates, the less is learned."""
    axes = config.axes()
    (x, xs), (y, ys) = axes.items()
    fast = np.linspace(0, 1, len(xs))[:, None] * np.linspace(0.3, 1, len(ys))
    fast = fast + (0.02 if theory != "simulation" else shift)
    time = np.array([0, 1, 3, 10, 30, 100])
    rising = np.where(fast[..., None] > 0.5, np.exp(-((time - 10) ** 2) / 400), time / 100)
    loss = 3 - 2.9 * fast[..., None] * (time / 100)
    status = np.where((fast > 0.9) & (fast < 0.93), Status.DIVERGED, Status.OK)
    dims = (x, y)
    return xr.Dataset(
        {
            "status": (dims, status),
            "loss": ((*dims, "time"), loss),
            "entropy": ((*dims, "time"), 1.5 - 1.4 * fast[..., None] * (time / 100)),
            "speed": ((*dims, "time", "class"), rising[..., None] * np.ones(2)),
        },
        {x: list(xs), y: list(ys), "time": time},
    )


def mapped(config: phase.Phase, rule: Rule, found: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    maps_ = {}
    for name, runs in found.items():
        axes = config.axes()
        counted = Tally(tuple(map(len, axes.values())), rule, config.observable)
        counted.add(np.argwhere(counted.seeds == 0), runs)
        maps_[name] = maps.as_map(counted, None, axes, runs)
    return maps_


def phase_diagram(compared: bool, seeds: int = 1, **settings: object) -> Figure:
    """A diagram with the lines of the closed form, where noise rules, and boundaries of seeds."""
    config = phase.Phase(resolution=24, **{"theory": "simulation", **settings})
    theories = ("simulation", "symmetric-finite-t")[: 1 + compared]
    found = {name: plane(config, name) for name in theories}
    (x, xs), (y, ys) = config.axes().items()
    grid = np.linspace(-3, 2, len(xs)) + 0 * np.linspace(0, 1, len(ys))[:, None]
    closed = {
        name: np.exp(place + grid)
        for place, name in enumerate(("peak", "rise_end", "snap"), start=-1)
    }
    closed["bound"] = np.exp(grid) * np.linspace(0.1, 2, len(ys))[:, None]
    noise = xr.DataArray(grid.T + 1.2, {x: list(xs), y: list(ys)}, (x, y)) if compared else None
    if seeds > 1:
        found["simulation"] = xr.concat(
            [plane(config, "simulation", 0.2 * seed / seeds) for seed in range(seeds)], "seed"
        )
    return drawn(config, RULE, found, closed, noise)


def phase_by_status() -> Figure:
    """A diagram that theory draws no lines on, over whole numbers and a linear axis."""
    config = phase.Phase(x="batch:1:64:12", y="momentum:0:0.95:6:lin", against="none")
    return drawn(config, BY_STATUS, {"simulation": plane(config, "simulation")}, {}, None)


def drawn(
    config: phase.Phase,
    rule: Rule,
    found: dict[str, xr.Dataset],
    closed: dict[str, np.ndarray],
    noise: xr.DataArray | None,
) -> Figure:
    each = mapped(config, rule, found)
    told = phase.theory(each, rule, closed, noise, {})
    seeded = {name: maps.boundary(one) for name, one in each.items() if "share" in one}
    return phase.draw(config, each, rule, closed, told, seeded)


def validity_maps(resolution: int, columns: int) -> Figure:
    names = tuple(validity.KNOWN)[-columns:]
    ratio, eta_z = np.geomspace(0.1, 100, resolution), np.geomspace(0.01, 3, resolution)
    K, overlap = np.array([2, 5, 10]), np.array([0.01, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6])
    rates = np.clip(0.3 * np.outer(1 / ratio, eta_z) ** 0.7, 1e-3, 2)
    classes = np.outer(K / 5, overlap)
    errors = {}
    for name in names:
        coords = {"ratio": ratio, "eta_z": eta_z}
        errors["rates", name] = xr.DataArray(rates, coords, ("ratio", "eta_z"))
        errors["overlap", name] = xr.DataArray(
            classes, {"K": K, "overlap": overlap}, ("K", "overlap")
        )
    return validity.draw(errors)


def collapsed(*names: str) -> Figure:
    """Peaks within a few percent of the closed form, later with overlap."""
    found = {}
    rng = np.random.default_rng(0)
    for name in names:
        family = FAMILIES[name]
        dims = [dim for dim in family.axes if dim not in family.zipped[1:]]
        shape = tuple(len(family.axes[dim]) for dim in dims)
        coords = {dim: np.array(family.axes[dim], float) for dim in dims}
        coords |= {
            other: (dims[0], np.array(family.axes[other], float)) for other in family.zipped[1:]
        }
        predicted = np.geomspace(300, 4, 4) * (1 + np.arange(np.prod(shape)).reshape(*shape, 1))
        exact = predicted * (1 + 0.1 * np.linspace(0, 1, predicted.size).reshape(predicted.shape))
        noisy = exact[..., None] * (1 + 0.05 * rng.normal(size=(*exact.shape, 3)))
        over = (*dims, "eta_y")
        found[name] = xr.Dataset(
            {
                "predicted": (over, predicted),
                "gamma": (over, predicted * 1.002),
                "symmetric": (over, exact),
                "symmetric-descent": (over, exact * 1.01),
                "simulation": ((*over, "seed"), noisy),
            },
            coords,
        )
    return collapse.draw(found)


def snapped() -> Figure:
    """Entropies that fall the earlier the larger the rate, and final gains."""
    time = np.unique(np.geomspace(1, 1000, 30).astype(int))
    found = {}
    for name, control in snap.CONTROLS.items():
        ends = next(ends for ends in control.ends.values() if ends[0] != ends[1])
        for theory in snap.THEORIES:
            rate = np.geomspace(*ends, 5 if theory == "simulation" else 4 * snap.DENSE + 1)
            start = 20 / rate[:, None]
            entropy = 2.2 / (1 + (time / start) ** 0.5)
            gain = np.log1p(time / start)
            seeds = ("seed",) if theory == "simulation" else ()
            widen = lambda v, several=bool(seeds): v[..., None] * np.ones(4) if several else v
            over = ("rate", "time", *seeds)
            found[name, theory] = xr.Dataset(
                {
                    "entropy": (over, widen(entropy)),
                    "z_top_distinct": (over, widen(gain * rate[:, None] ** control.gain)),
                    "B": (("rate", "time"), 2 * gain),
                    "rise_end": ("rate", 7 / rate),
                    "peak": ("rate", 10 / rate),
                    "snap": ("rate", 30 / rate),
                },
                {"rate": rate, "time": time},
            )
    return snap.draw(found)


def swept(
    hue: str | None, left: bool, theory: bool = False, number: int = 3, **options: Any
) -> Figure:
    """A quick look at a sweep over two or three axes, next to a theory of it."""
    eta_y, eta_z = np.array([0.1, 0.3, 1.0, 3.0]), np.geomspace(0.01, 1.0, number)
    values = np.log1p(np.multiply.outer(eta_y, eta_z))[..., None] + 0.01 * np.arange(3)
    data = xr.DataArray(
        values,
        {"eta_y": eta_y, "eta_z": eta_z, "seed": np.arange(3)},
        ("eta_y", "eta_z", "seed"),
        "entropy",
        {"long_name": "entropy of attention on distinct tokens", "units": "nat"},
    )
    config = plot.Plot("out/sweeps/rates", x="eta_y", hue=hue, **options)
    data = data if left or hue else data.isel(eta_z=0)
    return plot.draw(config, data, {"out/theory": 0.9 * data.isel(seed=0)} if theory else {})


def validated() -> Figure:
    rng = np.random.default_rng(0)
    size = (len(tables.GRID),) * 2
    flows = {"matched": "matched flow", "corrected": "corrected flow", "heavy-ball": "heavy-ball"}
    return tables.draw(flows, {name: 10 ** rng.uniform(-4, 0, size) for name in flows})  # pyright: ignore


EXAMPLES = {
    "compare": functools.partial(compare, "plain-finite-t", "plain", "eq10", "spread"),
    "compare, four": functools.partial(compare, "plain", "spread", four=True),
    "compare, all": functools.partial(compare, *ALL, "spread"),
    "phase, compared": functools.partial(phase_diagram, True),
    "phase, several seeds": functools.partial(phase_diagram, True, seeds=12),
    "phase, alone": functools.partial(phase_diagram, False, against="none"),
    "phase, whole numbers": phase_by_status,
    "validity": functools.partial(validity_maps, 13, 4),
    "validity, one": functools.partial(validity_maps, 5, 1),
    "collapse": functools.partial(collapsed, *FAMILIES),
    "collapse, one": functools.partial(collapsed, "size"),
    "snap": snapped,
    "plot": functools.partial(swept, "eta_z", False),
    "plot, panels": functools.partial(swept, None, True),
    "plot, a line": functools.partial(swept, None, False),
    "plot, many": functools.partial(swept, "eta_z", False, number=17),
    "plot, theory": functools.partial(swept, None, True, theory=True),
    "plot, heatmap": functools.partial(
        swept, None, True, theory=True, view="heatmap", y="eta_z", error=True
    ),
    "validate": validated,
}
