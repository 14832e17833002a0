"""When a flow reaches the edge of stability, against the Hessian at the start."""

import jax
import numpy as np
import optax
import pytest
import xarray as xr
from jax.flatten_util import ravel_pytree

import dynsim
from dynsim import Status, Trajectory
from dynsim.precision import precision
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import PRECONDITIONED
from sweeps.commands import strain
from sweeps.commands.strain import of_curve, reached
from sweeps.compare.comparison import Comparison
from sweeps.compare.scatter import held

PROBLEM = dynsim.regression(D=2, N=7, heads=2)
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def sharpness() -> float:
    """The largest eigenvalue of the Hessian at the start."""
    with precision("float64"):
        parts = started(PROBLEM, KEY, None, "float64")
        flat, unravel = ravel_pytree(parts.params)
        problem = problem_in(PROBLEM, "float64")
        hessian = jax.hessian(lambda x: problem.population_loss(parts.whole(unravel(x))))
        return float(np.linalg.eigvalsh(jax.jit(hessian)(flat)).max())


@pytest.mark.parametrize("times_edge", [0.01, 1.5])
def test_the_start_is_that_of_the_hessian(sharpness: float, times_edge: float) -> None:
    found = reached(PROBLEM, dynsim.sgd(2 * times_edge / sharpness), KEY, 2)
    assert found is not None
    # Equal but for the solver of eigenvalues.
    assert found.start == pytest.approx(2 * times_edge, rel=1e-6)
    if times_edge < 1:
        assert np.isnan(found.step)
        assert str(found).startswith("The flow stays below the edge")
    else:
        assert found.step == 0
        assert "starts beyond the edge of stability (preconditioned sharpness 3;" in str(found)


def test_the_step_is_where_the_curve_reaches_two() -> None:
    found = of_curve(np.array([0, 10, 30, 60]), np.array([-1, 1, 5, 1]))
    assert found == strain.Reached(-1, 5, 15)
    assert "at step 15 (preconditioned sharpness 2)" in str(found)
    # A schedule that begins at 0, and at once is beyond.
    assert of_curve(np.array([0, 1]), np.array([0, 4])).step == 0.5
    # One that touches it stays below.
    assert np.isnan(of_curve(np.array([0, 1, 2]), np.array([1, 2, 1])).step)


def test_the_edge_of_a_flow_that_fails_is_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(sharpness: list[float], status: Status) -> strain.Reached | None:
        times, values = np.array([0.0, 4, 8]), np.array(sharpness)
        codes = np.array(status), np.array(8)
        solved = Trajectory(times, {PRECONDITIONED: values}, None, *codes)
        monkeypatch.setattr(strain.odes, "flow", lambda *given, **more: solved)
        return reached(PROBLEM, dynsim.sgd(0.1), KEY, 8)

    assert found([1, 3, np.nan], Status.SOLVER_FAILED) == strain.Reached(1, 3, 2)
    assert found([1, 1.5, np.nan], Status.SOLVER_FAILED) is None
    assert found([np.nan, 3, 4], Status.SOLVER_FAILED) is None
    below = found([1, 1.5, 1.2], Status.OK)
    assert below is not None
    assert (below.largest, np.isnan(below.step)) == (1.5, True)


def test_nothing_is_said_where_no_edge_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (dynsim.adam(0.1), dynsim.rmsprop(0.1), dynsim.sgd(0.1, clip=1.0))
    rules = (*own, dynsim.from_optax(optax.sgd, learning_rate=0.1))
    assert [reached(PROBLEM, rule, KEY, 2) for rule in rules] == [None] * 4
    # v, k and q of two heads.
    monkeypatch.setattr(strain, "LARGEST", 9)
    assert reached(PROBLEM, dynsim.sgd(0.1), KEY, 2) is None


def runs(sharpness: list[list[float]], first_bad_step: list[int]) -> xr.Dataset:
    """Runs with a record at steps 0, 1, 2, 4, 6."""
    found = {"preconditioned_sharpness": (("seed", "time"), np.array(sharpness))}
    bad = {"first_bad_step": ("seed", np.array(first_bad_step))}
    return xr.Dataset({**found, **bad}, {"time": [0.0, 1, 2, 4, 6]})


def test_the_edge_is_compared_from_where_the_central_flow_reaches_it() -> None:
    """By hand, with the records at 2, 4 and 6 as long as 1.5, 2 and 2: 1.5 * 3 + 2 * 1 + 2 * 2.5 =
    11.5 of 5.5, and of a second run, which ends before step 6, 1.5 * 2 + 2 * 2."""
    training = runs([[0, 9, 3, 1, 2.5], [0, 9, 2, 2, np.nan]], [-1, 6])
    central = runs([[0, 1, 2, 2, 1.5], [0, 1, 2, 2, 2]], [-1, -1])
    found = held(training, central)
    assert found is not None
    mean = (11.5 + 7) / 9
    weights, values = np.array([1.5, 2, 2, 1.5, 2]), np.array([3, 1, 2.5, 2, 2])
    varies = np.sqrt(weights @ (values - mean) ** 2 / 9)
    want = [2, mean, varies, 2 - 2 * 0.5 / 9]
    got = [found.step, found.training, found.varies, found.central]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert "from step 2 on, the preconditioned sharpness of training is 2.056" in str(found)
    assert held(training, runs([[0, 1, 1, 1, 1]] * 2, [-1, -1])) is None
    assert held(training, runs([[0, 1, 2, 2, 2]] * 2, [1, 1])) is None


def test_a_comparison_has_the_edge_if_both_sides_record_it() -> None:
    training = runs([[0, 9, 3, 1, 2.5]], [-1])
    central = runs([[0, 1, 2, 2, 1.5]], [-1])

    def of(theory: str, *names: str) -> Comparison:
        return Comparison(None, training, {theory: central}, {}, names)  # pyright: ignore[reportArgumentType]

    assert of("central", "loss", PRECONDITIONED).held == held(training, central)
    assert of("central", "loss").held is None
    assert of("flow", "loss", PRECONDITIONED).held is None
