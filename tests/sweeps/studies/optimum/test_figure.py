"""`dynsim figure optimum`."""

import math
from pathlib import Path

import numpy as np
import pytest

import dynsim
from sweeps.studies.optimum.figure import Optimum
from sweeps.systems.experiment import experiment

NAME = "saxe"


def test_rules_with_momentum_are_those_of_sgd() -> None:
    rules = ("momentum", "nesterov")
    for rule, momentum in ((dynsim.sgd(0.1), 0.9), (dynsim.sgd(0.1, momentum=0.5), 0.5)):
        config = Optimum(experiment(NAME, steps=3, batch=4, rule=rule), rules=rules)
        kinds = config.sweep("simulation", rules).axes["rule"]
        made = [experiment(NAME, rule=kinds[name]).rule for name in rules]
        assert [one.momentum for one in made] == [momentum, momentum]
        assert [one.nesterov for one in made] == [False, True]


@pytest.mark.more
def test_the_figure_writes_the_best_rates_of_training_and_theory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"along": "u0:0.05:0.2:3", "rate": "eta:0.1:3:6", "rules": ("sgd",)}
    run = experiment(NAME, rule=dynsim.sgd(1.0), steps=30, batch=math.inf)
    Optimum(run, **axes, seeds=2, out=tmp_path).save()
    printed = capsys.readouterr().out
    with np.load(tmp_path / "optimum.npz") as arrays:
        trained, theory = arrays["training/best"], arrays["theory/sgd/best"]
        assert trained.shape == theory.shape == (1, 3)
        # At infinite batch theory is what is trained, in float64.
        np.testing.assert_allclose(theory, trained, rtol=0.03)
        assert (trained <= arrays["training/stable"]).all()
        assert (arrays["training/diverged"] <= 3).all()
        exponent = float(arrays["law/exponent"][0])
    assert f"u0^{exponent:.2f}" in printed or "sgd: transfers: one eta" in printed
    assert (tmp_path / "optimum.png").stat().st_size > 10_000
