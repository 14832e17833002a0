"""The figure of the factors' flow: what its arrays must satisfy, and bad input."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Status, Trajectory
from odes.solver.integrate import Tolerances
from sweeps.studies import qkv
from sweeps.studies.qkv import FigureQKV, run

pytestmark = pytest.mark.usefixtures("quick_theory")


# Two flows and a training.
@pytest.mark.full(
    "odes/qkv/test_factors.py::test_the_factors_move_as_the_weights_do_and_y_and_z_as_derived"
)
def test_the_figure_shows_the_flow_of_the_factors_closer_than_the_plain_one(tmp_path: Path) -> None:
    config = FigureQKV(out=tmp_path, width=(40,), scale=(1.0, 4.0), steps=50, seeds=1)
    paths = run(config)
    assert {path.name for path in paths} == {"qkv.npz", "qkv.png"}
    with np.load(tmp_path / "qkv.npz") as arrays:
        plain, own = arrays["plain/attention"][0], arrays["factors/attention"][0]
    # Descent of 50 steps at rate 0.2 is some 3 % from its flow.
    assert (own < 0.05).all()
    assert (plain > 3 * own).all()
    # At its best case the plain flow still tells where attention goes.
    assert (plain < 0.8).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps = 0: must be an integer from 1"),
        ({"width": (64, 16)}, "width = (64, 16): must be a list of increasing numbers"),
        ({"width": (0, 16)}, "width = 0: must be an integer >= 1"),
        ({"scale": ()}, "scale = (): must be a list of increasing numbers"),
        ({"scale": (0.0, 1.0)}, "scale = 0.0: must be finite and in (0"),
        ({"eta_z": 0.0}, "eta_z = 0.0: must be a number in (0"),
    ],
)
def test_bad_input_is_named(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(FigureQKV(out=tmp_path, **options))


@pytest.mark.more
def test_errors_are_distances_over_how_far_descent_went(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything moves at a speed: descent at one that its starting weights have by chance, the
    plain flow at eta_Z + 10 eta_Y, and the flow of factors at its own rate of W_Q and W_K, eta_Z d
    / (2 s^2), plus 10 eta_Y; the loss does the same from 1. A flow that failed for the larger scale
    has no error there."""
    asked, solved = [], []

    def chance(weights: Any) -> jax.Array:
        return sum(jnp.mean(leaf**2) for leaf in jax.tree.leaves(weights))

    def moved(times: np.ndarray, rate: Any, status: Any = Status.OK) -> Trajectory:
        along = jnp.asarray(times) * rate
        values = {"attention": jnp.stack([along] * 3, -1), "loss": 1 - along}
        return Trajectory(jnp.asarray(times), values, None, jnp.int32(status), jnp.int32(-1), "")

    def of_rule(rule: Any) -> Any:
        rates = {name: jax.tree.leaves(rule.eta[name])[0] for name in "YZ"}
        return rates["Z"] + 10 * rates["Y"]

    def train(problem: Any, rule: Any, *, steps: int, times: np.ndarray, **more: Any) -> Trajectory:
        given = problem.width, problem.embedding, problem.value_scale
        asked.append((*given, steps, more["batch"], more["dtype"], times.tolist()))
        return moved(times, chance(more["init"]))

    class Factors:
        @staticmethod
        def solve(problem: Any, rule: Any, times: np.ndarray, **options: Any) -> Trajectory:
            solved.append((options["record"], options["dtype"], options["tolerances"]))
            failed = jnp.int32(Status.SOLVER_FAILED) * (problem.scale > 1)
            return moved(times, of_rule(rule), failed)

    def plain(task: Any, rule: Any, times: np.ndarray, **options: Any) -> Trajectory:
        solved.append((options["record"], options["dtype"], options["tolerances"]))
        return moved(times, of_rule(rule))

    monkeypatch.setattr(qkv.dynsim, "train", train)
    monkeypatch.setattr(qkv.population, "solve", plain)
    monkeypatch.setattr(qkv, "FACTORS", Factors)
    config = FigureQKV(width=(8, 34), scale=(0.5, 2.0), eta_y=0.02, eta_z=0.3, steps=25, seeds=2)
    times = [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    for width, embedding in ((8, "gaussian"), (34, "orthogonal")):
        found = qkv.width_errors(config, dynsim.SynSmall().build(), width)
        assert asked[-1] == (width, embedding, 0.0, 25, np.inf, "float64", times)
        options: Any = {"width": width, "value_scale": 0.0, "embedding": embedding}
        problems = [dynsim.QKV(dynsim.SynSmall(), np.inf, scale=s, **options) for s in (0.5, 2.0)]

        def started(seed: Any, problems: Any = problems) -> list[Any]:
            """The weights that a training with this seed starts from, at each scale."""
            key = jax.random.split(jax.random.key(seed))[0]
            return [chance(problem.init(key)) for problem in problems]

        with jax.enable_x64(True):
            rates = jax.jit(jax.vmap(started))(np.arange(2))
        away = lambda rate, of: np.sqrt(np.mean((rate / np.asarray(of) - 1) ** 2))
        want = [away(0.3 + 0.2, of) for of in rates]
        np.testing.assert_allclose(found["plain"], [want] * 2, rtol=1e-9)
        factors = away(0.3 * width / (2 * 0.5**2) + 0.2, rates[0])
        np.testing.assert_allclose(found["factors"], [[factors, np.nan]] * 2, rtol=1e-9)
    # Far more exactly than descent is from its flow.
    assert {*solved} == {(("attention", "loss"), "float64", Tolerances(1e-7, 1e-9))}
