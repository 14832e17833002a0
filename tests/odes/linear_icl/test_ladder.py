"""Theory of in-context regression: published losses, closed forms, and real training."""

import math

import jax
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.special import elliprf

import dynsim
import odes
from dynsim import Separate, Status
from dynsim.problem.build import narrowed
from dynsim.training import loop
from odes import linear_icl

pytestmark = pytest.mark.usefixtures("x64")
TASK = dynsim.Regression()
THEORIES = odes.hierarchy.of_class(dynsim.Regression)
PUBLISHED = (1, 0.64057971, 0.37737216, 0.2098046, 0.13599507)
"""Losses of the plateaus at D = 4, N = 31, as the authors' code prints them."""


def test_plateaus_are_the_published_ones():
    # All the digits that are printed.
    np.testing.assert_allclose(linear_icl.plateaus(TASK), PUBLISHED, atol=5e-9)


def equation_14(t, state, H):
    """The flow of H heads of rank one, in units of tau, head by head as it is printed."""
    D, N = TASK.D, TASK.N
    Lambda = np.diag(np.asarray(TASK.eigenvalues))
    square = Lambda @ Lambda + (Lambda + np.trace(Lambda) * np.eye(D)) @ Lambda / N
    v, k, q = state[:H], state[H : H * (1 + D)].reshape(H, D), state[H * (1 + D) :].reshape(H, D)
    S = sum(v[i] * np.outer(k[i], q[i]) for i in range(H))
    pull = Lambda @ Lambda - square @ S @ Lambda
    return np.r_[
        [k[i] @ pull @ q[i] for i in range(H)],
        np.ravel([v[i] * pull @ q[i] for i in range(H)]),
        np.ravel([v[i] * pull.T @ k[i] for i in range(H)]),
    ]


def aligned(v_0):
    """A head along each component, k = q = v e_d."""
    along = np.diag(v_0)[:, None]
    return Separate(v_0, along, along)


THREE = dynsim.Regression(heads=3, scale=0.3)
START = narrowed(THREE.init(loop.split_key(jax.random.key(0))[0]), "float32")
TIMES = (0.0, 5.0, 20.0, 60.0, 200.0)


@pytest.mark.more
def test_the_flow_is_equation_14():
    state = np.concatenate([np.ravel(leaf) for leaf in (START.v, START.k, START.q)])
    # eta = 1/2 makes tau one step.
    exact = solve_ivp(
        equation_14, (0, TIMES[-1]), state, t_eval=TIMES, args=(3,), rtol=1e-10, atol=1e-12
    )
    found = THEORIES["plain"].solve(
        THREE, dynsim.sgd(0.5), TIMES, init=START, record=("loss", "matrix")
    )
    for row, y in zip(found["matrix"], exact.y.T, strict=True):
        want = np.einsum("h,hd,he->de", y[:3], y[3:15].reshape(3, 4), y[15:].reshape(3, 4))
        # Both solvers work to 1e-8 a step, over some hundred of them.
        np.testing.assert_allclose(row, want, atol=1e-6)
    # Of three heads none is left for the last component.
    assert found["loss"][-1] > PUBLISHED[3] - 1e-9


def test_aligned_heads_follow_the_closed_form():
    """Eq. 21 is exact for them, in the time that momentum speeds up by 1/(1 - mu)."""
    first, times = np.array([0.2, 0.3, 0.4, 0.5]), np.array([0.0, 10.0, 30.0, 100.0, 300.0])
    momentum, init = dynsim.sgd(0.05, momentum=0.9), aligned(first)
    closed = THEORIES["scalar"].solve(dynsim.Regression(heads=4), momentum, times, init=init)
    start = np.concatenate([np.ravel(leaf) for leaf in (init.v, init.k, init.q)])
    flow = solve_ivp(
        equation_14, (0, times[-1]), start, t_eval=times, args=(4,), rtol=1e-10, atol=1e-12
    )
    # M = v^3 on the diagonal, of which eq. 18 is the end.
    want = flow.y[:4].T ** 3 * np.asarray(TASK.eigenvalues) * np.asarray(TASK.gain)
    # SciPy works to 1e-10 a step, over some hundred of them.
    np.testing.assert_allclose(closed["learned"], want, atol=1e-7)
    # Everything from hardly started to learned has been compared.
    assert want.min() < 0.01
    assert want.max() > 0.99


def test_the_closed_form_is_the_quadrature_of_equation_21():
    end = np.asarray(linear_icl.amplitudes(TASK))
    first, last = 0.1 * end, np.array([0.3, 0.7, 0.999, 1.5]) * end
    first[3] = 3 * end[3]  # from above
    sizes, gain = np.asarray(TASK.eigenvalues), np.asarray(TASK.gain)
    times = np.asarray(linear_icl.time_to_reach(last, first, TASK))
    for d, got in enumerate(times):
        slope = lambda v, d=d: sizes[d] ** 2 * v**2 - sizes[d] ** 3 * gain[d] * v**5
        want = quad(lambda v, slope=slope: 1 / slope(v), first[d], last[d], epsabs=0, epsrel=1e-11)
        assert got == pytest.approx(want[0], rel=1e-9)  # quad's own tolerance
    again = linear_icl.share(times[:, None], first, TASK)
    np.testing.assert_allclose(np.diag(again), last / end, rtol=1e-9)


def test_the_closed_form_has_the_derivatives_of_its_equations():
    """With fewer heads than components, of which the last one is not learned: by the rate, with
    u' = lambda^2 v* (u^2 - u^5) for u = v/v* and the share u^3, and by the size of the inputs."""
    times, sizes, gain = np.array([60.0, 150.0]), *map(np.asarray, (TASK.eigenvalues, TASK.gain))

    def solve(eta, size):
        task = dynsim.Regression(heads=3, spectrum=dynsim.GivenSpectrum(size * TASK.eigenvalues))
        options = {"init": START, "record": "learned"}
        return THEORIES["scalar"].solve(task, dynsim.sgd(eta), times, **options)["learned"]

    learned = np.asarray(solve(0.1, 1.0))
    by_eta, by_size = map(np.asarray, jax.jacrev(solve, (0, 1))(0.1, 1.0))
    u = np.cbrt(learned)
    rate = sizes**2 * (sizes * gain) ** (-1 / 3) * (u**2 - u**5)
    np.testing.assert_allclose(by_eta, 2 * times[:, None] * 3 * u**2 * rate, rtol=1e-9, atol=1e-12)
    difference = (solve(0.1, 1 + 1e-5) - solve(0.1, 1 - 1e-5)) / 2e-5
    np.testing.assert_allclose(by_size, difference, rtol=1e-5, atol=1e-9)
    assert (learned[:, 3] == 0).all()
    assert (by_size > 1e-3).any(axis=0).tolist() == [True, True, True, False]


def test_waits_of_heads_are_those_of_their_equations():
    rng = np.random.default_rng(5)
    v, k, q = rng.normal(size=(3, 6))
    head = Separate(v, k[:, None, None], q[:, None, None])
    got = np.asarray(linear_icl.waits(head))[:, 0]
    assert {*np.sign(v * k * q)} == {-1, 1}

    def far(t, y):
        return np.abs(y).max() - 1e4

    far.terminal = True
    for wait, start in zip(got, np.stack([v, k, q], 1), strict=True):
        field = lambda t, y: np.array([y[1] * y[2], y[0] * y[2], y[0] * y[1]])
        run = solve_ivp(field, (0, 100), start, events=far, rtol=1e-11, atol=1e-12)
        # Where it stops it is 1e-4 from infinity, in time as well.
        assert wait == pytest.approx(run.t[-1] + 1e-4, rel=1e-6)
    np.testing.assert_allclose(
        linear_icl.carlson(*np.abs([v, k, q])), elliprf(*np.abs([v, k, q])), rtol=1e-13
    )


def test_the_sigmoid_of_two_heads_is_the_descent_of_its_loss():
    """At eigenvalues 0.7. With U_i = u_i I, M = sum_i v_i u_i I and l = 0.7 g M the loss is 4 0.7
    (1 - (2 l - l^2) / g), down which v_i and the entries of U_i go at the rate eta."""
    spectrum = dynsim.GivenSpectrum(0.7 * np.ones(4))
    task = dynsim.Regression(4, 31, spectrum=spectrum, attention=dynsim.MergedHeads(), heads=2)
    gain, eta, times = 1 + (1 + 4) / 31, 0.3, np.array([0.0, 1.0, 3.0, 6.0])
    v, u = np.array([0.5, -0.2]), np.array([0.25, -0.1])

    def field(t, state):
        v, u = state[:2], state[2:]
        # Minus the slope of the loss by M, of which each of four entries has a quarter.
        pull = 4 * 0.7 * 2 * (1 - 0.7 * gain * (v @ u)) * 0.7
        return eta * np.r_[pull * u, pull / 4 * v]

    y = solve_ivp(field, (0, 6), np.r_[v, u], t_eval=times, rtol=1e-10, atol=1e-12).y
    learned = 0.7 * gain * np.sum(y[:2] * y[2:], axis=0)
    assert 0.2 < learned[1] < 0.8
    start = dynsim.Merged(v, u[:, None, None] * np.eye(4))
    options = {"init": start, "record": ("learned", "loss")}
    found = THEORIES["sigmoid"].solve(task, dynsim.sgd(eta), times, **options)
    np.testing.assert_allclose(found["learned"], np.tile(learned[:, None], 4), rtol=1e-7)
    want = 4 * 0.7 * (1 - (2 * learned - learned**2) / gain)
    np.testing.assert_allclose(found["loss"], want, rtol=1e-7)


def test_training_rests_on_the_plateaus_at_the_predicted_times():
    """Recorded between the predicted escapes."""
    momentum, init = dynsim.sgd(0.05, momentum=0.9), aligned(np.full(4, 0.02))
    escapes = np.asarray(linear_icl.escape_times(TASK, init.v)) / (2 * 0.5)
    between = [0.5 * escapes[0], *np.sqrt(escapes[1:] * escapes[:-1]), 1.5 * escapes[3]]
    times, problem = np.rint(between).astype(int), dynsim.Regression(heads=4)
    options = {"steps": int(times[-1]), "batch": math.inf, "record": ("loss", "stage")}
    train = lambda: dynsim.train(
        problem, momentum, jax.random.key(0), init=init, times=times, **options
    )
    run = jax.jit(train)()
    assert run.status == Status.OK
    np.testing.assert_array_equal(run["stage"], range(5))
    np.testing.assert_allclose(run["loss"], PUBLISHED, rtol=0.01)
    stairs = THEORIES["plateaus"].solve(problem, momentum, times, init=init)
    np.testing.assert_allclose(stairs["loss"], PUBLISHED, atol=1e-8)


def test_a_plateau_is_within_two_percent_of_the_start_for_a_quarter_longer():
    """Within 0.06 of plateaus at 3 and 1, up to 1.25 times the time at which it begins."""
    times = np.array([8.0, 10, 11, 12.5, 100])
    losses = {
        (2.941, 3.059, 2, 2, 2): 1,
        (2.939, 3, 3, 2, 2): 0,
        (2, 3, 3, 3, 2): 1,
        (2, 3, 2, 3, 2): 0,
        (2, 2, 2, 1, 1.059): 1,
        (2, 2, 2, 1, 1.061): 0,
        (3, 3, 2, 1.05, 0.95): 2,
    }
    # As runs over two axes.
    levels = np.broadcast_to([3.0, 1.0], (len(losses), 1, 2))
    number = linear_icl.count_plateaus(times, np.array([*losses], float)[:, None], levels)
    assert number[:, 0].tolist() == [*losses.values()]
