"""`dynsim figure edge`: what it measures, against averages and eigenvalues in NumPy."""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Status
from sweeps.studies.phase.regions import Stability
from sweeps.studies.transitions import edge
from sweeps.studies.transitions.edge import Case, Network
from sweeps.studies.transitions.edge.figure import Edge, run


def test_averages_are_those_of_all_stretches() -> None:
    values = np.random.default_rng(0).normal(size=(30, 2))
    want = [values[i : i + 7].mean(0) for i in range(24)]
    np.testing.assert_allclose(edge.averaged(values, 7), want, rtol=1e-12, atol=1e-15)


def test_the_network_has_the_loss_of_its_examples_in_numpy() -> None:
    problem = Network(inputs=2, width=3, depth=2, examples=5)
    weights = problem.init(jax.random.key(0))
    x = np.random.default_rng(1).normal(size=(5, 2))
    hidden = np.tanh(np.tanh(x @ np.asarray(weights[0])) @ np.asarray(weights[1]))
    missed = (hidden @ np.asarray(weights[2]))[:, 0] - np.sin(2 * x[:, 0]) - x[:, 0] * x[:, 1] / 2
    # float32.
    np.testing.assert_allclose(problem.population_loss(weights), (missed**2).mean() / 2, rtol=1e-5)
    assert [leaf.shape for leaf in weights] == [(2, 3), (3, 3), (3, 1)]


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


def test_runs_begin_where_descent_at_the_smallest_rate_has_come() -> None:
    """Weights whose names in a record are in another order than in the model."""
    regression = dynsim.regression(2, 5, scale=0.5)
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
    """Of a quartic whose weight swings by 1 about 2: 3 * 2^2 there, more at either side."""

    class Quartic(dynsim.Problem):
        def init(self, key):
            return 2 + 0 * jax.random.normal(key, ())

        def population_loss(self, params):
            return params**4 / 4

    swing = np.where(np.arange(101) % 2, 1.0, -1.0)
    training = line(2 + swing, 1 + 0 * swing, 0.0).assign_coords(eta=0.1)
    found = edge.sharpness_of_mean(Quartic(), training)
    np.testing.assert_allclose(found, 0.1 * 12, rtol=1e-5)
    assert math.isnan(
        edge.sharpness_of_mean(Quartic(), training.assign(status=int(Status.DIVERGED)))
    )
