"""JoMA: Theorem 1 against training and NumPy, Theorem 2 up to the blow-up, the toy's quadrature."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.special import erfinv, softmax

import dynsim
import odes
from dynsim import JoMA, Status
from dynsim.joma import Hidden, Joint
from odes import joma
from odes.joma import toy

pytestmark = pytest.mark.usefixtures("x64")
TASK = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0], [0.2, 0.1, 0.3, 0.4]], [0, 0])


class Shape(NamedTuple):
    """What a problem is made of."""

    attention: str = "softmax"
    activation: str = "linear"
    head: str = "cross-entropy"


SHAPES = [
    Shape("linear", "tanh", "cross-entropy"),
    Shape("exp", "quadratic", "cross-entropy"),
    Shape("softmax", "relu", "signal"),
]
PHI = {
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "quadratic": (lambda u: u**2 / 2, lambda u: u),
    "relu": (lambda u: np.maximum(u, 0), lambda u: 1.0 * (u > 0)),
}


THEORIES = odes.hierarchy.of_class(dynsim.JoMA)


def problem_of(shape, temperature=1.0, task=TASK):
    return JoMA(task, **shape._asdict(), temperature=temperature)


def start(shape):
    rng = np.random.default_rng(3)
    V, r = 0.5 * rng.normal(size=(2, 4)), 0.5 * rng.normal(size=(2, 1))
    # Under linear attention z of the first token crosses zero, and that of the last one cannot.
    shift = np.array([-0.2, 2, 0, -0.5]) * (shape.attention == "linear")
    return Joint(Hidden(V, r), 0.5 * rng.normal(size=(1, 4)) + shift)


def equation_2(shape, temperature, rates):
    """Eqn. 2 sequence class by sequence class, as it is printed, with db/dz as a matrix."""
    phi, slope = PHI[shape.activation]
    K = 2

    def field(t, state):
        V, r, z = state[:8].reshape(2, 4), state[8:10], state[10:]
        dV, dr, dz = np.zeros((2, 4)), np.zeros(2), np.zeros(4)
        for n in range(K):
            x = np.asarray(TASK.probs)[n]
            e = np.exp(z / temperature) * x
            b, jacobian = {
                "linear": (z / temperature * x, np.diag(x)),
                "exp": (e, np.diag(e)),
                "softmax": (e / e.sum(), np.diag(e) / e.sum() - np.outer(e, e) / e.sum() ** 2),
            }[shape.attention]
            u = V @ b + r
            own = np.eye(K)[n]
            h = phi(u)
            g = own - 1 / K if shape.head == "signal" else own - np.exp(h) / np.exp(h).sum()
            signal = TASK.prior[n] * g * slope(u)
            dV, dr = dV + np.outer(signal, b), dr + signal
            dz = dz + jacobian.T @ V.T @ signal / temperature
        return np.r_[rates[0] * dV.ravel(), rates[0] * dr, rates[1] * dz]

    return field


def test_theorem_2_is_the_flow_up_to_the_blow_up():
    # Of unequal priors; the second token occurs in both classes alike, and stays.
    probs, prior = [[0.5, 0.375, 0.125, 0], [0.125, 0.125, 0.5, 0.25]], [0.25, 0.75]
    task = dynsim.sequence_classes(probs, [0, 0], prior=prior)
    problem, rates = problem_of(Shape("exp", "linear", "signal"), 0.8, task), dynsim.sgd(0.05, 0.2)
    zero = Joint(Hidden(np.zeros((2, 4)), np.zeros((2, 1))), np.zeros((1, 4)))
    end = float(joma.blow_up(problem, rates))
    times = end * np.array([0.1, 0.5, 0.9, 0.99])
    every = lambda s: jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(s.params)])
    options = {"init": zero, "record": ["weight", "loss", {"every": every}]}
    closed, flow = (
        THEORIES[name].solve(problem, rates, times, **options) for name in ("erf", "plain")
    )
    np.testing.assert_allclose(closed["every"], flow["every"], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(closed["weight"], flow["weight"], rtol=1e-5)
    np.testing.assert_allclose(closed["loss"], flow["loss"], rtol=1e-5, atol=1e-9)
    # erf(y/sqrt 2)/|Delta_l| is the same for all tokens; Delta by hand, half of the difference.
    size = np.abs(np.diff(np.array(prior)[:, None] * probs, axis=0)[0]) / 2**0.5
    y = np.sqrt(2) * erfinv(np.outer(times / end, size / size.max()))
    np.testing.assert_allclose(closed["weight"], 0.8 * y / 2, rtol=1e-9)  # c = eta_z/eta_y = 4
    late = THEORIES["erf"].solve(problem, rates, [end / 2, 1.01 * end], **options)
    assert late.status == Status.DIVERGED
    assert int(late.first_bad_step) == int(np.ceil(1.01 * end))


def test_salient_components_first():
    """The toy's quadrature against its equation in SciPy, from a start that is not zero, and the
    constants of the notes."""
    mu, start, T = np.array([0.8, 1.7, 2.6]), np.array([0.1, 0.4, 0.2]), 1.3
    s = np.array([0.0, 0.6, 2.1])
    field = lambda v: (mu - v) * np.exp(v**2 / (2 * T))
    free = solve_ivp(
        lambda s, v: field(v), (0, s[-1]), start, t_eval=s, rtol=1e-11, atol=1e-13, method="DOP853"
    ).y.T
    times, found = toy.under_softmax(s, mu, start, T)
    # Solver tolerances of 1e-11 a step.
    np.testing.assert_allclose(found, free, rtol=1e-8)
    softmax_flow = solve_ivp(
        lambda t, v: (mu - v) * softmax(v**2 / (2 * T)),
        (0, float(times[-1])), start, t_eval=times, rtol=1e-11, atol=1e-13, method="DOP853",
    )  # fmt: skip
    np.testing.assert_allclose(found, softmax_flow.y.T, rtol=1e-8)
    for c_of, c in ((1, 0.88083), (2, 6.34354), (3, 55.5008)):
        assert float(toy.delay(c_of)) == pytest.approx(c, rel=6e-6)  # as many digits as there are
    late = lambda level: (level + 6.34354) * np.exp(-2)  # of mu = 2
    assert float(toy.time_to_learn(30.0, 2.0)) == pytest.approx(late(30), rel=1e-7)
    # Beyond the bisection's bounds the level rises at a constant rate.
    ends, times = np.array([[toy.FAR + 30], [toy.FAR - 10]]), late(toy.FAR + np.array([30, -10]))
    level = toy.level_after(times[:, None], np.float64([2.0]), np.zeros(1))
    np.testing.assert_allclose(level, ends, rtol=1e-6)


@pytest.mark.parametrize("activation", ["linear", "relu", "tanh", "quadratic"])
def test_theorem_3_is_the_mean_over_samples(activation):
    """Of samples the part along v is a normal number, over which SciPy integrates; what is left
    of them has the mean of its cluster."""
    rng = np.random.default_rng(7)
    v, centres, signal = rng.normal(size=5), rng.normal(size=(3, 5)), np.array([0.5, -0.3, 0.2])
    residual, spread = np.array([0.4, 0.0, -0.4]), 0.7
    got = joma.mixture.velocity(
        v, centres, signal, spread, residual=residual, activation=activation
    )
    slope = {**PHI, "linear": (None, np.ones_like)}[activation][1]
    size, want = np.linalg.norm(v), np.zeros(5)
    for a, centre, r in zip(signal, centres, centres @ v + residual, strict=True):
        of = lambda t, r=r: slope(r + spread * size * t) * np.exp(-(t**2) / 2) / (2 * np.pi) ** 0.5
        options = {"points": [-r / (spread * size)], "epsabs": 1e-12}
        mean = quad(of, -12, 12, **options)[0]
        along = quad(lambda t, of=of: t * of(t), -12, 12, **options)[0]
        want += a * (mean * centre + along * spread * v / size)
    # Nodes of a function with poles at a distance of pi/2 over the width of 1.1.
    np.testing.assert_allclose(got, want, rtol=1e-6 if activation == "tanh" else 1e-10)


# Last, because the fixture stays for the rest of the file.
@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.attention)
def test_equation_2_and_theorem_1(shape):
    rates, temperature, end = (0.02, 0.05), 0.7, 60.0
    init = start(shape)
    state = np.r_[init.Y.V.ravel(), init.Y.r.ravel(), init.Z.ravel()]
    want = solve_ivp(
        equation_2(shape, temperature, rates), (0, end), state, rtol=1e-10, atol=1e-12
    ).y[:, -1]
    assert np.abs(want - state).max() > 0.1
    if shape.attention == "linear":
        z, c = init.Z[0], rates[1] / rates[0]
        keeps_sign = z**2 > c * (init.Y.V**2).sum(0)
        assert z[0] < 0 < want[10]
        assert keeps_sign.tolist() == [False, False, False, True]
    # Several times, because each interval has as many of the equal steps.
    times, options = end * np.array([0.25, 0.5, 0.75, 1]), {"init": init, "record": "logits"}
    given = problem_of(shape, temperature), dynsim.sgd(*rates), times
    flow, theory = (THEORIES[name].solve(*given, **options) for name in ("plain", "joma"))
    # The solver works to 1e-8 a step; a ReLU's kink costs it some more.
    atol = 1e-6 if shape.activation == "relu" else 2e-8
    np.testing.assert_allclose(flow["logits"][-1, 0], want[10:], atol=atol)
    np.testing.assert_allclose(flow.params.Y.V.ravel(), want[:8], atol=atol)
    if shape.attention == "softmax":
        # Theorem 1 is no more than approximate, and here not even that.
        assert np.linalg.norm(theory["logits"][-1, 0] - want[10:]) > 0.1
        grown = np.asarray(theory.params.Y.V) ** 2 - init.Y.V**2
        # b_0, attention at the start, and z by Theorem 1 from the weights V of its own flow.
        attended = np.asarray(TASK.probs) * np.exp(init.Z / temperature)
        mean = np.asarray(TASK.prior) @ (attended / attended.sum(1, keepdims=True))
        moved = (grown - grown.sum(1, keepdims=True) * mean).sum(0)
        of_V = init.Z[0] + rates[1] / rates[0] / (2 * temperature) * moved
        np.testing.assert_allclose(theory["logits"][-1, 0], of_V, rtol=1e-6)
    else:
        np.testing.assert_allclose(theory["logits"][-1, 0], want[10:], atol=1e-6)
        np.testing.assert_allclose(theory.params.Y.V.ravel(), want[:8], atol=1e-6)


@pytest.mark.usefixtures("quick_theory")
def test_linear_attention_under_a_fixed_signal_is_a_boost():
    """With a linear activation every token's (z, sqrt(c) v) turns by one hyperbolic angle along its
    Delta_l, so that z = z_0 cosh(a) + sqrt(c) (v_0 . Delta_l/|Delta_l|) sinh(a), through zero too,
    with a = sqrt(eta_Y eta_Z) |Delta_l| t/T."""
    init, shape, rates, T = start(SHAPES[0]), Shape("linear", "linear", "signal"), (0.1, 0.4), 0.8
    Z = np.array([[-0.3, 0.3, 6.0, -3.0]])
    times = np.array([40.0, 80.0])
    found = THEORIES["joma"].solve(
        problem_of(shape, T), dynsim.sgd(*rates), times, init=Joint(init.Y, Z), record="logits"
    )
    # Delta by hand: half of the difference between classes, from either of them.
    delta = np.diff(np.asarray(TASK.probs), axis=0)[0] * np.array([[-1], [1]]) / 4
    size = np.linalg.norm(delta, axis=0)
    angle = (rates[0] * rates[1]) ** 0.5 * size * times[:, None] / T
    along = 2 * (init.Y.V * delta).sum(0) / size
    want = Z * np.cosh(angle) + along * np.sinh(angle)
    np.testing.assert_allclose(found["logits"][:, 0], want, rtol=1e-6)
    crossed = want[-1] * Z[0] < 0
    assert crossed.any()
    assert not crossed[(Z**2 > 4 * (init.Y.V**2).sum(0))[0]].any()
