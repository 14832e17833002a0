"""Axes of tools, errors of theories over planes, and the edge of stability, against NumPy."""

import json
import math

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
from sweeps import cli
from sweeps.studies import edge
from sweeps.studies.edge import Edge
from sweeps.studies.options import axis
from sweeps.studies.phase.regions import Stability
from sweeps.systems.experiment import Experiment, experiment
from tests.sweeps.studies.scaling.quadratic import Quadratic

RUN = experiment()


def test_axes_may_be_linear_and_whole():
    linear = pytest.approx((0.0, 0.3, 0.6, 0.9))
    assert axis("momentum:0:0.9:4:lin", 9, RUN) == ("momentum", linear)
    assert axis("eta_y:0.1:10", 3, RUN) == ("eta_y", pytest.approx((0.1, 1.0, 10.0)))
    assert axis("batch:2:32:3", 9, RUN) == ("batch", (2, 8, 32))
    assert axis("batch:2,4,3", 9, RUN) == ("batch", (2, 4, 3))
    # Of a problem of one's own too.
    own = Experiment(Quadratic(), dynsim.sgd(1.0))
    np.testing.assert_allclose(axis("curvature:1:4", 3, own)[1], [1, 2, 4])


def runs(values, *dims):
    """Of a plane along `eta_z`, that ended well."""
    over = [d for d in dims if d in ("eta_z", "seed")]
    status = np.zeros([values.shape[dims.index(d)] for d in over], int)
    return xr.Dataset({"z": (dims, values), "status": (over, status)})


def test_the_error_is_that_of_the_mean_over_times_and_classes_that_are_there():
    rng = np.random.default_rng(0)
    trained, solved = rng.normal(1, 1, (2, 3, 4, 2)), rng.normal(1, 1, (2, 4, 2))
    # The second point has one class alone.
    trained[1, ..., 1] = solved[1, :, 1] = np.nan
    dims = ("eta_z", "seed", "time", "class")
    theory = runs(solved, *dims[:1], *dims[2:])
    found = sweeps.relative_error(theory, runs(trained, *dims), "z")
    for place in range(2):
        mean = trained[place].mean(0)[:, : 2 - place]
        apart = solved[place][:, : 2 - place] - mean
        want = np.linalg.norm(apart) / np.linalg.norm(mean)
        assert found.values[place] == pytest.approx(want, rel=1e-12)
    # Of a theory with seeds, the mean over these.
    both = runs(np.stack([solved - 1, solved + 1], 1), *dims)
    np.testing.assert_allclose(sweeps.relative_error(both, runs(trained, *dims), "z"), found)
    # A theory that failed has none.
    theory["status"][0] = Status.SOLVER_FAILED
    failed = sweeps.relative_error(theory, runs(trained, *dims), "z")
    np.testing.assert_array_equal(failed, [np.nan, found[1]])


@pytest.mark.more
def test_descent_has_no_error_where_training_is_descent(tmp_path):
    words = "validity saxe --x eta:0.1:0.4:2 --y u0:0.05:0.1:2 --batch inf --steps 20 --seeds 2"
    theories = ["--theories", "descent", "modes"]
    assert cli.main([*words.split(), *theories, "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "validity.npz") as arrays:
        # Training is in float32, and modes follow a flow.
        assert arrays["descent"].max() < 1e-5 < arrays["modes"].min()
        np.testing.assert_allclose(arrays["u0"], [0.05, 0.1])
    assert (tmp_path / "validity.png").stat().st_size > 10_000


@pytest.mark.parametrize(("activation", "of"), [("tanh", np.tanh), ("linear", lambda x: x)])
def test_the_network_has_the_loss_of_its_examples_in_numpy(activation, of):
    problem = Network(inputs=2, width=3, depth=2, activation=activation, examples=5)
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in [(2, 3), (3, 3), (3, 1)]]
    x = np.random.default_rng(1).normal(size=(5, 2))
    hidden = of(of(x @ weights[0]) @ weights[1])
    missed = (hidden @ weights[2])[:, 0] - np.sin(2 * x[:, 0]) - x[:, 0] * x[:, 1] / 2
    found = problem.population_loss([jnp.asarray(each) for each in weights])
    # float32.
    np.testing.assert_allclose(found, (missed**2).mean() / 2, rtol=1e-5)


def test_errors_are_means_over_the_second_half_of_averages_of_20_steps():
    """Of three weights in two arrays that drift, and losses over stretches of half of the run."""
    rng, number = np.random.default_rng(0), 91

    def drifting(**more):
        walk = lambda *shape: rng.normal(size=(number, *shape)).cumsum(0)
        arrays = {"params.a": (("time", "m"), walk(2)), "params.b": ("time", walk())}
        curves = {name: ("time", 5 + walk()) for name in ("loss", "other", PRECONDITIONED)}
        found = xr.Dataset(arrays | curves, {"time": np.arange(number)})
        return found.assign(status=int(Status.OK), **more)

    training, theory = drifting(), drifting()
    found = edge.theory_errors(training, theory, "other")
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
    assert np.isnan([*edge.theory_errors(lost, theory, "other").values()]).all()


def test_sharpness_is_measured_at_averaged_weights():
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


def test_theory_tells_the_regions_by_the_sharpness_along_the_flow():
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
    assert list(edge.region_shares(found).values()) == pytest.approx([2 / 7, 1 / 3, 0, 2 / 3])


@pytest.mark.more
def test_runs_begin_where_descent_at_the_smallest_rate_has_come():
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


@pytest.mark.full("test_errors_are_means_over_the_second_half_of_averages_of_20_steps")
def test_the_central_flow_stays_with_descent_beyond_the_edge(tmp_path):
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


def test_a_picture_has_the_data_of_its_runs():
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
