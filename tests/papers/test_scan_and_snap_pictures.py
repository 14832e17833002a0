"""Figures of Scan and Snap from made-up runs, with what they draw and print computed by hand."""

import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import sweeps
from dynsim import Status
from papers.scan_and_snap import finite_length, noise
from papers.scan_and_snap.figure6 import Figure6
from papers.scan_and_snap.figure7 import Figure7
from papers.scan_and_snap.finite_size import FiniteSize
from papers.scan_and_snap.recall import Figure11
from papers.scan_and_snap.snap import Snap
from papers.scan_and_snap.validity import Validity
from tests.papers import made


def test_figure_6_has_means_and_deviations_of_the_seeds_on_one_scale():
    data = {name: each.isel(time=-1) for name, each in made.results(Figure6()).items()}
    picture = Figure6().draw(data)
    mean, std = (getattr(data["simulation"].entropy, n)("seed") for n in ("mean", "std"))
    for column, ax in enumerate(picture.figure.axes):
        assert ax.get_shared_y_axes().joined(ax, picture.figure.axes[0])
        for row, (line, _, (bars,)) in enumerate(ax.containers):
            np.testing.assert_allclose([*map(float, line.get_ydata())], mean[column, row])
            length = np.ptp([part[:, 1] for part in bars.get_segments()], axis=1) / 2
            # Of ten seeds, with the one degree of freedom that the mean takes.
            np.testing.assert_allclose(length, std[column, row] * (10 / 9) ** 0.5)
    theory = data["spread"].entropy + data["spread"].entropy_drift
    apart = abs((theory - data["simulation"].entropy).mean("seed"))
    first = f"median deviation {apart.median():.4f} nat, largest {apart.max():.4f}"
    assert first in picture.text.splitlines()[0]


def test_figure_7_has_the_maps_of_the_first_seed_and_curves_of_all():
    """A prompt of 8 tokens; the first seed diverged, so maps are those of the second."""
    run = sweeps.experiment(**{**Figure7.RUN, "length": 8, "steps": 40})
    config = Figure7(run=run, layers=(1, 2), seeds=3)
    rng, data = np.random.default_rng(0), {}
    for n in (1, 2):
        sizes = {"seed": 3, "time": 21, "layer": n}
        dims, shape = tuple(sizes), tuple(sizes.values())
        each = {f"layer_{name}": (dims, rng.uniform(0.1, 1, shape)) for name in ("entropy", "top")}
        # What moved is largest half-way and a fifth of that at the end.
        moved = np.where(np.arange(21) == 10, 5.0, 1.0)[None, :, None] * rng.uniform(1, 2, shape)
        each |= {"layer_change": (dims, moved)}
        each |= {name: (dims[:2], rng.uniform(size=shape[:2])) for name in ("loss", "entropy")}
        inner = {"prompt": 1, "head": 2, "layer": n, "query": 8, "key": 8}
        attention = rng.uniform(0, 0.01, (3, 21, *inner.values()))
        each["attention"] = (*dims[:2], *inner), attention
        each["status"] = "seed", [Status.DIVERGED, Status.OK, Status.OK]
        each["first_bad_step"] = "seed", [3, -1, -1]
        data[f"layers-{n}"] = xr.Dataset(each, {"time": 2.0 * np.arange(21), "seed": range(3)})
    picture = config.draw(data)
    above, below = picture.figure.subfigs
    maps = np.array(above.axes[:12]).reshape(3, 4)
    assert [ax.get_title() for ax in maps[0]] == ["step 0", "step 4", "step 12", "step 40"]
    causal = np.tril(np.ones((8, 8), bool))
    for row, (n, layer) in zip(maps, ((1, 0), (2, 0), (2, 1)), strict=True):
        for ax, record in zip(row, (0, 2, 6, 20), strict=True):
            want = data[f"layers-{n}"].attention.values[1, record, 0, 0, layer]
            drawn = np.ma.filled(ax.collections[0].get_array(), np.nan).reshape(8, 8)
            np.testing.assert_array_equal(np.isnan(drawn), ~causal)
            np.testing.assert_allclose(drawn[causal], np.maximum(want, 1e-3)[causal])
    for ax, name in zip(below.axes, ("layer_entropy", "layer_top", "layer_change"), strict=True):
        first = int(name == "layer_change")
        lines = [line for line in ax.get_lines() if "uniform" not in line.get_label()]
        for line, (n, layer) in zip(lines, ((1, 0), (2, 0), (2, 1)), strict=True):
            values = data[f"layers-{n}"][name].values[1:, first:, layer]
            np.testing.assert_allclose(line.get_ydata(), values.mean(0))
            np.testing.assert_allclose(line.get_xdata(), 2.0 * np.arange(first, 21))
    # The first query, which has a single key, has no choice, and does not count.
    uniform = np.log(np.arange(2, 9)).mean()
    (line,) = (line for line in below.axes[0].get_lines() if "uniform" in line.get_label())
    np.testing.assert_allclose(line.get_ydata(), uniform, rtol=1e-6)
    assert "in 2 steps" in below.axes[2].get_title()
    entropy = data["layers-2"].layer_entropy.values[1:, :, 1].mean(0)
    assert picture.report["2"][1]["entropy_share"] == pytest.approx(entropy[-1] / uniform, rel=1e-6)
    np.testing.assert_array_equal(picture.arrays["1"]["loss"], data["layers-1"].loss[1:])
    assert len(picture.arrays["prompt"]) == 8


def test_figure_11_has_the_means_of_the_seeds_that_ended_well():
    config = Figure11(num_queries=(2, 4), seeds=3)
    data = made.results(config, time="threshold")
    (name,) = data
    recall, runs = data[name].recall, data[name]
    data[name] = runs = runs.assign_coords(threshold=np.geomspace(0.1, 10, 6))
    runs.status[{"seed": 1}] = Status.DIVERGED
    picture = config.draw(data)
    assert len(picture.figure.axes) == 2 * recall.sizes["eta_z"]
    mean = recall.isel(seed=[0, 2]).mean("seed")
    panels = iter(picture.figure.axes)
    for queries in (2, 4):
        for eta_z in recall.eta_z.values:
            *curves, one = next(panels).get_lines()
            assert set(one.get_xdata()) == {1}
            for line, ratio in zip(curves, recall.ratio.values, strict=True):
                want = mean.sel(num_queries=queries, eta_z=eta_z, ratio=ratio)
                np.testing.assert_allclose(line.get_ydata(), want)
                np.testing.assert_allclose(line.get_xdata(), runs.threshold)
                assert line.get_label() == f"{ratio:g}"


def test_errors_of_theories_are_those_of_their_logits_and_their_shares_of_the_plane():
    """Training is 1 in all records; theories are off by 1 % to 300 % in a class that is drawn."""
    config = Validity(resolution=4, seeds=2, theories=("plain", "symmetric-noise"))
    data = made.results(config)
    offsets = {"plain": [0.01, 0.1, 0.3, 3.0], "symmetric-noise": [0.001, 0.04, 0.06, 0.15]}
    for place, one in data.items():
        name = place.split("/")[1]
        one["z_top_distinct"] = xr.ones_like(one.z_top_distinct)
        if name == "simulation":
            continue
        first = next(iter(one.dims))
        cycle = np.resize(offsets[name], one.sizes[first])
        one["z_top_distinct"] = one.z_top_distinct + xr.DataArray(cycle, dims=first)
        if name == "symmetric-noise":
            other = one.z_top_distinct * 100
            one["z_top_distinct"] = xr.concat([one.z_top_distinct, other], "class")
    picture = config.draw(data)
    for place in ("rates/plain", "rates/symmetric-noise"):
        error = picture.arrays[place]
        want = xr.DataArray(offsets[place.split("/")[1]], dims="ratio") * xr.ones_like(error)
        np.testing.assert_allclose(error, want.transpose(*error.dims))
    # eta_Y / eta_Z = 0.1 and 1 are below the ratio of the paper, 10 and 100 above.
    np.testing.assert_allclose(picture.arrays["ratio"], [0.1, 1, 10, 100])
    plain, reduced = (re.findall(r"(\d+) %(?!:)", line) for line in picture.text.splitlines())
    # Within 5 % below and above that ratio, and within 20 %.
    assert plain == ["50", "0", "100", "0"]
    assert reduced == ["100", "0", "100", "100"]
    assert [line.get_xdata()[0] for line in picture.figure.axes[0].get_lines()] == [2]
    cells = {text.get_text() for text in picture.figure.axes[2].texts}
    assert cells == {"1", "10", "30"}


def test_ratios_of_noise_are_drawn_with_their_errors():
    """Of one rule at two rates and two batches: four marks side by side for each observable."""
    rng, found = np.random.default_rng(0), {}
    for end in ("", "/second", "/mean"):
        names = [*noise.OBSERVABLES, *(f"{name}_error" for name in noise.OBSERVABLES)]
        values = {name: (("eta_z", "batch"), rng.uniform(0.5, 2, (2, 2))) for name in names}
        found["sgd" + end] = xr.Dataset(values, {"eta_z": [0.1, 0.3], "batch": [32, 128]})
    ax = plt.figure().subplots()
    noise.plot_ratios(found, ["sgd"], ax)
    marks = ax.containers
    for mark, (end, name) in zip(
        marks, [(end, name) for end in ("", "/second") for name in noise.OBSERVABLES], strict=True
    ):
        line, _, (bars,) = mark
        values, errors = (found["sgd" + end][name + x].values.ravel() for x in ("", "_error"))
        np.testing.assert_allclose(line.get_ydata(), values)
        ends = np.array([bar[:, 1] for bar in bars.get_segments()])
        np.testing.assert_allclose(ends, np.c_[values - errors, values + errors])
    tables = noise.tables(found, ["sgd"])
    for text, end, scale in zip(tables, ("", "/second", "/mean"), (1, 1, 100), strict=True):
        rows = [row.split()[-8:] for row in text.splitlines()[3:]]
        want = [scale * found["sgd" + end][name].values.ravel() for name in names]
        np.testing.assert_allclose(np.array(rows, float).T, want, atol=5e-4)


def test_powers_and_tables_of_errors_in_the_length():
    """Errors that are 3 / T and 5 / T^2 from T = 64 on, and larger before, which is left out."""
    lengths = np.array([16, 64, 128, 256])
    near = np.where(lengths < 64, 10.0, 1.0)[:, None] * [1, 2]
    found = {
        "infinite": near * 3 / lengths[:, None],
        "finite": near * 5 / lengths[:, None] ** 2,
        "reference": np.zeros((4, 2)),
    }
    powers = finite_length.exponents(lengths, found)
    np.testing.assert_allclose(powers["infinite"], [-1, -1])
    np.testing.assert_allclose(powers["finite"], [-2, -2])
    rows = finite_length.table(lengths, found).splitlines()[2:]
    for row, length, infinite, finite in zip(
        rows, lengths, found["infinite"], found["finite"], strict=True
    ):
        want = [length, *(100 * infinite), *(100 * finite), 0, 0]
        np.testing.assert_allclose([float(each) for each in row.split()], want, rtol=5e-3)
    ax = plt.figure().subplots()
    finite_length.plot(lengths, found, ax)
    for mark, (kind, place) in zip(
        ax.containers, [(k, p) for p in (0, 1) for k in ("infinite", "finite")], strict=True
    ):
        np.testing.assert_allclose(mark[0].get_ydata(), found[kind][:, place])
    # Guides of slope -1 and -2.
    guides = [np.log(line.get_data()) for line in ax.get_lines() if len(line.get_xdata()) == 2]
    assert [np.diff(y) / np.diff(x) for x, y in guides] == pytest.approx([-1, -2])
    # A sampled reference has bars, and no guide of the second power.
    ax = plt.figure().subplots()
    finite_length.plot(lengths, found | {"reference": np.full((4, 2), 0.25)}, ax)
    (bars,) = ax.containers[0][2]
    heights = [np.ptp(bar[:, 1]) for bar in bars.get_segments()]
    np.testing.assert_allclose(heights, 0.5)
    assert len([line for line in ax.get_lines() if len(line.get_xdata()) == 2]) == 1


def test_finite_size_trains_at_the_rates_of_each_rule():
    plan = FiniteSize(seeds=4, steps=7, length=9).sweeps()
    known = {"sgd": (10.0, [0.1, 0.3, 1]), "momentum": (1.0, [0.1, 0.3, 1])}
    known["adam"] = 1.0, [0.003, 0.01, 0.03]
    assert {*plan} == {f"{rule}/{end}" for rule in known for end in ("simulation", "spread")}
    for name, (ratio, rates) in known.items():
        training, theory = plan[f"{name}/simulation"], plan[f"{name}/spread"]
        for sweep in (training, theory):
            point = sweep.point({"eta_z": rates[-1], "batch": 32})
            rule = point.rule.build()
            assert (point.steps, point.problem.length, point.batch) == (7, 9, 32)
            eta = {name: schedule.peak for name, schedule in rule.eta.items()}
            assert eta == pytest.approx({"Y": ratio * rates[-1], "Z": rates[-1]})
            assert [*sweep.fields["eta_z"]] == pytest.approx(rates)
            assert tuple(sweep.fields["batch"]) == (32, 128)
        assert len(training.fields["seed"]) == 4
        assert "seed" not in theory.fields
        assert theory.theory == ("spread-squares" if name == "adam" else "spread")
    only = FiniteSize(rules=("adam",), rates=(0.5,))
    assert {n: list(each) for n, each in only.by_rate().items()} == {"adam": [0.5]}


def test_snap_tells_times_and_ends_of_each_rate():
    config = Snap(rates=2, seeds=3, steps=20)
    picture = config.draw({n: made.falling(each) for n, each in config.sweeps().items()})
    rows = pd.read_csv(io.StringIO(picture.text), sep=r"\s+")
    # Two rates for each of three controls and of three ways to compute them.
    assert len(rows) == 2 * 3 * 3
    trained = rows[(rows.theory == "simulation") & (rows.control == "both")]
    np.testing.assert_allclose(trained.eta_y / trained.eta_z, 10)
    np.testing.assert_allclose(trained.eta_y, [0.1, 10])
    # Syn-Small has two classes and 34 tokens: t0' = K ln M / eta_Y.
    np.testing.assert_allclose(trained.rise_end, 2 * np.log(34) / trained.eta_y, rtol=1e-4)
    assert rows.B.notna().sum() == 2 * 3
    titles = [ax.get_title() for ax in picture.figure.axes[3:6]]
    assert [title.split()[-1] for title in titles] == ["falls", "rises", "rises"]
