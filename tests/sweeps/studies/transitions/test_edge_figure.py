"""`dynsim figure edge`: what it measures, against averages and eigenvalues in NumPy."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Status
from dynsim.training.recording import PRECONDITIONED
from sweeps.studies.phase.regions import Stability
from sweeps.studies.transitions import edge
from sweeps.studies.transitions.edge import Case, Network
from sweeps.studies.transitions.edge.figure import THEORIES, Edge, followed, run


def test_averages_are_those_of_all_stretches() -> None:
    values = np.random.default_rng(0).normal(size=(30, 2))
    want = [values[i : i + 7].mean(0) for i in range(24)]
    np.testing.assert_allclose(edge.averaged(values, 7), want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("activation", "of"), [("tanh", np.tanh), ("linear", lambda x: x)])
def test_the_network_has_the_loss_of_its_examples_in_numpy(
    activation: Any, of: Callable[[np.ndarray], np.ndarray]
) -> None:
    problem = Network(inputs=2, width=3, depth=2, activation=activation, examples=5)
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in [(2, 3), (3, 3), (3, 1)]]
    x = np.random.default_rng(1).normal(size=(5, 2))
    hidden = of(of(x @ weights[0]) @ weights[1])
    missed = (hidden @ weights[2])[:, 0] - np.sin(2 * x[:, 0]) - x[:, 0] * x[:, 1] / 2
    found = problem.population_loss([jnp.asarray(each) for each in weights])
    # float32.
    np.testing.assert_allclose(found, (missed**2).mean() / 2, rtol=1e-5)


def test_starting_weights_have_the_scale_of_their_fan_in() -> None:
    shapes = [(200, 300), (300, 1)]
    weights = Network(inputs=200, width=300, scale=1.7).init(jax.random.key(0))
    assert [leaf.shape for leaf in weights] == shapes
    for leaf, (m, n) in zip(weights, shapes, strict=True):
        # Four standard errors of a standard deviation.
        np.testing.assert_allclose(np.std(leaf), 1.7 / m**0.5, rtol=4 / (2 * m * n) ** 0.5)


def line(values: np.ndarray, loss: np.ndarray, sharpness: float, status: int = 0) -> xr.Dataset:
    """A run of one weight."""
    times = np.arange(len(values))
    return xr.Dataset(
        {
            "params": ("time", values),
            "loss": ("time", loss),
            "preconditioned_sharpness": ("time", np.full(len(values), sharpness)),
            "status": ((), status),
        },
        {"time": times},
    )


def test_errors_are_means_over_the_second_half_of_averages_of_20_steps() -> None:
    """Of three weights in two arrays that drift, and losses over stretches of half of the run."""
    rng, number = np.random.default_rng(0), 91

    def drifting(**more: np.ndarray) -> xr.Dataset:
        walk = lambda *shape: rng.normal(size=(number, *shape)).cumsum(0)
        arrays = {"params.a": (("time", "m"), walk(2)), "params.b": ("time", walk())}
        curves = {name: ("time", 5 + walk()) for name in ("loss", "other", PRECONDITIONED)}
        found = xr.Dataset(arrays | curves, {"time": np.arange(number)})
        return found.assign(status=int(Status.OK), **more)

    training, theory = drifting(), drifting()
    found = edge.errors(training, theory, "other")
    stretches = lambda values, window: [
        values[i : i + window].mean(0) for i in range(number - window + 1)
    ]
    apart = [
        np.array(stretches(theory[name].values - training[name].values, 20))
        for name in ("params.a", "params.b")
    ]
    distance = np.sqrt((apart[0] ** 2).sum(1) + apart[1] ** 2)
    # 72 stretches, of which the first that reach into the second half begin at 26 and end at 45.
    assert len(distance) == 72
    np.testing.assert_allclose(found.apart, distance[25:].mean(), rtol=1e-12)
    np.testing.assert_allclose(found.sharpness, theory[PRECONDITIONED][45:].mean(), rtol=1e-12)
    losses = np.abs(stretches(theory["other"].values - training["loss"].values, 45))
    np.testing.assert_allclose(found.loss, losses.max() / training["loss"].values[0], rtol=1e-12)
    # Of longer runs 500 steps.
    long = {"loss": ("time", np.arange(1.0, 1202)), "params": ("time", np.zeros(1201))}
    run = xr.Dataset({**long, PRECONDITIONED: long["params"]}, {"time": np.arange(1201)})
    run = run.assign(status=int(Status.OK))
    step = run.assign(other=run["loss"] + (run.time >= 800))
    assert edge.errors(run, step, "other").loss == pytest.approx(401 / 500)


def test_errors_are_those_of_means_over_oscillations() -> None:
    """Training swings by 1 about 3, the theory is at 3.5: they are 0.5 apart on average."""
    swing = np.where(np.arange(201) % 2, 1.0, -1.0)
    training = line(3 + swing, 2 + swing, 2.2)
    theory = line(np.full(201, 3.5), np.full(201, 2.25), 2.0)
    found = edge.errors(training, theory, "loss")
    np.testing.assert_allclose(found.apart, 0.5, rtol=1e-12)
    np.testing.assert_allclose(found.sharpness, 2.0, rtol=1e-12)
    # Of the starting loss, 1.
    np.testing.assert_allclose(found.loss, 0.25, rtol=1e-12)
    lost = line(3 + swing, 2 + swing, 2.2, int(Status.DIVERGED))
    assert np.isnan(edge.errors(lost, theory, "loss")).all()


def test_theory_tells_the_regions_by_the_sharpness_along_the_flow() -> None:
    flows = np.array([[0.5, 1.9], [0.5, 2.1], [2.1, 1.0], [3.9, 9.0], [4.1, 1.0]])
    want = [Stability.STABLE, Stability.EDGE, Stability.CATAPULT, Stability.CATAPULT]
    assert edge.by_theory(flows).tolist() == [*want, Stability.DIVERGED]
    # What is at a bound counts as beyond it.
    at = np.array([[0.5, 2.0], [2.0, 1.0], [4.0, 1.0]])
    assert edge.by_theory(at).tolist() == [
        Stability.EDGE,
        Stability.CATAPULT,
        Stability.DIVERGED,
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"system": "nets"}, "system = 'nets'"),
        ({"rates": (0.1, -1.0)}, "rates = -1.0"),
        ({"steps": -1}, "steps = -1"),
        ({"resolution": -1}, "resolution = -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(settings: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        run(Edge(**settings, out=tmp_path / "edge"))
    assert not (tmp_path / "edge").exists()


@pytest.mark.full("test_errors_are_those_of_means_over_oscillations")
def test_the_central_flow_stays_with_descent_beyond_the_edge(tmp_path: Path) -> None:
    """The claims of the documentation: weights ten times nearer than those of the gradient flow,
    the sharpness of averaged weights within 5 % of the edge, losses within 5 % of the first."""
    run(Edge(rates=(0.3, 0.5), resolution=0, out=tmp_path))
    report = json.loads((tmp_path / "edge.json").read_text())
    for each in report["rates"]:
        assert each["ended"] == {"training": "OK", "flow": "OK", "central": "OK"}
        assert each["central"]["apart"] < each["flow"]["apart"] / 10
        assert abs(each["sharpness"] - 2) < 0.1
        assert abs(each["central"]["sharpness"] - 2) < 1e-2
        assert each["central"]["loss"] < 0.05


@pytest.mark.parametrize(
    ("name", "problem", "settings"),
    [
        ("network", Network(3, 10, 1, "tanh", 1.0, 24), ((0.1, 0.3, 0.4, 0.5, 0.6), 3000, 0)),
        (
            "linear_icl",
            dynsim.Regression(scale=0.3),
            ((1.0, 1.86, 1.9, 1.93, 2.03), 1000, 150),
        ),
        ("yz", dynsim.Layer(dynsim.SynSmall(), math.inf), ((1.0, 4.0, 10.0, 16.0, 64.0), 100, 0)),
    ],
)
def test_cases_are_those_of_the_documentation(
    name: str, problem: dynsim.Problem, settings: tuple
) -> None:
    case = edge.CASES[name]()
    assert eqx.tree_equal(case.problem, problem)
    assert (case.rates, case.steps, case.before) == settings
    assert case.rtol is None
    scales = {"network": ("scale", 0.3, 3), "linear_icl": ("scale", 0.1, 1)}
    assert case.scale == scales.get(name)


def test_two_stage_prompts_are_a_set_of_64() -> None:
    case = edge.CASES["two_stage"]()
    assert (case.rates, case.steps) == ((1.0, 2.0, 4.0, 8.0, 16.0), 300)
    assert (case.scale, case.rtol, case.before) == (None, 1e-3, 0)
    problem = dynsim.Prompts(8, 17, tau_0=0.25, pool=8, num_test=8)
    assert eqx.tree_equal(case.problem.problem, problem)
    # The same 64 prompts every time.
    want = problem.draw(jax.random.key(1), 64)
    jax.tree.map(np.testing.assert_array_equal, case.problem.data, want)


def test_sweeps_have_the_rates_of_a_case_and_flows_its_tolerance() -> None:
    case = Case(Network(), (0.1, 0.2, 0.5), 7, ("scale", 0.3, 3), rtol=1e-3)
    found = {name: followed(case, name) for name in THEORIES} | edge.sweeps(case, 3)
    flows = {"flow", "map-flow"}
    assert {name: each.rtol for name, each in found.items()} == {
        name: 1e-3 if name in flows else None for name in found
    }
    for name in THEORIES:
        assert found[name].fields == {"eta": case.rates}
        assert found[name].times == tuple(range(8))
    for name in ("map-training", "map-flow"):
        axes = found[name].fields
        np.testing.assert_allclose(axes["scale"], np.array([0.3, 0.9**0.5, 3]))
        # To four times the largest rate.
        np.testing.assert_allclose(axes["eta"], np.array([0.1, 0.2**0.5, 2]))
        assert (found[name].first.steps, found[name].times) == (7, 60)
        assert math.isinf(found[name].first.batch)


def test_shares_of_the_map_are_those_of_its_points() -> None:
    """Eight points, of which the theory has five stable and three beyond."""
    theory = np.array([[0, 0, 0, 0], [0, 1, 2, 3]])
    training = np.array([[0, 0, 1, 3], [0, 1, 3, 1]])
    dims = ("scale", "eta")
    maps = xr.Dataset({"theory": (dims, theory), "training": (dims, training)})
    assert edge.shares(maps) == pytest.approx(
        {"same": 1 / 2, "stable": 3 / 5, "diverged beyond": 1 / 3, "diverged below": 1 / 5}
    )


@pytest.mark.more
def test_runs_begin_where_descent_at_the_smallest_rate_has_come() -> None:
    """Weights whose names in a record are in another order than in the model."""
    regression = dynsim.Regression(2, 5, scale=0.5)
    case = Case(regression, (0.3, 0.1), 10, None, before=3)
    options = {"batch": math.inf, "steps": 1, "times": [0], "record": "params"}
    start = dynsim.train(regression, dynsim.sgd(0.1), jax.random.key(0), **options)
    like = regression.init(jax.random.key(0))
    weights = type(like)(**{name: start[f"params.{name}"][0] for name in "vkq"})
    for _ in range(3):
        slope = jax.grad(regression.population_loss)(weights)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope)
    found = case.begun().init(jax.random.key(1))
    # float32.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, weights)


def test_sharpness_is_measured_at_averaged_weights() -> None:
    """Of a quartic whose weight swings by 1 about a value that falls: 3 times its square there,
    more at either side; at ten times that are evenly spaced over the second half."""

    class Quartic(dynsim.Problem):
        def init(self, key):
            return 2 + 0 * jax.random.normal(key, ())

        def population_loss(self, params):
            return params**4 / 4

    swing = np.where(np.arange(101) % 2, 1.0, -1.0)
    falls = 1 + np.exp(-np.arange(101) / 20)
    training = line(falls + swing, 1 + 0 * swing, 0.0).assign_coords(eta=0.1)
    found = edge.sharpness_of_mean(Quartic(), training)
    begin = np.linspace(50, 81, 10).astype(int)
    means = np.array([falls[i : i + 20].mean() for i in begin])
    # float32; the swings cancel.
    np.testing.assert_allclose(found, 0.1 * 3 * (means**2).mean(), rtol=1e-5)
    assert math.isnan(
        edge.sharpness_of_mean(Quartic(), training.assign(status=int(Status.DIVERGED)))
    )
