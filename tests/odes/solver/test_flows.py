"""Flows against gradient descent, which is the central claim, and against their gradients."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
from dynsim.training.rule import of_layer
from dynsim.yz import model as yz
from odes import coefficients
from odes.solver.flows import flow_of_rule
from odes.solver.tolerances import Tolerances
from odes.yz import eq10 as attention
from odes.yz import population
from tests.systems.layers import simulate
from tests.systems.runge_kutta import runge_kutta_instead

TASK = dynsim.SynSmall().build()
# One record, and two times where possible: compilation takes seconds.
RECORD = ("loss", "z_top_distinct")


def descend(optimizer: dynsim.Rule, steps: int, **options: object) -> dynsim.Trajectory:
    infinite = {"length": math.inf, "batch": math.inf, "dtype": "float64"}
    return simulate(TASK, optimizer, steps=steps, **infinite, **options)


def distance(a: yz.YZ, b: yz.YZ) -> np.ndarray:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return np.array([np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in pairs])


@pytest.mark.parametrize(
    ("mu", "flow"), [(0.0, "plain"), pytest.param(0.9, "rescaled", marks=pytest.mark.full)]
)
@pytest.mark.full("odes/test_problem.py::test_flows_are_descent_to_the_order_that_they_promise")
def test_descent_converges_to_the_flow_at_first_order(mu: float, flow: str) -> None:
    errors = []
    for refinement in (2, 8):
        eta = (1 - mu) * 0.8 / refinement
        optimizer = dynsim.sgd(eta, eta, momentum=mu) if mu else dynsim.sgd(eta, eta)
        steps = 25 * refinement
        discrete = descend(optimizer, steps, times=[steps], record=RECORD)
        limit = population.solve(TASK, optimizer, np.array([0.0, steps]), flow=flow, record=RECORD)
        errors.append(distance(discrete.params, limit.params))
    # Two halvings at once.
    order = np.log2(errors[0] / errors[1]) / 2
    np.testing.assert_allclose(order, 1, atol=0.2)
    assert (errors[-1] < 0.1).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mu", [pytest.param(0.0, marks=pytest.mark.full), 0.8])
def test_corrected_flows_are_of_second_order(mu: float) -> None:
    """Against descent in NumPy on p_0^2 + p_1^2 / 2 + p_0^2 p_1 + p_0^4, as the learning rate goes
    to zero at fixed mu: a wrong speed of the slow motion, or a start that leaves a wrong offset
    behind, is an error of first order."""

    def gradient(x: float, y: float) -> tuple[float, float]:
        return 2 * x + 2 * x * y + 4 * x**3, y + x**2

    def field(task: None, p: yz.YZ) -> yz.YZ:
        return yz.YZ(*gradient(p.Y, p.Z))

    @jax.jit
    def flow(rule: dynsim.Rule, steps: jax.Array) -> yz.YZ:
        start = yz.YZ(jnp.full((1, 1), 0.7), jnp.full((1, 1), -0.4))
        save, tolerances = lambda task, p, t: p.Y, Tolerances(1e-10, 1e-12)
        options = {"flow": "corrected", "save": save, "tolerances": tolerances}
        return flow_of_rule(field, None, rule, of_layer(start), start, steps[None], **options)[1]

    errors = []
    for steps in (160, 640):
        rates = (1 - mu) * np.array([1.5, 2.0]) / steps
        p, v = np.array([0.7, -0.4]), np.zeros(2)
        for _ in range(steps):
            v = mu * v + gradient(*p)
            p = p - rates * v
        rule = dynsim.sgd(*rates.tolist(), momentum=mu) if mu else dynsim.sgd(*rates.tolist())
        errors.append(np.ravel(jax.tree.leaves(flow(rule, jnp.array(float(steps))))) - p)
    # Two halvings at once; terms of third order change an order by 0.15 here.
    np.testing.assert_allclose(np.log2(np.divide(*np.abs(errors))) / 2, 2, atol=0.2)


@pytest.mark.full("systems/test_yz.py::test_theories_in_equal_steps")
def test_momentum_readings_have_the_measured_values() -> None:
    # The values of the theory notes (section 8), +- 0.003.
    optimizer = dynsim.sgd(1.0, 1.0, momentum=0.9)
    logit = lambda run: float(run["z_top_distinct"][-1, 0])
    assert logit(descend(optimizer, 100, times=[100], record=RECORD)) == pytest.approx(
        1.0054, abs=1e-4
    )
    # Equal steps of 2/3, where momentum takes 10, serve these digits.
    with runge_kutta_instead():
        for flow, value in (("heavy-ball", 1.028), ("matched", 1.007), ("rescaled", 0.601)):
            times = np.linspace(0, 100, 6)
            result = population.solve(TASK, optimizer, times, flow=flow, record=RECORD)
            assert result.status == dynsim.Status.OK
            assert logit(result) == pytest.approx(value, abs=0.003), flow


@pytest.mark.usefixtures("x64")
def test_theorem_1_inverts_the_gram_matrix() -> None:
    f = yz.normalise(jnp.asarray(np.random.default_rng(0).uniform(size=(4, 9))))
    gamma = jnp.array([0.5, 1.0, 2.0, 0.1])
    g = coefficients.backpropagated_gradient(f, gamma)
    # The paper's own sums: iota_n = (G^-1)_nn, beta_nn' = -(G^-1)_n'n by definition of E'.
    inverse = np.linalg.inv(np.asarray(f @ f.T))
    for n in range(4):
        beta = {m: -inverse[m, n] for m in range(4) if m != n}
        want = inverse[n, n] * f[n] - sum(b * f[m] for m, b in beta.items())
        np.testing.assert_allclose(g[n], gamma[n] * want, rtol=1e-10)
        xi = gamma[n] * sum(b * (f[n] @ f[m]) for m, b in beta.items())
        np.testing.assert_allclose(coefficients.xi(f, gamma)[n], xi, rtol=1e-10)
    np.testing.assert_allclose(jnp.sum(f * g, 1), gamma, rtol=1e-10)


@pytest.mark.full("systems/test_yz.py::test_theories_in_equal_steps")  # whose eq10 has xi as well
@pytest.mark.parametrize("convention", ["sgd", "paper"])
def test_the_drift_of_eq10_is_theorem_1s(convention: str) -> None:
    task, times = dynsim.SynMedium(1).build(), np.array([0, 10.0, 25.0])
    record = ["speed", "xi", "overlap"]
    got = attention.solve(task, dynsim.sgd(1.3, 0.7), times, convention=convention, record=record)
    # xi is measured from the drift, and the speed is gamma of Lemma 6's decoder.
    gram_xi = [np.diag(np.linalg.inv(G)) - 1 for G in got["overlap"]]
    np.testing.assert_allclose(got["xi"], got["speed"] * gram_xi, rtol=1e-8, atol=1e-12)


@pytest.mark.full("systems/test_yz.py::test_theories_through_the_solver")  # between steps as well
def test_theories_return_the_start_at_step_zero_and_a_loop_is_a_vector() -> None:
    optimizer = dynsim.sgd(0.5, 0.5, momentum=0.9)
    times = np.array([0.0, 3.0, 17.5, 60.0])
    record = (*RECORD, "speed")
    together = population.solve(TASK, optimizer, times, record=record)
    assert together["z_top_distinct"][0, 0] == 0
    assert float(together["loss"][0]) == pytest.approx(np.log(34), rel=1e-12)
    for i in (1, 2):
        alone = population.solve(
            TASK, optimizer, np.array([0.0, 1.0, 2.0, times[i]]), record=record
        )
        for name in record:
            # Saved values come from the solver's fourth-order interpolant.
            np.testing.assert_allclose(together[name][i], alone[name][-1], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_vmap_over_rates_marks_the_stiff_member_and_spares_the_others() -> None:
    times = np.array([0.0, 5.0, 100.0])

    def run(eta: jax.Array) -> dynsim.Trajectory:
        few = Tolerances(1e-8, 1e-10, max_steps=120)
        return population.solve(TASK, dynsim.sgd(eta, eta), times, tolerances=few, record=["loss"])

    batch = jax.vmap(run)(jnp.array([0.1, 1e6, 1.0]))
    np.testing.assert_array_equal(batch.status, [0, 2, 0])
    assert batch.first_bad_step[1] in (5, 100)
    assert np.isinf(batch["loss"][1, -1])
    assert np.isfinite(np.asarray(batch["loss"])[[0, 2]]).all()
    alone = run(jnp.asarray(1.0))
    np.testing.assert_allclose(batch["loss"][2], alone["loss"], rtol=1e-9)


def test_float32_is_close_and_recorded_as_such() -> None:
    times = np.array([0.0, 10.0, 100.0])
    # In the same equal steps, so that rounding is all that differs.
    with runge_kutta_instead():
        wide, narrow = (
            attention.solve(TASK, dynsim.sgd(1.0, 1.0), times, dtype=dtype, record=RECORD)
            for dtype in ("float64", "float32")
        )
    assert narrow["loss"].dtype == np.float32
    assert isinstance(wide["loss"], np.ndarray)
    assert wide["loss"].dtype == np.float64
    # Ten units in the last place of float32, for 60 steps.
    for name in RECORD:
        np.testing.assert_allclose(narrow[name], wide[name], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "optimizer", "message"),
    [
        (
            "plain",
            dynsim.sgd(1.0, 1.0, momentum=0.9),
            "flow = 'plain': does not describe optimizer = momentum",
        ),
        (
            "matched",
            dynsim.sgd(1.0, 1.0),
            "does not describe optimizer = sgd; must be one of plain",
        ),
        ("eq10", dynsim.adam(1.0, 1.0), "optimizer = adam: Eq. 10 describes gradient descent only"),
        ("wkb", dynsim.sgd(1.0, 1.0), "theory = 'wkb': must be one of plain[-finite-t], "),
    ],
)
def test_a_theory_that_does_not_apply_says_why(
    name: str, optimizer: dynsim.Rule, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        odes.theories(dynsim.Layer(TASK))[name].check(dynsim.Layer(TASK), optimizer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: population.solve(TASK, dynsim.sgd(1, 1), [3, 2]), "must be increasing and >= 0"),
        (lambda: population.solve(TASK, dynsim.sgd(1, 1), []), "non-empty list"),
        (lambda: population.solve(TASK, dynsim.sgd(1, 1), [0, 1], flow="odd"), "flow = 'odd'"),
        (lambda: population.solve(TASK, dynsim.sgd(1, 1), [0, 1], dtype="int8"), "dtype = 'int8'"),
        (
            lambda: attention.solve(TASK, dynsim.sgd(1, 1), [0, 1], convention="x"),
            "convention = 'x'",
        ),
        (
            lambda: population.solve(
                TASK, dynsim.sgd(1, 1), [0, 1], dtype="float32", tolerances=Tolerances()
            ),
            "rtol = 1e-08: must be >= 1e-06 in float32",
        ),
        (
            lambda: attention.solve(
                dynsim.sequence_classes([[0.5, 0.5], [0.5, 0.5]], [0, 1]),
                dynsim.sgd(1, 1),
                [0, 1],
            ),
            "needs linearly independent P(l|n)",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.more
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
