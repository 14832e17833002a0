"""The two-stage problems with their rules, as runs in text form."""

import json

import equinox as eqx
import pytest

import dynsim
from dynsim.decoding import CountOrInf, Steps
from sweeps.language.describe import describe
from sweeps.language.grammar import Language
from sweeps.language.tree import build
from tests.sweeps.language.catalog import canonical, decode


class Run(eqx.Module):
    problem: dynsim.Problem
    rule: dynsim.Rule | dynsim.Annealed
    batch: CountOrInf = eqx.field(static=True)
    steps: Steps | None = eqx.field(static=True)


WORDS = {
    "run": Run,
    "default": dynsim.Prompts,
    "fast": dynsim.FastPrompts,
    "joint": dynsim.JointPrompts,
    "annealed": dynsim.Annealed,
}
LANGUAGE = Language([describe(cls, word) for word, cls in WORDS.items()], root="run")


@pytest.mark.parametrize("preset", ["default", "fast", "joint"])
def test_a_preset_is_its_problem_with_the_defaults_of_a_run(preset: str) -> None:
    control = ("control", "smallinit")
    run = build(LANGUAGE, LANGUAGE.assign({}, [("problem", preset), control]))
    assert eqx.tree_equal(decode(LANGUAGE, json.loads(canonical(LANGUAGE, run))), run)
    task, rule, batch = dynsim.two_stage(preset, "smallinit")
    assert eqx.tree_equal((run.problem.build(run.rule), run.rule), (task, rule))
    assert (run.batch, run.steps) == (batch, None)
    assert "held" not in describe(type(task)).fields
