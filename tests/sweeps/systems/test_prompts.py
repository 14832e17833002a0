"""Rows of `dynsim explain` for two-stage training: thresholds, and those that are not met."""

import math
from typing import Any

import pytest

from dynsim import Annealed, Prompts, sgd
from dynsim.precision import precision
from odes.theory import Training
from odes.two_stage import thresholds
from sweeps.systems import prompts
from sweeps.systems.base import Prediction, Row


def rows(rule: Any, **settings: Any) -> dict[str, Row]:
    problem = Prompts(d=8, length=17, tau_0=0.3, **settings)
    made: Any = Prediction("", Training(problem, rule.build()), None)  # pyright: ignore
    with precision("float64"):
        return {row.quantity: row for row in prompts.rows(None, made)}


def test_what_keeps_a_component_from_being_learned_is_named() -> None:
    good = Annealed()
    found = rows(good)
    assert not any(row.strained for row in found.values())
    # tau(eta) is stationary; critical where nothing grows, by its own formula.
    assert found["noise tau_1 of stage 1"].prediction == pytest.approx(good.tau, rel=1e-12)
    critical = found["critical noise tau_c"].prediction
    with precision("float64"):
        grows = float(thresholds.growth_rate(Prompts(d=8, length=17), critical, good.decay))
        assert grows == pytest.approx(0, abs=1e-12)
    g_2 = found["growth rate g_2 of Q in stage 2"]
    assert 0 < g_2.error < 0.2 * g_2.prediction
    high = rows(Annealed(eta_2=good.eta_1, tau=3 * critical))
    assert "above the critical tau_c" in high["noise tau_2 of stage 2"].strained
    short = rows(Annealed(stage_2=0.1))
    assert "make stage_2 longer" in short["eta-time in which Q outgrows the noise"].strained
    needed = (short[f"eta-time in which {n}"] for n in ("the noise decays", "Q outgrows the noise"))
    assert sum(float(row.prediction) for row in needed) > 0.1 / good.decay
    slow = rows(Annealed(decay=0.9, eta_1=0.2, tau=0.01))
    assert "a smaller decay" in slow["margin of P after stage 1, unsaturated"].strained
    assert "starves Q" in rows(good, coupling=0.5)["coupling"].strained
    assert all(math.isfinite(float(row.prediction)) for row in found.values())


def test_other_rules_have_no_stages() -> None:
    assert rows(sgd(0.1)) == {}
