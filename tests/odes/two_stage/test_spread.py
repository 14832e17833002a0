"""Spread over seeds and noise of minibatches: closed forms, and prompts one by one in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynsim import schedules
from dynsim.two_stage.annealing import Annealed, Annealing
from dynsim.two_stage.task import Prompts
from odes.two_stage import field
from odes.two_stage.loss import EPS, ReducedState, Rule, block_sizes, losses
from odes.two_stage.sde import Seed, Signal, _seed_drift, _seed_noise, solve_seed
from odes.two_stage.thresholds import _moments, gradient_variance
from tests.systems.two_stage import RULE, Components

pytestmark = pytest.mark.usefixtures("x64")
START = (0.3, 0.6, 0.03, 0.03, 0.04, 0.015, 0.01)


@pytest.mark.more
def test_spread_where_the_loss_is_a_weight_decay() -> None:
    """Without P, for hardly any zeta and small outputs the loss is log 2 + Var/8 of N_V, the same
    pull c = s2^4 kappa / 8L on every entry: of v_M, of the signal of an entry and of the mean of
    squared losses there are closed forms at rest, and W is noise alone."""
    d, decay, num_test, num, steps = 6, 0.4, 50, 800, 60
    task = Prompts(d, 5, gamma0=0.0, s1=0.0, s2=3.0, r=1e-6, tau_0=1e-3)
    rule = Annealed(0.05, 0.05, decay, tau=1e-3).build()
    rule = dataclasses.replace(rule, eta=schedules.steps(0.05, (10, 170), (1, 1)))
    optimizer = Annealing.of(rule)
    run = lambda key: solve_seed(
        task,
        rule,
        [0, 170.0],
        key,
        num_test=num_test,
        rule=Rule(1, 1, 2, 2),
        num_steps=steps,
        record=("K2", "V_trace", "W_trace", "state"),
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), num))
    assert found.ok.all()
    state = np.asarray(found["state"])
    sizes = np.array(jax.tree.leaves(block_sizes(d)))
    c = 3.0**4 * task.kappa / (8 * 5)
    noise = 0.05 * optimizer.noise**2

    def check_variance(values: np.ndarray, want: float, size: float = np.inf) -> None:
        # Four standard errors, for chi squared of `size`.
        np.testing.assert_allclose(values.var(), want, rtol=4 * ((2 + 12 / size) / num) ** 0.5)

    # A block is a chi squared of its size at the start and at rest; a and b are single weights. At
    # rest Euler's step h adds the share x h / (2 - x h) to a variance that decays at the rate x.
    h = 8.5 / steps
    v, v_free = noise / (2 * (c + decay)), noise / (2 * decay)
    for place, size in enumerate(sizes):
        pull = c + decay if place == 6 else decay
        start, end = state[:, :, place].T
        if size == 1:
            check_variance(start, task.tau_0**2)
            check_variance(end, v_free / (1 - decay * h / 2))
            continue
        few = 4 * (2 / size / num) ** 0.5
        np.testing.assert_allclose(start.mean(), task.tau_0**2, rtol=few)
        check_variance(start, 2 * task.tau_0**4 / size, size)
        if place in (3, 6):
            rest = noise / (2 * pull)
            np.testing.assert_allclose(end.mean(), rest, rtol=few)
            check_variance(end, 2 * rest**2 / size / (1 - pull * h), size)
    # The signal of the noise: x = -c v / (c + 2 lambda), s = -c x / lambda.
    check_variance(found["V_trace"][:, 1], (d - 1) * c**2 * v / ((c + 2 * decay) * decay), d - 1)
    assert np.abs(found["W_trace"]).max() < 1e-4
    # Diagonals have d - 1 other entries, at the start with nothing but what roots have at zero.
    zero = np.stack([found["W_trace"][:, 0], found["V_trace"][:, 0]])
    np.testing.assert_allclose(zero.var(), (d - 1) * EPS, rtol=4 * (2 / zero.size) ** 0.5)
    # l has the variance of the output over 4, up to O(output^4).
    var = task.kappa / task.length * 3.0**4 * (d - 1) ** 2 * v / 2
    check_variance(found["K2"][:, 1], var / 4 / num_test, d - 1)


def test_signals_of_a_seed_move_as_their_equations_say() -> None:
    """With c = (2/n) dLoss/dv of the blocks of other entries, by differences on grids."""
    task, start = Prompts(12, 33, r=2.0, gamma0=0.8, s1=1.1, s2=0.9), np.array(START)
    rule, steps = Annealed(tau=0.15), np.diag(1e-4 * np.array(START))
    loss, stages = Components(task, rule, START, 15.0).loss, Annealing.of(rule)
    slope = np.array([(loss(start + e) - loss(start - e)) / (2 * e.sum()) for e in steps])
    held = {"W": (0.2, -0.03, 0.05), "V": (-0.4, 0.02, 0.07)}
    seed = Seed(ReducedState(*START), *(Signal(*each) for each in held.values()))
    model, t = field.checked_model(task, True, RULE), jnp.zeros(())
    moved = jax.jit(lambda seed: _seed_drift(model, t, seed, (task, stages)))(seed)
    for name, one, rest, size in (("W", 0, 3, 11 * 12), ("V", 1, 6, 11 * 11)):
        along, cross, square = held[name]
        c, decay = 2 / size * slope[rest], stages.decay
        want = (
            -slope[one] - decay * along,
            -c * START[rest] - (c + 2 * decay) * cross,
            -2 * c * cross - 2 * decay * square,
        )
        # The grid of |g| errs by 2e-4.
        np.testing.assert_allclose(jax.tree.leaves(getattr(moved, name)), want, rtol=1e-3)
    noise = _seed_noise(t, seed, (task, stages))
    amplitude = stages.eta_1**0.5 * stages.noise
    blocks = 2 * amplitude * np.sqrt(start[2:] / [11, 132, 11, 11, 121])
    np.testing.assert_allclose(
        jax.tree.leaves(noise), [amplitude, amplitude, *blocks, *6 * [0]], rtol=1e-12
    )


@pytest.mark.more
def test_what_a_seed_measures_is_drawn_about_its_state() -> None:
    """Losses with the variance of that of a prompt over their number, and traces. Without noise an
    entry R is its signal and its start, which decays as e = exp(-lambda t): a - e a(0), and for the
    others sqrt(v) - e sqrt(v(0)) times the normal numbers of the starts."""
    task, nodes = Prompts(5, 9, r=1.6, gamma0=0.8, s2=1.2, tau_0=0.2), Rule(2, 2, 2, 2)
    rule, names = Annealed(0.1, 0.1, 0.1, tau=0.0).build(), ("K1", "K2", "J")
    rule = dataclasses.replace(rule, eta=schedules.steps(0.1, (20, 60), (1, 1)))
    run = lambda key, number: solve_seed(
        task, rule, [0, 20.0, 60.0], key, num_test=number, rule=nodes, num_steps=60,
        record=(*names, "W_trace", "V_trace", "V_trace_abs", "state"),
    )  # fmt: skip
    keys, numbers = jax.random.split(jax.random.key(0), 64), jnp.array([1, 50, jnp.inf])
    found = jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, numbers)
    np.testing.assert_array_equal(found["V_trace_abs"], abs(found["V_trace"]))
    # All at first; states are the same for every number of prompts.
    state = np.moveaxis(np.asarray(found["state"])[0], 0, -1)

    def moments(state: jax.Array) -> tuple[tuple[jax.Array, ...], ...]:
        of = functools.partial(losses, ReducedState(*state), task, rule=nodes)
        return tuple(tuple(getattr(of(power=n), name) for name in names) for n in (1, 2))

    drawn = []
    mean, square = np.asarray(jax.jit(jax.vmap(moments))(state[0].T))
    for i, name in enumerate(names):
        one, many, every = np.asarray(found[name])[..., 0] - mean[i]
        # Of infinitely many prompts what is added under the root is left, 1e-6 of a normal number.
        np.testing.assert_allclose(every, 0, atol=5e-6)
        drawn.append(one / np.sqrt(square[i] - mean[i] ** 2))
        np.testing.assert_allclose(many * 50**0.5, one, rtol=1e-6)
    left = np.exp([0, -0.2, -0.6])[:, None]
    for name, one, block in (("W_trace", 0, 3), ("V_trace", 1, 6)):
        own = state[:, one] - left * state[0, one]
        rest = np.asarray(found[name])[0].T - own
        root = np.sqrt(state[:, block])
        middle, end = rest[1:] / np.abs(root - left * root[0])[1:]
        assert own[2].std() > 2 * rest[2].std() > 0.01
        # Euler's steps of 0.1, at rates below 1.
        assert np.median(np.abs(end / middle - 1)) < 0.05
        # A sum of d - 1 = 4 normal numbers.
        drawn.append(end / 2)
    # Four standard errors of 64 normal numbers.
    assert np.abs(np.mean(drawn, axis=1)).max() < 4 / 8
    np.testing.assert_allclose(np.std(drawn, axis=1), 1, atol=4 / 128**0.5)
    assert np.abs(np.corrcoef(drawn) - np.eye(5)).max() < 4 / 8


def gradients(a: float, b: float, v: float, num: int, rng: np.random.Generator) -> np.ndarray:
    """(2, num) gradients by a and by b of the default task: of queries with y = 1 in P, and with
    y = -1 in Q, of which nothing else has any; each token of their contexts by its score."""
    d, r, L = 32, 1.4, 129
    shape = (num, L - 1)
    g, h, e = rng.normal(size=(3, num, 1))
    labels, sides = rng.choice([-1.0, 1.0], size=(2, *shape))
    p, p_i = 1 + np.abs(g), 1 + np.abs(rng.normal(size=shape))
    w = a * p + np.sqrt((d - 1) * v) * h
    across = np.sqrt((d - 1) * v * (p**2 + d - 1)) * rng.normal(size=shape)
    on_P = labels * p_i, w, across, p
    v_0 = b * r + np.sqrt((d - 1) * v) * e
    across = np.sqrt((d - 1) * v * (r**2 + d - 1)) * rng.normal(size=shape)
    on_Q = np.where(labels > 0, 0, r * sides), v_0, across, r
    found = []
    for y, (along, score, rest, of_query) in ((1, on_P), (-1, on_Q)):
        scores = along * score + rest
        margin = y * (labels * np.maximum(scores, 0)).sum(1) / L
        slope = y * (labels * (scores > 0) * along * of_query).sum(1) / L
        found.append(-slope / (1 + np.exp(margin)))
    return np.array(found)


# Weights on their way, and those of the default preset at the start.
@pytest.mark.parametrize(("a", "b", "v"), [(0.7, 0.9, 0.015), (0.0, 0.25, 0.25**2)])
def test_variance_of_the_gradient_against_tokens_one_by_one(a: float, b: float, v: float) -> None:
    rng = np.random.default_rng(3)
    of_P, of_Q = np.concatenate([gradients(a, b, v, 1000, rng) for _ in range(40)], axis=1)
    found = gradient_variance(ReducedState(a, b, *(5 * (v,))), Prompts(32, 129))
    # Three standard errors; and of b what is O(1/L), 2.5 % at this length.
    for got, drawn, theory in ((found.a, of_P, 0.0), (found.b, np.r_[of_Q, 0 * of_Q], 0.025)):
        square = (drawn - drawn.mean()) ** 2
        error = square.std() / drawn.size**0.5
        np.testing.assert_allclose(got, square.mean(), rtol=theory, atol=3 * error)


def test_moments_of_the_gradient_are_those_of_two_joint_normals() -> None:
    """E[-sigmoid(-M) S] and E[sigmoid(-M)^2 S^2], on a grid over what M and S have in common; of S
    something is left that M does not know."""
    margin, slope, variance = (0.3, 1.2), (-0.4, 0.8), 1.5
    f = np.linspace(-9, 9, 20001)
    density = np.exp(-(f**2) / 2) / (2 * np.pi) ** 0.5 * (f[1] - f[0])
    gate = 1 / (1 + np.exp(margin[0] + margin[1] * f))
    along = slope[0] + slope[1] * f
    want = -density @ (gate * along), density @ (gate**2 * (along**2 + variance - slope[1] ** 2))
    pair = lambda numbers: tuple(jnp.array([number]) for number in numbers)
    found = _moments(pair(margin), pair(slope), np.array([variance]), np.ones(1), Rule(f=64))
    # 64 nodes of a function with poles at a distance of pi / 1.2.
    np.testing.assert_allclose(found, want, rtol=1e-6)
