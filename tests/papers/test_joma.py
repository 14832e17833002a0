"""Figures of JoMA: the paper's recursion, and errors of Theorem 1 on runs that are known."""

import numpy as np
import pytest
import xarray as xr
from scipy.special import softmax

import dynsim
from dynsim import Trajectory
from papers import joma
from papers.joma import figure, invariant
from tests.papers import made


def runs(loss, **arrays):
    """Two seeds with these losses over time, and further arrays over seed, time, query and token,
    or without queries."""
    dims = {3: ("seed", "time", "token"), 4: ("seed", "time", "query", "token")}
    data = {name: (dims[values.ndim], values) for name, values in arrays.items()}
    coords = {"time": [0.0, 1.0, 2.0], "seed": [0, 1], "temperature": 0.5}
    return xr.Dataset({"loss": (("seed", "time"), np.array(loss)), **data}, coords)


def test_the_toy_is_the_recursion_of_the_paper_and_its_limit_of_small_steps():
    """v += 0.02 (mu - v) o softmax(v^2 / 3) from 0.05, which ends at mu."""
    # Ten values of v at the end, between 1 and 4.
    np.testing.assert_allclose(joma.MU, np.sort(np.random.default_rng(0).uniform(1, 4, 10)))
    toy, v = joma.toy(1000), np.full(joma.MU.size, 0.05)
    assert toy["time"].shape == toy["entropy"].shape
    entropy = lambda v: -(softmax(v**2 / 3) * np.log(softmax(v**2 / 3))).sum()
    for k in (0, 1, 2):
        assert toy["time"][k] == pytest.approx(0.02 * k)
        assert toy["entropy"][k] == pytest.approx(entropy(v), rel=1e-12)
        v += 0.02 * (joma.MU - v) * softmax(v**2 / 3)
    assert toy["time"][-1] == pytest.approx(20)
    assert toy["end"] == pytest.approx(entropy(joma.MU), rel=1e-12)
    # Up to the last of its times, which are 2 apart, within those of the recursion.
    assert toy["closed/time"][0] == 0
    assert 18 < toy["closed/time"][-1] <= 20
    at = np.interp(toy["closed/time"], toy["time"], toy["entropy"])
    # Half a step of 0.02 times the slope of up to 0.4.
    np.testing.assert_allclose(toy["closed/entropy"], at, atol=0.01)


def test_errors_are_those_where_the_loss_first_halves():
    """At time 1, with a loss of exactly half, and 2; relative to T z at T = 1/2, as root mean
    squares. Without the second seed, whose loss then does not halve, only of the first."""
    drift, z = np.array([[0.0, 3, 9], [0, 9, 4]]), np.array([[0.0, 10, 20], [0, 20, 10]])
    arrays = {"logits": z[..., None, None], "conserved": drift[..., None]}
    data = runs([[2.0, 1.0, 0.1], [2.0, 1.5, 1.0]], **arrays)
    wanted = np.sqrt((3**2 + 4**2) / (5**2 + 5**2))
    assert float(invariant.halved(data)) == pytest.approx(wanted)
    data = runs([[2.0, 1.0, 0.1], [2.0, 1.5, 1.2]], **arrays)
    assert float(invariant.halved(data)) == pytest.approx(3 / 5)
    assert np.isnan(invariant.halved(data.isel(seed=[1])))


def test_only_the_sum_over_queries_obeys_the_theorem():
    """V^2/2 grows by 3 and two queries move by 1 and 2. Tokens that fewer queries lack are NaN."""
    z = np.full((2, 3, 2, 2), np.nan)
    z[..., 0] = [[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]]
    weight = np.sqrt([[[0.0], [1.0], [6.0]]] * 2) * [1, np.nan]
    conserved = z.sum(2) - weight**2 / 2 * [[[0], [1], [1]]]
    data = runs([[1.0] * 3] * 2, logits=z, weight=weight, conserved=conserved)
    errors = invariant.of_queries(data)
    assert float(errors["sum"]) == pytest.approx(0, abs=1e-12)
    # (1 - 3)^2 + (2 - 3)^2 over 1 + 4.
    assert float(errors["own"]) == pytest.approx(1.0)
    # A third of the sum, by which all have moved.
    missed = data.assign(conserved=data.conserved + data.time / 2)
    assert float(invariant.of_queries(missed)["sum"]) == pytest.approx(1 / 3)


def test_the_correlation_is_that_of_z_with_its_value_by_theorem_1(monkeypatch):
    """At T = 1/2, z is half of the logits, and its value by the theorem is z less what the
    conserved quantity has drifted since the start; token by token at each time."""
    rng = np.random.default_rng(0)
    logits, conserved = rng.normal(size=(4, 1, 5)), rng.normal(size=(4, 5))

    def train(problem, rule, key, **options):
        assert float(problem.temperature) == 0.5
        assert (rule, options["batch"]) == (dynsim.sgd(0.1), np.inf)
        values = {"logits": logits, "conserved": conserved}
        return Trajectory(np.arange(4), values, None, np.array(0), np.array(-1), "")

    monkeypatch.setattr(dynsim, "train", train)
    found = joma.invariance("bumps", 90)
    z = logits[:, 0] / 2
    for value, a, b in zip(found, z, z - (conserved - conserved[0]), strict=True):
        a, b = a - a.mean(), b - b.mean()
        assert float(value) == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)))
    assert float(found[0]) == pytest.approx(1)


TOKENS = {"weight": {"token": 12}, "conserved": {"token": 12}, "logits": {"query": 1, "token": 12}}


def test_the_figure_is_drawn_from_its_sweeps(monkeypatch):
    correlation = xr.DataArray(np.ones(2001), {"time": np.arange(2001)}, "time")
    monkeypatch.setattr(joma, "invariance", lambda *_: correlation)
    monkeypatch.setattr(joma, "STEPS", 50)
    data = made.results(figure.FigureJoMA(), **TOKENS)
    picture = figure.FigureJoMA().draw(data)
    assert {"bumps/correlation", "toy", "dense/exp-relu/inf"} <= {*picture.arrays}
    growth = picture.figure.axes[1]
    last = data["growth/simulation"].weight[0, -1].values
    for line, rank in zip(growth.lines[:4], (0, 3, 6, 9), strict=True):
        token = np.argsort(-last)[rank]
        assert line.get_label() == f"training, token {token}"
        assert line.get_ydata()[-1] == last[token]
    assert len(picture.figure.axes[4].lines) == 3 * 2
    for activation in figure.ACTIVATIONS:
        for T, each in data[f"entropy/{activation}"].groupby("temperature"):
            drift, z = (
                (each[n][:, :, -1] - each[n][:, :, 0]).values for n in ("conserved", "logits")
            )
            error = 100 * np.sqrt(np.mean(drift**2) / np.mean((T * z.sum(2)) ** 2))
            assert f"{activation}, T = {T:g}: off by {error:.1f} %;" in picture.text


def test_the_map_of_errors_is_drawn():
    data = made.results(invariant.JoMAInvariant(), **TOKENS)
    picture = invariant.JoMAInvariant().draw(data)
    table, error = picture.figure.axes[0], picture.arrays["map"]["linear"]
    assert table.texts[0].get_text() == invariant.percent(
        float(error.sel(temperature=0.25, num_common=1, classes_per_query=2))
    )
    assert [text.get_text() for text in table.get_yticklabels()] == ["0.09", "0.50", "0.80"]
