"""`dynsim figure edge`: what it measures, against averages and eigenvalues in NumPy."""

import dataclasses
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
import sweeps
from dynsim import Status
from dynsim.training.recording import PRECONDITIONED
from papers.central_flows import Network
from sweeps.commands.line import understood
from sweeps.studies import edge
from sweeps.studies.edge import Edge
from sweeps.studies.phase.regions import Stability


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
    np.testing.assert_allclose(found["apart"], distance[25:].mean(), rtol=1e-12)
    np.testing.assert_allclose(found["sharpness"], theory[PRECONDITIONED][45:].mean(), rtol=1e-12)
    losses = np.abs(stretches(theory["other"].values - training["loss"].values, 45))
    np.testing.assert_allclose(found["loss"], losses.max() / training["loss"].values[0], rtol=1e-12)
    lost = training.assign(status=int(Status.DIVERGED))
    assert np.isnan([*edge.errors(lost, theory, "other").values()]).all()


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
    training = xr.Dataset({"params": ("time", falls + swing), "status": ((), int(Status.OK))})
    training = training.assign_coords(eta=0.1, time=np.arange(101))
    found = edge.sharpness_of_mean(Quartic(), training)
    begin = np.linspace(50, 81, 10).astype(int)
    means = np.array([falls[i : i + 20].mean() for i in begin])
    # float32; the swings cancel.
    np.testing.assert_allclose(found, 0.1 * 3 * (means**2).mean(), rtol=1e-5)
    assert math.isnan(
        edge.sharpness_of_mean(Quartic(), training.assign(status=int(Status.DIVERGED)))
    )


def test_theory_tells_the_regions_by_the_sharpness_along_the_flow() -> None:
    """What is at a bound counts as beyond it. Seven points, of which two trainings agree."""
    flows = [[0.5, 1.9], [0.5, 2.0], [2.0, 1.0], [3.9, 9.0], [4.0, 1.0], [0.5, 1.0], [0.5, 1.0]]
    dims = ("scale", "eta", "time")
    flow = xr.Dataset({PRECONDITIONED: (dims, np.array([flows]))})
    # Stable, at the edge, and one that diverges.
    trained = np.array([[[1.0, 1.0], [1.0, 2.5], *[[1.0, 1.0]] * 5]])
    training = xr.Dataset({PRECONDITIONED: (dims, trained), "loss": (dims, np.ones((1, 7, 2)))})
    status = np.where(np.arange(7) > 4, Status.DIVERGED, Status.OK)[None]
    training["status"] = (dims[:2], status)
    found = edge.map_of({"map-training": training, "map-flow": flow})
    S = Stability
    want = [S.STABLE, S.EDGE, S.CATAPULT, S.CATAPULT, S.DIVERGED, S.STABLE, S.STABLE]
    assert found.theory.values.tolist() == [want]
    assert list(edge.shares(found).values()) == pytest.approx([2 / 7, 1 / 3, 0, 2 / 3])


PROMPTS = dynsim.Prompts(8, 17, tau_0=0.25, pool=8, num_test=8)


@pytest.mark.parametrize(
    ("word", "problem", "run", "rates"),
    [
        ("", Network(), (3000, math.inf), (0.1, 0.3, 0.4, 0.5, 0.6)),
        ("linear_icl", dynsim.Regression(scale=0.3), (1000, math.inf), (1, 1.86, 1.9, 1.93, 2.03)),
        ("two_stage", PROMPTS, (300, 64), (1, 2, 4, 8, 16)),
        ("yz", dynsim.Layer(dynsim.SynSmall(), math.inf), (100, math.inf), (1, 4, 10, 16, 64)),
    ],
)
def test_problems_have_the_runs_of_the_documentation(
    word: str, problem: dynsim.Problem, run: tuple, rates: tuple
) -> None:
    settings = understood(["figure", "edge", *word.split()]).settings
    assert eqx.tree_equal(settings.run.problem, problem)
    assert (settings.run.steps, settings.run.batch, settings.rates) == (*run, rates)
    for each in dataclasses.replace(settings, before=0).sweeps().values():
        each.check()


def test_a_batch_is_a_training_set_and_flows_have_the_tolerance() -> None:
    more = {"eta": 1.0, "steps": 7, "batch": 3}
    run = sweeps.experiment("two_stage", d=4, length=5, tau_0=0.2, rule="sgd", **more)
    found = Edge(run, (0.5, 0.1), "tau_0:0.1:0.4", 2, rtol=1e-3).sweeps()
    assert {n for n, each in found.items() if each.rtol == 1e-3} == {"flow", "map-flow"}
    data = found["central"].first.problem.data
    jax.tree.map(np.testing.assert_array_equal, data, run.problem.draw(jax.random.key(1), 3))
    for each in ("training", "flow", "central"):
        assert found[each].fields == {"eta": (0.1, 0.5)}
        assert found[each].times == tuple(range(8))
    # To four times the largest rate.
    np.testing.assert_allclose(found["map-flow"].fields["eta"], [0.1, 2])
    np.testing.assert_allclose(found["map-flow"].fields["tau_0"], [0.1, 0.4])


def test_a_rule_with_another_average_is_an_error() -> None:
    with pytest.raises(ValueError, match="rule = momentum: must be sgd without momentum"):
        Edge(sweeps.experiment("linear_icl", momentum=0.9)).sweeps()


@pytest.mark.more
def test_runs_begin_where_descent_at_the_smallest_rate_has_come() -> None:
    """Weights whose names in a record are in another order than in the model."""
    regression = dynsim.Regression(2, 5, scale=0.5)
    run = sweeps.Experiment(regression, dynsim.sgd(1.0), 10, math.inf)
    options = {"batch": math.inf, "steps": 1, "times": [0], "record": "params"}
    start = dynsim.train(regression, dynsim.sgd(0.1), jax.random.key(0), **options)
    like = regression.init(jax.random.key(0))
    weights = type(like)(**{name: start[f"params.{name}"][0] for name in "vkq"})
    for _ in range(3):
        slope = jax.grad(regression.population_loss)(weights)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope)
    found = Edge(run, (0.3, 0.1), before=3).begun.problem.init(jax.random.key(1))
    # float32.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, weights)


def test_a_picture_has_the_data_of_its_runs() -> None:
    """Made-up runs, all of which diverge."""
    config = Edge(sweeps.experiment("papers.central_flows:Network", width=2), (0.1, 0.2))
    dims, rng = ("eta", "time"), np.random.default_rng(0)
    names = ("loss", "averaged_loss", PRECONDITIONED)
    curves = {name: (dims, rng.uniform(1, 2, (2, 51))) for name in names}
    run = xr.Dataset(curves, {"eta": [0.1, 0.2], "time": np.arange(51)})
    run["status"] = ("eta", [Status.DIVERGED] * 2)
    plane = run[["loss", PRECONDITIONED, "status"]].expand_dims(scale=[0.3, 3.0])
    data = {**dict.fromkeys(("training", "flow", "central"), run), "map-training": plane}
    picture = config.draw({**data, "map-flow": plane})
    assert picture.figure.get_suptitle().startswith("Network: full-batch descent")
    np.testing.assert_array_equal(picture.arrays["map"]["theory"], Stability.STABLE)
    assert picture.report["map"]["diverged below the edge"] == 1
    assert [each["eta"] for each in picture.report["rates"]] == [0.1, 0.2]


@pytest.mark.full("test_errors_are_means_over_the_second_half_of_averages_of_20_steps")
def test_the_central_flow_stays_with_descent_beyond_the_edge(tmp_path: Path) -> None:
    """The claims of the documentation: weights ten times nearer than those of the gradient flow,
    the sharpness of averaged weights within 5 % of the edge, losses within 5 % of the first."""
    Edge(rates=(0.3, 0.5), resolution=0, out=tmp_path).save()
    report = json.loads((tmp_path / "edge.json").read_text())
    for each in report["rates"]:
        assert each["ended"] == {"training": "OK", "flow": "OK", "central": "OK"}
        assert each["central"]["apart"] < each["flow"]["apart"] / 10
        assert abs(each["sharpness"] - 2) < 0.1
        assert abs(each["central"]["sharpness"] - 2) < 1e-2
        assert each["central"]["loss"] < 0.05
