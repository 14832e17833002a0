"""The catapult: descent against its map in NumPy, and the phases of the paper."""

from pathlib import Path

import jax
import numpy as np
import pytest

import dynsim
import odes
from papers.catapult import Network
from sweeps import cli
from tests.systems.catapult import descended


@pytest.mark.parametrize("eta", [1.5, 3.0])
def test_descent_and_its_theory_are_the_map_of_the_paper(eta: float) -> None:
    want = descended(eta, 1.0, 0.01, 40)
    options = {"times": range(41), "dtype": "float64", "record": ["curvature", "loss"]}
    problem, rule, key = Network(), dynsim.sgd(eta), jax.random.key(0)
    theory = odes.theories(problem)["map"].solve(problem, rule, key=key, **options)
    run = dynsim.train(problem, rule, key, steps=40, batch=np.inf, **options)
    for found in (theory, run):
        # Weights start in float32.
        np.testing.assert_allclose(found["curvature"], want[:, 1], rtol=1e-4)
        np.testing.assert_allclose(found["loss"], want[:, 0] ** 2 / 2, rtol=1e-3, atol=1e-9)


@pytest.mark.more
def test_the_phases_end_where_the_paper_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["figure", "catapult", "--points", "18", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "from eta lambda = 2.25 on" in printed
    assert "diverges from eta lambda = 4.25 on" in printed
    with np.load(tmp_path / "catapult.npz") as arrays:
        eta, curvature = arrays["eta"], arrays["rates/simulation/curvature"]
    lazy, catapulted = eta < 2, (eta > 2) & (eta < 4)
    np.testing.assert_allclose(curvature[lazy], 1, atol=1e-3)
    assert (curvature[catapulted] < 2 / eta[catapulted]).all()
