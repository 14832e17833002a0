"""Papers: their theories against NumPy, closed forms and the papers' own formulas."""

import ast
import dataclasses
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from matplotlib.text import Text
from scipy import integrate, optimize, special

import dynsim
import odes
import sweeps
from odes import Training
from odes.batch_noise import size_of
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
from sweeps import cli
from sweeps.studies.phase import figure
from sweeps.systems import registry
from tests.extension import packages

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "papers").rglob("*.py"))
MOST_LINES = 120
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.stem}-{path.stem}")
def test_modules_of_papers_are_short_and_use_public_names(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    public = {room.__name__: {*room.__all__} for room in (dynsim, odes, sweeps)}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names):
                assert not {a.name for a in names if a.name.partition(".")[0] in public} - {*public}
            case ast.ImportFrom(module, names) if module and module.partition(".")[0] in public:
                assert {a.name for a in names} <= public.get(module, set()), module
            case ast.Attribute(ast.Name(room), name) if room in public:
                assert name in public[room], f"{room}.{name}"
    assert not [n for n in ast.walk(ast.parse(text)) if getattr(n, "attr", "").startswith("_")]


def test_every_paper_is_registered_and_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the package would be installed now, whatever is installed."""
    points = POINTS[registry.GROUP]
    places = [p.relative_to(ROOT) for p in MODULES if "(dynsim.Problem)" in p.read_text()]
    modules = {p.parent if p.stem == "__init__" else p.with_suffix("") for p in places}
    assert {v.split(":")[0] for v in points.values()} == {".".join(m.parts) for m in modules}
    packages.write(tmp_path, "dynsim", entries={registry.GROUP: points})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_KNOWN", {})
    packages.forget()
    page = (ROOT / "docs" / "papers" / "index.md").read_text()
    try:
        for name in points:
            problem = registry.system(name).problems[0]
            # The central flow is a theory of every problem.
            assert problem.theories() or name == "central-flows"
            assert f"dynsim compare {name}" in page
    finally:
        packages.forget()


SMALLEST: dict[type[dynsim.Problem], dict[str, Any]] = {
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
@pytest.mark.more
def test_the_smallest_settings_work_and_smaller_ones_are_named(cls: type[dynsim.Problem]) -> None:
    allowed = SMALLEST[cls]
    problem = cls(**allowed)

    @jax.jit
    def values(key: jax.Array) -> list[Any]:
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


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (saad_solla.Committee, {"N": 2, "K": 3}, "K = 3: must be at most N = 2"),
        (cui.Attention, {"omega": 1.1}, r"omega = 1.1: must be finite and in \[0, 1\]"),
        (gromov.ModularAddition, {"fraction": 1.0}, r"fraction = 1.0: .* in \(0, 1\)"),
    ],
)
def test_larger_settings_are_named(cls: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**given)


def test_a_setting_that_cannot_be_is_an_error_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compare", "saxe", "--layers", "0"])
    assert "layers = 0: must be" in capsys.readouterr().err


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
@pytest.mark.more
def test_the_mean_of_the_loss_is_that_of_many_examples(problem: Any) -> None:
    """Within four standard errors, at weights away from the start."""

    @jax.jit
    def losses(start: jax.Array, key: jax.Array, away: jax.Array) -> tuple[jax.Array, jax.Array]:
        w, back = ravel_pytree(problem.init(start))
        w = back(w + 0.3 * jax.random.normal(away, w.shape))
        one = lambda key: problem.loss(w, problem.draw(key, 1))
        return jax.vmap(one)(jax.random.split(key, 20_000)), problem.population_loss(w)

    with jax.numpy_rank_promotion("allow"):
        sample, mean = map(np.asarray, losses(*map(jax.random.key, range(3))))
    error = sample.std() / math.sqrt(len(sample))
    assert abs(sample.mean() - mean) < 4 * error
    assert error < 0.05 * sample.mean()


OTHERS = (kumar.LazyToRich(D=4, width=6, examples=30, alpha=2.0), self_stabilisation.Network())
FULL = pytest.mark.full("test_a_theory_begins_with_a_step_of_descent")
FLOWING = [*DRAWN[1:], *(pytest.param(problem, marks=FULL) for problem in (DRAWN[0], *OTHERS))]


@pytest.mark.parametrize("problem", FLOWING, ids=lambda problem: type(problem).__name__)
@pytest.mark.more
def test_a_theory_begins_with_a_step_of_descent(problem: Any) -> None:
    """All that it records, and its derivative along the gradient of the mean loss."""
    (theory,), eta = problem.theories(), 1e-6

    def recorded(w: Any) -> dict[str, Any]:
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


@pytest.mark.more
def test_the_equations_of_the_committee_are_averages_over_inputs() -> None:
    """Of 200 000 inputs, by NumPy: every entry within four standard errors."""
    Q, R = np.array([[0.5, 0.1], [0.1, 0.3]]), np.array([[0.3, -0.1], [0.2, 0.25]])
    C = np.block([[Q, R], [R.T, np.eye(2)]])
    h = np.random.default_rng(0).multivariate_normal(np.zeros(4), C, 200_000)
    g = special.erf(h / math.sqrt(2))
    miss = g[:, 2:].sum(1) - g[:, :2].sum(1)
    delta = math.sqrt(2 / math.pi) * np.exp(-(h[:, :2] ** 2) / 2) * miss[:, None]
    force, noise = delta[:, :, None] * h[:, None], delta[:, :, None] * delta[:, None]
    state, problem = {"Q": jnp.asarray(Q), "R": jnp.asarray(R)}, saad_solla.Committee(N=100)
    single, whole = (
        jax.jit(lambda s, b=batch: saad_solla.field(0.0, s, training(problem, 1.0, b)))(state)
        for batch in (1, math.inf)
    )
    sums = force[:, :, :2] + force[:, :, :2].transpose(0, 2, 1)
    for found, sample in (
        (whole["Q"], sums),
        (whole["R"], force[:, :, 2:]),
        ((single["Q"] - whole["Q"]) / 100, noise),
        (saad_solla.generalisation(state), miss**2 / 2),
    ):
        error = sample.std(0) / math.sqrt(len(sample))
        assert (np.abs(found - sample.mean(0)) < 4 * error).all()


@pytest.mark.more
def test_the_committee_rests_on_the_plateau_of_the_paper() -> None:
    """All units alike with Q = 1/(2 K - 1) and R = sqrt(Q/K), at a small rate."""
    problem, rule = saad_solla.Committee(N=400, K=3), dynsim.sgd(0.2 / 400)
    start = 0.01 * jax.random.normal(jax.random.key(1), (3, 400)) / 20
    options = {"init": start, "record": ["Q", "R", "loss"], "batch": 1}
    found = saad_solla.OVERLAPS.solve(problem, rule, [0.0, 40_000.0], **options)
    Q, R = found["Q"][-1], found["R"][-1]
    # The noise of a rate of 0.2 shifts the plateau by some per cent.
    np.testing.assert_allclose(Q, 1 / 5, rtol=0.06)
    np.testing.assert_allclose(R, math.sqrt(1 / 15), rtol=0.06)


@pytest.mark.parametrize(
    ("K", "known"), [(2, 2.30683), (3, 1.62067), pytest.param(4, 1.24939, marks=pytest.mark.full)]
)
@pytest.mark.more
def test_the_largest_rate_of_the_committee_is_that_of_its_deviations(K: int, known: float) -> None:
    """Above it the overlaps P of the deviations grow, of which a matrix of second moments of the
    slopes g' of the teacher decides, here by Gauss-Hermite integration; the cited rate drops those
    between units."""
    problem, upper = saad_solla.Committee(N=1000, K=K), np.triu_indices(K)

    def step(x: Any, eta: Any) -> Any:
        # Q is symmetric: only half of it are variables.
        half = jnp.zeros((K, K)).at[upper].set(x[: len(upper[0])])
        state = {"Q": jnp.triu(half, 1).T + half, "R": x[len(upper[0]) :].reshape(K, K)}
        found = saad_solla.field(0.0, state, Training(problem, dynsim.sgd(eta / 1000), 1))
        return jnp.concatenate([found["Q"][upper], found["R"].ravel()])

    teacher = np.concatenate([np.eye(K)[upper], np.eye(K).ravel()])
    found = largest_rate(step, teacher, 3.0)
    nodes, shares = np.polynomial.hermite_e.hermegauss(60)
    y = np.stack(np.meshgrid(*K * [nodes])).reshape(K, -1)
    weights = np.stack(np.meshgrid(*K * [shares / shares.sum()])).prod(axis=0).ravel()
    slopes = math.sqrt(2 / math.pi) * np.exp(-(y**2) / 2)
    G = np.einsum("in,jn,n->ij", slopes, slopes, weights)
    drift = -np.kron(G, np.eye(K)) - np.kron(np.eye(K), G)
    pairs = np.einsum("in,jn->ijn", slopes, slopes).reshape(K * K, -1)
    noise = (pairs * weights) @ pairs.T
    growth = lambda eta: np.linalg.eigvals(drift + eta * noise).real.max()
    assert found == pytest.approx(optimize.brentq(growth, 0.5, 3.0), rel=1e-6)
    assert found == pytest.approx(known, abs=6e-6)
    cited = math.sqrt(3) * math.pi / (K + 3 / math.sqrt(5) - 1)
    assert 1.002 < cited / found < 1.01
    # As on the card.
    x = 2 * math.sqrt(2) + 2 / math.sqrt(3) * (K - 2)
    A = np.array([[2 / math.sqrt(3), K - 1], [1, 2 / math.sqrt(3) + K - 2]])
    last = 8 / 3 + 8 / math.sqrt(3) * (K - 2) + (K - 2) * (K - 3)
    M = np.array([[4 / math.sqrt(5) + 4 / 3 * (K - 1), (K - 1) * x], [x, last]])
    roots = np.linalg.eigvals(np.linalg.solve(M, 2 * A)).real
    assert math.pi * roots.min() == pytest.approx(found, rel=1e-6)


def training(problem: dynsim.Problem, eta: float, batch: float = 1) -> Training:
    return Training(problem, dynsim.sgd(eta), batch)


def largest_rate(field: Any, teacher: Any, upper: float) -> float:
    """The rate above which the derivative of `field` at the teacher has an eigenvalue with
    a positive real part."""
    slope = jax.jit(jax.jacfwd(field))
    with jax.enable_x64(True):
        growth = lambda eta: np.linalg.eigvals(np.asarray(slope(teacher, eta))).real.max()
        return float(optimize.brentq(growth, 1e-3, upper, xtol=1e-9))


def test_a_unit_is_a_committee_of_one() -> None:
    """Its equations are written out; those of the committee are sums of integrals."""
    unit, committee = biehl_schwarze.Unit(N=100), saad_solla.Committee(N=100, K=1)
    matrix = lambda x: jnp.full((1, 1), x)
    of_unit = jax.jit(lambda state: biehl_schwarze.field(0.0, state, training(unit, 0.02)))
    of_committee = jax.jit(lambda state: saad_solla.field(0.0, state, training(committee, 0.02)))
    for R, Q in ((0.3, 0.5), (0.7, 1.2)):
        found = of_unit({"R": jnp.asarray(R), "Q": jnp.asarray(Q)})
        state = {"Q": matrix(Q), "R": matrix(R)}
        other = of_committee(state)
        for name in "RQ":
            np.testing.assert_allclose(found[name], other[name][0, 0], rtol=2e-5)
        error = biehl_schwarze.generalisation(R, Q)
        np.testing.assert_allclose(error, saad_solla.generalisation(state), rtol=2e-5)


def test_noise_of_labels_lengthens_a_unit() -> None:
    """By eta^2 sigma^2 times the mean of g'(h)^2, which NumPy integrates on a grid."""
    Q, sigma, N = 0.8, 0.3, 100
    h = np.linspace(-12, 12, 4001)
    slope = 2 / math.pi * np.exp(-(h**2))
    mean = np.trapezoid(slope * np.exp(-(h**2) / (2 * Q)) / math.sqrt(2 * math.pi * Q), h)
    state = {"R": jnp.asarray(0.4), "Q": jnp.asarray(Q)}
    with_noise, without = (
        biehl_schwarze.field(0.0, state, training(biehl_schwarze.Unit(N=N, sigma=s), 0.1))["Q"]
        for s in (sigma, 0.0)
    )
    np.testing.assert_allclose(with_noise - without, 0.1**2 * N * sigma**2 * mean, rtol=1e-4)


def test_the_largest_rate_of_a_unit() -> None:
    def field(x: Any, eta: Any) -> Any:
        found = biehl_schwarze.field(
            0.0, {"R": x[0], "Q": x[1]}, training(biehl_schwarze.Unit(N=1), eta)
        )
        return jnp.stack([found["R"], found["Q"]])

    found = largest_rate(field, np.ones(2), 10)
    assert found == pytest.approx(math.sqrt(15) * math.pi / 3, rel=1e-6)


def test_modes_are_learned_at_the_times_of_saxe() -> None:
    """tau = ln[u_f (s - u_0) / (u_0 (s - u_f))] / (2 s), for two layers."""
    problem, eta = saxe.DeepLinear(), 0.01
    for k, s in enumerate(2.0 ** -np.arange(4)):
        u0, uf = problem.u0, 0.8 * s
        tau = math.log(uf * (s - u0) / (u0 * (s - uf))) / (2 * s)
        found = saxe.MODES.solve(problem, dynsim.sgd(eta), [0.0, tau / eta], record="learned")
        np.testing.assert_allclose(found["learned"][-1, k], uf, rtol=1e-3)


@pytest.mark.parametrize("layers", [2, pytest.param(4, marks=pytest.mark.full)])
def test_modes_are_those_of_training(layers: int) -> None:
    """Of a run of descent, which differs by the size of its steps."""
    problem, rule = saxe.DeepLinear(layers=layers, u0=0.05), dynsim.sgd(1e-3)
    times = [0, 1000, 2000, 4000]
    run = dynsim.train(
        problem, rule, jax.random.key(1), steps=4000, batch=math.inf, times=times, record="learned"
    )
    found = saxe.MODES.solve(problem, rule, times, record="learned")
    # Steps of 1e-3 in a time of 4, at rates of growth up to 2.
    np.testing.assert_allclose(run["learned"], found["learned"], rtol=0.01)


def test_factors_obey_their_flow() -> None:
    problem = factorisation.Factorisation(alpha=1e-3)
    U = np.asarray(problem.init(jax.random.key(3)), float)
    M = np.diag(1 - np.arange(4) / 4)

    def flow(t: float, y: Any) -> Any:
        U = y.reshape(4, 4)
        return ((M - U @ U.T) @ U).ravel()

    at = integrate.solve_ivp(flow, (0, 12), U.ravel(), rtol=1e-10, atol=1e-13).y[:, -1]
    with jax.enable_x64(True):
        found = jax.jit(lambda U: factorisation.riccati(problem, U, 12.0))(U)
    W = at.reshape(4, 4) @ at.reshape(4, 4).T
    np.testing.assert_allclose(found["learned"], np.diag(W), rtol=1e-7)
    np.testing.assert_allclose(found["loss"], ((W - M) ** 2).sum() / 4, rtol=1e-7)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_rank_takes_the_logarithm_of_the_start(k: int) -> None:
    """d tau / d ln(1/alpha) = 1 / (2 s), of the time at which half of an eigenvalue is learned."""
    s, key = 1 - k / 4, jax.random.key(3)

    def half(alpha: float) -> float:
        problem = factorisation.Factorisation(alpha=alpha)
        U = jnp.asarray(problem.init(key), float)
        learned = jax.jit(lambda t: factorisation.riccati(problem, U, t)["learned"][k])
        return float(optimize.brentq(lambda t: float(learned(t)) - s / 2, 0, 100, xtol=1e-6))

    with jax.enable_x64(True):
        slope = (half(1e-10) - half(1e-7)) / math.log(1e3)
    # Corrections vanish with alpha to a power.
    assert slope == pytest.approx(1 / (2 * s), rel=2e-3)


def test_the_equations_of_phase_retrieval_are_averages_over_inputs() -> None:
    q, m = 0.6, 0.3
    h = np.random.default_rng(0).multivariate_normal([0, 0], [[q, m], [m, 1]], 500_000)
    miss = h[:, 0] ** 2 - h[:, 1] ** 2
    delta, state = miss * h[:, 0], {"m": jnp.asarray(m), "q": jnp.asarray(q)}
    problem = phase_retrieval.PhaseRetrieval(N=100)
    single, whole = (
        phase_retrieval.field(0.0, state, training(problem, 1.0, b)) for b in (1, math.inf)
    )
    for found, sample in (
        (whole["m"], -delta * h[:, 1]),
        (whole["q"], -2 * delta * h[:, 0]),
        ((single["q"] - whole["q"]) / 100, delta**2),
        (phase_retrieval.generalisation(m, q), miss**2 / 4),
    ):
        assert abs(found - sample.mean()) < 4 * sample.std() / math.sqrt(len(sample))


def test_weights_are_counted_whatever_axes_the_numbers_have() -> None:
    for u0 in (0.1, np.geomspace(0.01, 0.1, 3)[:, None]):
        assert size_of(saxe.DeepLinear(u0=u0)) == 2 * 4 * 4


@pytest.mark.more
def test_escape_takes_the_logarithm_of_the_inputs() -> None:
    """Steps / N until m = 1/2 grow by ln N / (6 gamma (1 - q)), at a rate of gamma / N."""
    gamma = 0.2
    # q rests at the smaller root of 15 gamma q^2 - 6 (1 + gamma) q + 2 + 3 gamma.
    q = min(np.roots([15 * gamma, -6 * (1 + gamma), 2 + 3 * gamma]))

    def escape(N: int) -> float:
        times = np.linspace(0, 20 * N, 2001)
        w = jnp.zeros(N).at[0].set(0.5 * N**-0.5).at[1].set(math.sqrt(0.25 - 0.25 / N))
        options = {"init": w, "batch": 1, "record": "m"}
        problem = phase_retrieval.PhaseRetrieval(N=N)
        run = phase_retrieval.OVERLAPS.solve(problem, dynsim.sgd(gamma / N), times, **options)
        return float(run.crossing_time("m", 0.5)) / N

    slope = (escape(100_000) - escape(1000)) / math.log(100)
    # At N = 1000 the start is not small altogether.
    assert slope == pytest.approx(1 / (6 * gamma * (1 - q)), rel=0.02)


@pytest.mark.more
def test_without_an_overlap_weights_rest_below_a_rate_and_grow_above() -> None:
    """The rate (sqrt(10) - 1) / 6, where the two lengths at which they rest meet."""
    largest = (math.sqrt(10) - 1) / 6
    problem = phase_retrieval.PhaseRetrieval(N=1000)
    q = jnp.linspace(0.01, 3, 3001)

    def slowest(gamma: float) -> float:
        state = {"m": jnp.zeros_like(q), "q": q}
        return float(phase_retrieval.field(0.0, state, training(problem, gamma / 1000))["q"].min())

    assert slowest(0.99 * largest) < 0 < slowest(1.01 * largest)
    # Without an overlap at all nothing is learned, and only the length moves.
    w = jnp.zeros(1000).at[1].set(0.5)
    options = {"init": w, "batch": 1, "record": ["q"]}
    times = np.linspace(0, 100_000, 11)
    low, high = (
        phase_retrieval.OVERLAPS.solve(problem, dynsim.sgd(gamma / 1000), times, **options)
        for gamma in (0.34, 0.38)
    )
    rest = min(np.roots([15 * 0.34, -6 * 1.34, 2 + 3 * 0.34]).real)
    np.testing.assert_allclose(low["q"][-1], rest, rtol=1e-3)
    assert high.status != dynsim.Status.OK


@pytest.mark.parametrize(("gamma", "sign"), [(0.32, -1), (0.345, 1)])
def test_the_teacher_of_phase_retrieval_is_stable_below_a_third(gamma: float, sign: int) -> None:
    """What is orthogonal to it changes by -4 gamma (1 - 3 gamma) of itself in N steps."""
    problem = phase_retrieval.PhaseRetrieval(N=1000)
    m, P = 1.0, 1e-5

    def rates(m: float, q: float) -> Any:
        state = {"m": jnp.asarray(m), "q": jnp.asarray(q)}
        return phase_retrieval.field(0.0, state, training(problem, gamma / 1000))

    with jax.enable_x64(True):
        found = rates(m, m**2 + P)
        change = 1000 * float(found["q"] - 2 * m * found["m"]) / P
    assert change == pytest.approx(-4 * gamma * (1 - 3 * gamma), rel=1e-2)
    assert np.sign(change) == sign


def test_margins_are_those_of_the_flow_of_all_weights() -> None:
    problem, C = cabannes.Memories(), 5
    p = 1 / np.arange(1, C + 1)
    p /= p.sum()

    def flow(t: float, y: Any) -> Any:
        z = y.reshape(C, C)
        return (p[:, None] * (np.eye(C) - special.softmax(z, axis=1))).ravel()

    z = integrate.solve_ivp(flow, (0, 500), np.zeros(C * C), rtol=1e-9, atol=1e-12).y[:, -1]
    z = z.reshape(C, C)
    margin = np.diag(z) - np.where(np.eye(C), -np.inf, z).max(1)
    found = jax.jit(lambda tau: cabannes.by_token(problem, None, tau))(500.0)
    np.testing.assert_allclose(found["margin"], margin, rtol=1e-5)
    loss = -p @ np.diag(special.log_softmax(z, axis=1))
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-4)


def test_a_rare_token_needs_longer_in_proportion() -> None:
    """Margins depend on p tau alone, and grow by one when tau grows by e."""
    at = jax.jit(lambda tau: cabannes.by_token(cabannes.Memories(), None, tau)["margin"])
    np.testing.assert_allclose(at(5e3)[-1], at(1e3)[0], rtol=1e-5)
    np.testing.assert_allclose(at(math.e * 1e7) - at(1e7), 1, rtol=1e-4)


def test_overlapping_embeddings_have_no_margins_of_their_own() -> None:
    why = cabannes.MARGINS.inapplicable(training(cabannes.Memories(dimension=3), 1.0))
    assert why is not None
    assert "dimension" in why


@pytest.mark.more
def test_averages_over_units_are_those_of_the_flow_of_all_weights() -> None:
    """Of SciPy, with the gradient of a network of which each unit is written out."""
    problem, rate = kumar.LazyToRich(D=4, width=6, examples=30, alpha=2.0), 1.0
    start = problem.init(jax.random.key(1))
    x, w = (np.asarray(a, float) for a in (problem.inputs(), start))
    y, alpha, eps = x[:, 0] ** 2 / 2, problem.alpha, problem.epsilon

    def miss(w: Any, x: Any, y: Any) -> Any:
        h = x @ w.T
        return y - alpha * (h + eps * h**2 / 2).mean(1)

    def flow(t: float, flat: Any) -> Any:
        w = flat.reshape(6, 4)
        push = miss(w, x, y)[:, None] * (1 + eps * (x @ w.T)) / (alpha * 6 * 30)
        return rate * (push.T @ x).ravel()

    w = integrate.solve_ivp(flow, (0, 100), w.ravel(), rtol=1e-9, atol=1e-11).y[:, -1].reshape(6, 4)
    options = {"init": start, "record": ["train", "test", "alignment"]}
    found = kumar.AVERAGES.solve(problem, dynsim.sgd(rate), [0.0, 100.0], **options)
    np.testing.assert_allclose(found["train"][-1], np.mean(miss(w, x, y) ** 2) / 2, rtol=1e-3)
    share = (w[:, 0] ** 2).sum() / (w**2).sum()
    np.testing.assert_allclose(found["alignment"][-1], share, rtol=1e-4)
    new = np.random.default_rng(0).normal(size=(200_000, 4))
    sample = miss(w, new, new[:, 0] ** 2 / 2) ** 2 / 2
    error = sample.std() / math.sqrt(len(sample))
    assert abs(found["test"][-1] - sample.mean()) < 4 * error


@pytest.mark.more
def test_lazier_training_generalises_later() -> None:
    """Steps from a training error of 0.1 to a test error of 0.1."""
    times = np.arange(0, 2001, 10)
    lags = []
    for alpha in (1.0, 5.0):
        problem, names = kumar.LazyToRich(alpha=alpha), ["train", "test"]
        found = kumar.AVERAGES.solve(
            problem, dynsim.sgd(10.0), times, key=jax.random.key(0), record=names
        )
        train, test = (times[np.argmax(found[n] < 0.1)] for n in names)
        lags.append(test - train)
    assert 0 < 3 * lags[0] < lags[1], lags


@pytest.mark.parametrize(("p", "width"), [(23, 128), pytest.param(97, 500, marks=pytest.mark.full)])
def test_analytic_weights_add(p: int, width: int) -> None:
    problem = gromov.ModularAddition(p=p, width=width)
    weights = gromov.analytic(training(problem, 1.0), None)
    table = np.asarray(jax.jit(problem.table)(weights)[0])
    n = np.arange(p)
    assert (table.argmax(2) == (n[:, None] + n) % p).all()
    found = jax.jit(lambda weights: gromov.measured(problem, weights))(weights)
    np.testing.assert_allclose([found["purity"], found["phases"]], 1, rtol=1e-3)


def test_purity_is_a_share_of_power_and_phases_add_on_average() -> None:
    """Unit 1 has the frequency 1 in U, three times as large as the frequency 2 in V, and no phase;
    unit 2 has one frequency, in W a quarter of a turn late."""
    problem = gromov.ModularAddition(p=7, width=2)
    turn = 2 * np.pi * np.arange(7) / 7
    one, two, late = np.cos(turn), np.cos(2 * turn), np.cos(turn - np.pi / 3)
    weights = {"U": [3 * one, one], "V": [two, one], "W": [one, late]}
    measured = jax.jit(lambda weights: gromov.measured(problem, weights))
    found = measured({n: np.array(w) for n, w in weights.items()})
    np.testing.assert_allclose(found["purity"], (9 + 2) / (9 + 1 + 2), rtol=1e-5)
    np.testing.assert_allclose(found["phases"], np.cos(np.pi / 3), rtol=1e-5)


@pytest.mark.full("test_analytic_weights_add")
def test_addition_is_grokked_with_weight_decay_only() -> None:
    problem, names = gromov.ModularAddition(), [*gromov.NAMES]
    decayed, free = (
        dynsim.train(
            problem,
            dynsim.adamw(0.01, decay=decay),
            jax.random.key(0),
            steps=1500,
            batch=math.inf,
            times=[100, 1500],
            record=names,
        )
        for decay in (1.0, 0.0)
    )
    for run in (decayed, free):
        assert run["train_accuracy"].min() > 0.99
        assert run["test_accuracy"][0] < 0.3
    assert decayed["test_accuracy"][-1] > 0.99
    assert decayed["purity"][-1] > 0.9
    assert free["test_accuracy"][-1] < 0.3


def edge_of(width: int) -> tuple[self_stabilisation.Network, Any]:
    problem = self_stabilisation.Network(width=width, strength=400.0)
    a, w = np.random.default_rng(0).normal(size=(2, width)) / 4
    return problem, {"a": jnp.asarray(a), "w": jnp.asarray(abs(w) * np.sign(a)), "v": 0 * a}


@pytest.mark.more
def test_the_projected_gradient_is_that_of_all_weights() -> None:
    """Of SciPy: from where |a|^2 is 2 / (eta strength) on, a moves across itself only."""
    (problem, start), eta, times = edge_of(3), 0.01, [0.0, 100, 250, 400, 900]
    edge = 2 / (eta * problem.strength)

    def flow(t: float, y: Any) -> Any:
        a, w = y.reshape(2, 3)
        force = (1 - a @ w) * np.stack([w, a])
        if a @ a > edge:
            force[0] -= a * (a @ force[0]) / (a @ a)
        return eta * force.ravel()

    begin = np.append(start["a"], start["w"])
    options = {"t_eval": times, "rtol": 1e-8, "atol": 1e-10, "max_step": 1.0}
    a, w = integrate.solve_ivp(flow, (0, 900), begin, **options).y.reshape(2, 3, -1)
    options = {"init": start, "record": ["learned", "curvature", "loss"]}
    found = self_stabilisation.PROJECTED.solve(problem, dynsim.sgd(eta), times, **options)
    learned, square = (a * w).sum(0), (a**2).sum(0)
    held = square > 0.999 * edge
    assert held.tolist() == [False, False, True, True, True]
    np.testing.assert_allclose(found["learned"], learned, rtol=1e-3)
    np.testing.assert_allclose(found["curvature"], problem.strength * square, rtol=1e-3)
    # What a gains along itself by the gradient it loses by the oscillation: strength u^2 a / |a|^2.
    push = np.where(held, (1 - learned) * learned, 0)
    np.testing.assert_allclose(found["loss"], ((1 - learned) ** 2 + push) / 2, rtol=1e-2)


@pytest.mark.parametrize("eta", [0.01, 0.02])
@pytest.mark.more
def test_at_the_edge_one_unit_learns_at_a_speed_without_the_rate(eta: float) -> None:
    problem, start = edge_of(1)
    found = self_stabilisation.PROJECTED.solve(
        problem, dynsim.sgd(eta), [600.0, 800.0], init=start, record=["learned"]
    )
    before, after = 1 - found["learned"]
    assert after / before == pytest.approx(math.exp(-2 * 200 / problem.strength), rel=1e-3)


def test_an_edge_that_has_fallen_is_approached_within_a_step() -> None:
    """|a|^2 beyond 2 / (eta strength) = 0.5 falls back as exp(-t), unless the gradient lowers it
    faster; below the edge it follows the gradient alone."""
    problem, eta = self_stabilisation.Network(strength=400.0), 0.01

    def speed(A: float, p: float) -> float:
        state = {"A": jnp.asarray(A), "B": jnp.asarray(1.0), "p": jnp.asarray(p)}
        return float(self_stabilisation.field(0.0, state, training(problem, eta))["A"])

    assert speed(0.7, 0.2) == pytest.approx(-0.2, rel=1e-5)
    assert speed(0.501, 1.5) == pytest.approx(eta * 2 * -0.5 * 1.5, rel=1e-5)
    assert speed(0.499, 0.2) == pytest.approx(eta * 2 * 0.8 * 0.2, rel=1e-5)


@pytest.mark.more
def test_training_stays_at_the_sharpness_of_the_paper() -> None:
    """2 / eta on average over time, with the oscillation that holds it there."""
    problem, rule = self_stabilisation.Network(strength=1000.0), dynsim.sgd(4e-3)
    times, names = np.arange(700, 2000, 5), ["sharpness", "learned", "loss"]
    options = {"times": times, "key": jax.random.key(0)}
    found = dynsim.train(problem, rule, steps=2000, batch=math.inf, record=names, **options)
    theory = self_stabilisation.PROJECTED.solve(problem, rule, record=names[1:], **options)
    # It swings by 9 %, and times end within a swing.
    assert found["sharpness"].mean() == pytest.approx(2 / 4e-3, rel=0.01)
    assert found["learned"].mean() == pytest.approx(theory["learned"].mean(), rel=0.01)
    assert found["loss"].mean() == pytest.approx(theory["loss"].mean(), rel=0.2)


def a_transformer() -> Any:
    rng = np.random.default_rng(0)
    return {"W": jnp.asarray(3 * rng.normal(size=(2, 2))), "v": jnp.asarray(rng.normal(size=3))}


def test_counts_of_pairs_are_two_layers_of_attention() -> None:
    """Written out by NumPy, token by token."""
    problem, params, key = induction.Chains(context=5, lags=3), a_transformer(), jax.random.key(0)
    tokens = np.asarray(problem.sequences(key, 50))
    a, losses = special.softmax(params["v"]), []
    for x in tokens:
        logits = np.zeros(2)
        for j in range(2, 7):
            seen = sum(a[m] * np.eye(2)[x[j - m]] for m in range(3))
            logits[x[j]] += (np.asarray(params["W"]) @ seen)[x[6]] / 5
        losses.append(-special.log_softmax(logits)[x[7]])
    assert tokens.shape == (50, 8)
    found = jax.jit(lambda key: problem.loss(params, problem.draw(key, 50)))(key)
    np.testing.assert_allclose(found, np.mean(losses), rtol=1e-5)


def test_the_risk_is_the_loss_of_long_sequences() -> None:
    problem = induction.Chains(context=1000, lags=3)
    params = {"W": 8 * jnp.eye(2), "v": jnp.array([0.0, 5.0, 0.0])}

    @jax.jit
    def drawn(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        pairs, last, following = problem.draw(key, 4000)
        return induction.log_chances(params, pairs), last, following

    logits, last, following = drawn(jax.random.key(1))
    losses = -np.asarray(logits)[np.arange(4000), last, following]
    # Within four standard errors, to which contexts of 1000 tokens add less.
    error = losses.std() / math.sqrt(4000)
    assert abs(losses.mean() - induction.risk(params)) < 4 * error
    assert error < 0.02


def entropy(guess: Any) -> float:
    """Mean over all chains of the loss of a guess (p, q) -> (2, 2), which SciPy integrates."""

    def at(p: float, q: float) -> float:
        P, pi = np.array([[1 - p, p], [q, 1 - q]]), np.array([q, p]) / (p + q)
        return -np.sum(pi[:, None] * P * np.log(guess(P, pi)))

    return integrate.dblquad(at, 0, 1, 0, 1, epsabs=1e-5)[0]


@pytest.mark.more
def test_tokens_are_counted_before_the_previous_one_is_looked_at() -> None:
    """At the loss of the best guess from frequencies, attention is nearly as at the start."""
    unigrams = entropy(lambda P, pi: np.stack([pi, pi]))
    bigrams = entropy(lambda P, pi: P)
    times, names = np.arange(0, 1001, 5), ["risk", "previous"]
    found = induction.LONG.solve(
        induction.Chains(), dynsim.sgd(1.0), times, key=jax.random.key(0), record=names
    )
    risk, previous = (found[name] for name in names)
    assert previous[0] == pytest.approx(1 / 20)
    assert np.interp(-unigrams, -risk, previous) < 0.07
    assert previous[-1] > 0.9
    # A linear layer does not reach the best guess.
    assert bigrams < risk[-1] < 0.75 * bigrams + 0.25 * unigrams


@pytest.mark.more
def test_training_follows_the_theory_of_long_contexts() -> None:
    problem, rule, names = induction.Chains(lags=5), dynsim.sgd(2.0), ["previous", "match", "risk"]
    options = {"times": [50, 150, 250], "key": jax.random.key(0), "record": names}
    run = dynsim.train(problem, rule, steps=250, batch=128, **options)
    theory = induction.LONG.solve(problem, rule, **options)
    # A context of 200 tokens knows a chain to about 1/200, times weights of about 4.
    for name in names:
        np.testing.assert_allclose(run[name], theory[name], rtol=0.05)


def tokens_of_one_example(params: Any, i: int) -> Any:
    """The tokens of an example, and where they are seen: positions are the first input."""
    x = 0.5 * np.asarray(params["x"], float)[:, i]
    seen = x.copy()
    seen[:, 0] += [1, -1]
    return x, seen


def test_two_students_mix_tokens_by_softmax() -> None:
    """Written out by NumPy: whole attention matrices, example by example."""
    problem = cui.Attention(D=6, examples=5, omega=0.2)
    params = problem.init(jax.random.key(1))
    params["w"] = jax.random.normal(jax.random.key(2), (2, 6))
    teacher, A = np.eye(6)[1], np.array([[0.6, 0.4], [0.4, 0.6]])
    attention = lambda h: special.softmax(np.outer(h, h), axis=1)
    losses = []
    for w in np.asarray(params["w"], float):
        total = 0.005 * w @ w
        for i in range(5):
            x, seen = tokens_of_one_example(params, i)
            target = (0.8 * attention(x @ teacher) + 0.2 * A) @ x
            total += ((attention(seen @ w) @ seen - target) ** 2).sum() / (2 * 6**2)
        losses.append(total)
    np.testing.assert_allclose(jax.jit(problem.losses)(params), losses, rtol=1e-5)
    own = jax.jit(lambda p: {name: f(problem, p) for name, f in problem.observables().items()})
    own = own(params)
    np.testing.assert_allclose(own["gap"], losses[0] - losses[1], rtol=1e-4)
    np.testing.assert_allclose(own["m"], abs(params["w"][:, 0]), rtol=1e-6)
    np.testing.assert_allclose(own["theta"], abs(params["w"][:, 1]) / 4, rtol=1e-6)


@pytest.mark.more
def test_the_minima_are_those_of_the_authors_and_cross_where_theirs_do(
    optimised: dict[str, Any],
) -> None:
    """Solutions at alpha = 1.24, in theory/repl_softmax_Mixed_sig0.5_lamb0.01_omega0.3(_para).csv,
    and the transition at omega = 0.3, alpha = 1.241, in 02-toy_model_plots.ipynb, of their code."""

    def solved(examples: Any) -> Any:
        # A number that is traced, as no setting is.
        problem = eqx.tree_at(lambda p: p.examples, cui.Attention(D=1000), examples)
        return cui.minima(problem)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(solved), compiler_options=optimised)(jnp.array([1240.0, 1265.0]))
    found = {name: np.asarray(each) for name, each in found.items()}
    # Their rule of integration has degree 7, which shows in the second digit of the overlap with
    # the teacher: more and more points tend to 0.117.
    np.testing.assert_allclose(found["train"][0], [0.0026871, 0.0027055], rtol=7e-3)
    np.testing.assert_allclose(found["m"][0], [0.25321, 0], rtol=0.02, atol=1e-9)
    np.testing.assert_allclose(found["theta"][0], [0, 0.12105], rtol=0.05, atol=1e-9)
    assert found["gap"][0] < 0 < found["gap"][1]


@pytest.mark.more
def test_more_points_do_not_change_the_minima(
    monkeypatch: pytest.MonkeyPatch, optimised: dict[str, Any]
) -> None:
    """Where a product of 8, 12 and 16 Gauss-Hermite nodes has m = 0.214, 0.194 and 0.225."""
    solved = []
    for nodes in (cui.NODES, 4 * cui.NODES):
        monkeypatch.setattr(cui, "NODES", nodes)
        problem = cui.Attention(D=300, examples=450, omega=0.2)
        solved.append(jax.jit(lambda p=problem: cui.minima(p), compiler_options=optimised)())
    few, many = solved
    np.testing.assert_allclose(few["m"], many["m"], rtol=0.02, atol=1e-5)
    np.testing.assert_allclose(few["theta"], many["theta"], rtol=0.01, atol=1e-5)
    np.testing.assert_allclose(few["train"], many["train"], rtol=0.005)


@pytest.mark.full("test_the_minima_are_those_of_the_authors_and_cross_where_theirs_do")
@pytest.mark.parametrize(("examples", "sign"), [(60, -1), (150, 1)])
def test_training_ends_in_the_two_minima(examples: int, sign: int) -> None:
    problem, rule = cui.Attention(D=100, examples=examples), dynsim.sgd(4.0)
    options = {"steps": 500, "batch": math.inf, "times": [500], "record": ["train", "gap"]}
    run = jax.vmap(lambda key: dynsim.train(problem, rule, key, **options))(
        jax.random.split(jax.random.key(0), 16)
    )
    with jax.enable_x64(True):
        theory = np.asarray(cui.minima(problem)["train"])
    train, gap = (np.asarray(run[name])[:, 0] for name in ("train", "gap"))
    # What the student adds of the positions is of the order of 1 / D of the output.
    error = train.std(0) / math.sqrt(16) + 0.1 * train.mean(0)
    assert (abs(train.mean(0) - theory) < 2 * error).all()
    assert sign * gap.mean() > 4 * gap.std() / math.sqrt(16)


LAYER = re.compile(r"\b(tokens?|class|classes|attention|Y|Z)\b")
"""Words of the built-in attention layer, which are no business of another problem."""


@pytest.mark.parametrize("command", ["phase", "figure optimum", "figure scaling", "figure edge"])
def test_help_of_a_paper_has_no_words_of_the_layer(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "saxe", "--help"])
    shown = capsys.readouterr().out
    assert "number of weight matrices" in shown
    assert not LAYER.findall(shown)


@pytest.mark.more
def test_a_phase_diagram_of_a_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Aligned layers of singular values a take steps of eta a (s - a^2), here in NumPy."""
    drawn, draw = [], figure.draw
    monkeypatch.setattr(figure, "draw", lambda *given: drawn.append(draw(*given)) or drawn[0])
    run = sweeps.experiment("saxe", steps=60, batch="inf")
    axes = {"x": "eta:0.5:5:2", "y": "u0:0.01:0.1:2"}
    sweeps.diagrams.run(sweeps.diagrams.Phase(run, **axes, out=tmp_path))
    texts = [text.get_text() for text in drawn[0].findobj(Text)]
    assert "saxe, sgd, steps = 60, batch = inf" in texts
    assert "learning rate (1/step)" in texts
    assert not LAYER.findall("\n".join([*texts, capsys.readouterr().out]))
    s = 2.0 ** -np.arange(4)
    with np.load(tmp_path / "phase.npz") as arrays:
        status = arrays["simulation/region"]
        np.testing.assert_array_equal(
            status, [[dynsim.Status.OK] * 2, [dynsim.Status.DIVERGED] * 2]
        )
        for u0, loss in zip((0.01, 0.1), arrays["simulation/loss"][0], strict=True):
            a = np.full(4, u0**0.5)
            for _ in range(60):
                a += 0.5 * a * (s - a**2)
            # float32, whose errors grow with the modes.
            np.testing.assert_allclose(loss, ((a**2 - s) ** 2).sum() / 2, rtol=1e-3)
