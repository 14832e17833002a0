"""Phase diagrams of the attention layer: regions of made-up runs, lines against closed forms, SciPy
and direct solutions, and descent in place of a flow where its steps are too large."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from dynsim import Status
from odes import decoder, growth, symmetric
from sweeps.systems import budget, layer_diagram
from sweeps.systems.experiment import experiment
from sweeps.systems.layer_diagram import Region

pytestmark = pytest.mark.usefixtures("quick_theory")

TIMES = np.array([0.0, 1, 2, 4, 8])
RISING, FALLING = TIMES, np.array([0, 1, 3, 2, 0.5])


def lines(config):
    """Closed forms, (y, x)."""
    found = layer_diagram.closed_forms(config.plane())
    return {name: values.values.T for name, values in found.items()}


def region(loss_end, speed, entropy_end, status=Status.OK, tokens=10):
    loss = np.geomspace(3.5, loss_end, TIMES.size)
    entropy = np.linspace(math.log(tokens), entropy_end, TIMES.size)
    curves = {"loss": loss, "entropy": entropy, "speed": np.stack([speed, speed], -1)}
    return Region(int(layer_diagram.classify(recorded(status, curves))))


def recorded(status, curves):
    """A single run, as a sweep records it."""
    over = {name: ("time", "class")[: values.ndim] for name, values in curves.items()}
    return xr.Dataset({name: (over[name], curves[name]) for name in curves}).assign(status=status)


def test_each_region_has_its_rule():
    even = math.log(10)
    assert region(1.76, RISING, even) == Region.NOT_LEARNED
    assert region(1.74, RISING, even) == Region.SCANNING
    assert region(1.74, FALLING, even) == Region.SNAPPED
    # Less than two tokens' worth of attention, whether still moving or not.
    for speed in (RISING, FALLING):
        assert region(0.1, speed, math.log(1.99)) == Region.WINNER_TAKE_ALL
    assert region(0.1, FALLING, math.log(2.01)) == Region.SNAPPED
    assert region(3.4, FALLING, 0.0) == Region.NOT_LEARNED
    for status in (Status.DIVERGED, Status.MAX_STEPS, Status.SOLVER_FAILED):
        assert region(0.1, FALLING, even, status) == Region.DIVERGED
    nan = np.full((TIMES.size, 2), np.nan)
    lost = recorded(1, {"loss": nan[:, 0], "entropy": nan[:, 0], "speed": nan})
    assert layer_diagram.classify(lost) == Region.DIVERGED


def test_lines_on_other_axes_and_with_momentum(monkeypatch):
    axes = {"x": "eta_y:0.1:1:5", "y": "eta_z:0.1:1:4"}
    plain, fast = (
        lines(sweeps.diagrams.Phase(experiment(momentum=momentum, steps=100), **axes))
        for momentum in (0.0, 0.9)
    )
    # Two classes and 34 tokens.
    stages = decoder.stages(np.geomspace(0.1, 1, 5), 2, 34)
    for name in ("rise_end", "peak", "snap"):
        want = np.tile(getattr(stages, name) / 100, (4, 1))
        np.testing.assert_allclose(plain[name], want, rtol=1e-5)
        np.testing.assert_allclose(fast[name], plain[name] / 10)
    assert (np.diff(plain["bound"], axis=0) > 0).all()
    run = experiment(task="overlapping", overlap=0.3, momentum=0.0, steps=100)
    over_k = sweeps.diagrams.Phase(run, x="K:2:8:3", y="eta_y:0.1:1:2")
    assert over_k.axes()["K"] == (2, 4, 8)
    closed = lines(over_k)
    M = 5 + 5 * np.array([2, 4, 8])
    want = np.array([2, 4, 8]) * np.log(M) / np.array([[0.1], [1.0]]) / 100
    np.testing.assert_allclose(closed["rise_end"], want)
    # A task whose table is too large has the lines of its reduced form: those of the table.
    monkeypatch.setattr(budget, "LARGEST_TABLE", 0)
    reduced = lines(over_k)
    for name, values in closed.items():
        np.testing.assert_allclose(reduced[name], values, rtol=1e-6)


def test_the_bound_is_that_of_theorem_4_at_the_most_probable_common_token():
    """With momentum, and six classes of two queries."""
    task = dynsim.Syn(2, classes_per_query=3, num_common=2, M=72)
    run = experiment(task=task, momentum=0.5, steps=70)
    config = sweeps.diagrams.Phase(run, x="eta_y:0.1:1:3", y="eta_z:0.1:0.4:2")
    probs = np.asarray(run.built[0].classes.probs)[0]
    common = np.asarray(run.built[0].classes.common())[0]
    c0 = growth.c0(np.sqrt((probs**2).sum()) / probs[common].max(), 6)
    rates = np.meshgrid(2 * np.geomspace(0.1, 1, 3), 2 * np.geomspace(0.1, 0.4, 2))
    want = growth.bound(70, *map(jnp.asarray, rates), 6, 72, c0=c0, classes_per_query=3)
    # float32 here, and float64 there.
    np.testing.assert_allclose(lines(config)["bound"], want, rtol=1e-4)


def test_noise_rules_where_its_spread_exceeds_mean_and_scale():
    logs = np.array([[0.5, 3.0], [0.5, 3.0]])
    found = xr.Dataset(
        {
            "z_top_distinct": (("eta_y", "eta_z", "class"), np.stack([logs, -logs], -1) * [1, 0]),
            "z_top_distinct_std": (("eta_y", "eta_z"), [[2.0, 2.0], [0.9, np.inf]]),
        },
        {"eta_y": [1.0, 10.0], "eta_z": [1.0, 10.0]},
    )
    found["z_top_distinct_std"] = found.z_top_distinct_std.expand_dims({"class": 2}, -1)
    noise = layer_diagram.relative_noise(found, 1.0)
    # Means over the two classes: 0.25 and 1.5, beside which 1 is the larger in the first column.
    np.testing.assert_allclose(noise.values[0], np.log([2, 2 / 1.5]))
    assert noise.values[1, 0] < 0 < 700 < noise.values[1, 1]
    areas = xr.DataArray(
        [[Region.SNAPPED, Region.NOT_LEARNED], [Region.SNAPPED, Region.SCANNING]],
        noise.coords,
        noise.dims,
    )
    moved = layer_diagram.with_noise(areas, noise).values
    wins = Region.WINNER_TAKE_ALL
    assert moved.tolist() == [[wins, Region.NOT_LEARNED], [Region.SNAPPED, wins]]


def test_normal_logits_make_a_winner_from_some_spread_on():
    # Of three tokens exp(entropy) is below 2 in half of all cases from here on; by quadrature.
    at = layer_diagram.winning_spread(3)
    rng = np.random.default_rng(1)
    p = np.exp(at * rng.normal(size=(200_000, 3)))
    p /= p.sum(1, keepdims=True)
    won = np.exp(-(p * np.log(p)).sum(1)) < layer_diagram.WINNERS
    # Median of 4096 samples: 1/sqrt(4 n) = 0.8 % of all cases, times four.
    assert abs(won.mean() - 0.5) < 0.032
    # Of the first ones of a seed it is the median itself.
    p = np.exp(at * np.random.default_rng(0).normal(size=(4096, 3)))
    p /= p.sum(1, keepdims=True)
    assert np.median(np.exp(-(p * np.log(p)).sum(1))) == pytest.approx(2, rel=1e-9)
    assert layer_diagram.winning_spread(20) > layer_diagram.winning_spread(10) > at


@pytest.mark.more
def test_the_line_is_that_of_the_flow_at_each_point():
    run = experiment(momentum=0.9, steps=60)
    plane = sweeps.Sweep(run, {"eta_y": (0.01, 0.1), "eta_z": (1.0, 100.0)})
    line = layer_diagram.tie_line(plane)
    assert line is not None
    values = line.values
    task = symmetric.merged(symmetric.symmetric_task(dynsim.SynSmall().build()))
    rule = dynsim.sgd(0.1, 100.0, momentum=0.9)
    one = symmetric.instability(task, rule, steps=60, batch=128, length=128)
    point = values.sel(eta_y=0.1, eta_z=100.0)
    # Solved in lockstep with others, to the tolerances of the solver.
    np.testing.assert_allclose(point, one.max(), rtol=1e-3)
    assert values.sel(eta_z=1.0).max() < 0 < point
