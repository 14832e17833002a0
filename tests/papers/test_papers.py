"""Every paper: its smallest settings, the mean of its loss, and the first step of its theory."""

import ast
import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dynsim
import odes
import sweeps
from papers import (
    biehl_schwarze,
    cabannes,
    catapult,
    cui,
    factorisation,
    gromov,
    induction,
    kumar,
    phase_retrieval,
    saad_solla,
    saxe,
    self_stabilisation,
)

MODULES = sorted((Path(__file__).parents[2] / "papers").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.stem}-{path.stem}")
def test_modules_of_papers_use_public_names(path):
    public = {room.__name__: {*room.__all__} for room in (dynsim, odes, sweeps)}
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module, names) if module and module.partition(".")[0] in public:
                assert {a.name for a in names} <= public.get(module, set()), module
            case ast.Attribute(ast.Name(room), name) if room in public:
                assert name in public[room], f"{room}.{name}"


SMALLEST = {
    saad_solla.Committee: {"N": 1, "K": 1},
    biehl_schwarze.Unit: {"N": 1, "sigma": 0.0},
    phase_retrieval.PhaseRetrieval: {"N": 1, "start": 0.0},
    saxe.DeepLinear: {"modes": 1, "layers": 1, "u0": 1e-3},
    factorisation.Factorisation: {"size": 1, "alpha": 1e-6, "noise": 0.0},
    cabannes.Memories: {"tokens": 2, "dimension": 1},
    kumar.LazyToRich: {"D": 1, "width": 1, "examples": 1, "alpha": 1e-3, "epsilon": 0.0},
    gromov.ModularAddition: {"p": 2, "width": 1, "fraction": 0.5},
    induction.Chains: {"context": 1, "lags": 2},
    cui.Attention: {"D": 2, "examples": 1, "omega": 0.0},
    self_stabilisation.Network: {"width": 1, "strength": 1.0, "scale": 1e-3},
    catapult.Network: {"norm": 0.1, "output": 0.0, "width": 2},
}
"""Numbers that settings of papers can be, the smallest ones where there is one."""


POSITIVE = {"u0", "alpha", "strength", "scale", "fraction", "norm"}


@pytest.mark.parametrize("cls", SMALLEST, ids=lambda cls: cls.__name__)
def test_every_paper_records_numbers_of_its_weights_and_has_theories(cls):
    """By default settings; nothing compiles."""
    problem, key = cls(), jax.random.key(0)
    recorded = lambda key: [f(problem, problem.init(key)) for f in problem.observables().values()]
    with jax.numpy_rank_promotion("allow"):
        assert jax.eval_shape(recorded, key)
    for theory in problem.theories():
        assert theory.name in odes.theories(problem)


@pytest.mark.parametrize("cls", SMALLEST, ids=lambda cls: cls.__name__)
def test_the_smallest_settings_work_and_smaller_ones_are_named(cls):
    allowed = SMALLEST[cls]
    problem = cls(**allowed)

    @jax.jit
    def values(key):
        w = problem.init(key)
        found = [f(problem, w) for f in problem.observables().values()]
        if problem.has("draw"):
            found.append(problem.loss(w, problem.draw(key, 2)))
        return found

    with jax.numpy_rank_promotion("allow"):
        found = values(jax.random.key(0))
    assert all(np.isfinite(each).all() for each in found)
    for name, value in allowed.items():
        beyond = 0.0 if name in POSITIVE else value - 1
        with pytest.raises(ValueError, match=f"^{name} = {beyond}: must be"):
            cls(**allowed | {name: beyond})
    # A spike may have either sign, and be as large as one likes.
    fields = {field.name for field in dataclasses.fields(cls)} - {"spike"}
    assert fields == allowed.keys()


STARTS = (
    (saad_solla.Committee(N=20, K=3), {"": 0.5 * 20**-0.5}),
    (biehl_schwarze.Unit(N=20), {"": 0.5 * 20**-0.5}),
    (phase_retrieval.PhaseRetrieval(N=20, start=3.0), {"": 3 * 20**-0.5}),
    (factorisation.Factorisation(size=4, alpha=2.0), {"": (2 / 4) ** 0.5}),
    (cabannes.Memories(), {"": 0}),
    (kumar.LazyToRich(D=9, width=16), {"": 1 / 3}),
    (gromov.ModularAddition(p=8, width=9), {"U": 1 / 4, "V": 1 / 4, "W": 1 / 3}),
    (induction.Chains(), {"W": 0.01, "v": 0}),
    (cui.Attention(D=8), {"w": 8**-0.5 / 2, "x": 1}),
    (self_stabilisation.Network(width=25, scale=3.0), {"a": 0.6, "w": 0.6, "v": 0.006}),
)
"""Root mean squares of the weights with which each paper begins, by part."""


@pytest.mark.parametrize(
    ("problem", "sizes"), STARTS, ids=[type(problem).__name__ for problem, _ in STARTS]
)
def test_weights_begin_with_the_size_of_the_paper(problem, sizes):
    keys = jax.random.split(jax.random.key(1), 400)
    for path, values in jax.tree.leaves_with_path(jax.jit(jax.vmap(problem.init))(keys)):
        size = sizes[jax.tree_util.keystr(path, simple=True)]
        squares = np.square(np.asarray(values, float)).reshape(len(keys), -1).mean(1)
        # Four standard errors of the mean over the keys; some have no randomness.
        error = 4 * squares.std() / len(keys) ** 0.5
        assert squares.mean() == pytest.approx(size**2, abs=error, rel=1e-5)
        # A half of a random start is below zero, and seeds differ.
        assert squares.std() == 0 or abs((np.asarray(values) < 0).mean() - 0.5) < 0.05


def test_learning_from_a_stream_takes_one_example_at_a_time():
    for cls in (saad_solla.Committee, biehl_schwarze.Unit, phase_retrieval.PhaseRetrieval):
        assert cls.RUN_DEFAULTS["batch"] == 1


def test_a_committee_has_no_more_units_than_inputs():
    assert saad_solla.Committee(N=2, K=2).K == 2
    for N in (1, 2):
        with pytest.raises(ValueError, match=rf"^K = {N + 1}: .*{N}"):
            saad_solla.Committee(N=N, K=N + 1)


DRAWN = (
    saad_solla.Committee(N=20, K=3),
    biehl_schwarze.Unit(N=20, sigma=0.5),
    phase_retrieval.PhaseRetrieval(N=20, spike=0.3),
    saxe.DeepLinear(layers=3, u0=0.2),
    factorisation.Factorisation(size=3, alpha=1.0, noise=0.5),
    cabannes.Memories(),
)
"""Problems that learn from examples, with the noise that they may have."""


@pytest.mark.parametrize("problem", DRAWN, ids=lambda problem: type(problem).__name__)
def test_the_mean_of_the_loss_is_that_of_many_examples(problem):
    """Within four standard errors, at weights away from the start."""

    @jax.jit
    def losses(start, key, away):
        w, back = ravel_pytree(problem.init(start))
        w = back(w + 0.3 * jax.random.normal(away, w.shape))
        one = lambda key: problem.loss(w, problem.draw(key, 1))
        return jax.vmap(one)(jax.random.split(key, 20_000)), problem.population_loss(w)

    with jax.numpy_rank_promotion("allow"):
        sample, mean = map(np.asarray, losses(*map(jax.random.key, range(3))))
    error = sample.std() / math.sqrt(len(sample))
    assert abs(sample.mean() - mean) < 4 * error
    assert error < 0.05 * sample.mean()


OTHERS = kumar.LazyToRich(D=4, width=6, examples=30, alpha=2.0), self_stabilisation.Network()
FULL = pytest.mark.full("test_a_theory_begins_with_a_step_of_descent")
FLOWING = [
    *DRAWN[1:],
    *(pytest.param(x, marks=FULL) for x in (*OTHERS, self_stabilisation.Network())),
]


@pytest.mark.parametrize("problem", FLOWING, ids=lambda problem: type(problem).__name__)
@pytest.mark.more
def test_a_theory_begins_with_a_step_of_descent(problem):
    """All that it records, and its derivative along the gradient of the mean loss."""
    (theory,), eta = problem.theories(), 1e-6

    def recorded(w):
        own = {name: f(problem, w) for name, f in problem.observables().items()}
        return own | {"loss": problem.population_loss(w)}

    with jax.enable_x64(True):
        w = jax.tree.map(lambda w: np.asarray(w, float), jax.jit(problem.init)(jax.random.key(0)))
        if isinstance(problem, self_stabilisation.Network):
            # What theory neglects below the edge.
            w["v"] = 0 * w["v"]
        along = lambda w: jax.tree.map(jnp.negative, jax.grad(problem.population_loss)(w))
        start, slope = jax.jit(lambda w: jax.jvp(recorded, (w,), (along(w),)))(w)
    found = theory.solve(
        problem, dynsim.sgd(eta), [0.0, 1.0], init=w, batch=math.inf, record=[*start]
    )
    for name, at in start.items():
        np.testing.assert_allclose(found[name][0], at, rtol=1e-9, err_msg=name)
        step = (found[name][1] - found[name][0]) / eta
        # To the size of a step and the tolerance of the solver.
        np.testing.assert_allclose(step, slope[name], rtol=1e-4, atol=1e-4, err_msg=name)
