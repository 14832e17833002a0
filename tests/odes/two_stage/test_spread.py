"""Standard deviation over seeds, and finite length: prompts and tokens one by one in NumPy."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynsim import schedules
from dynsim.two_stage.annealing import Annealed, Annealing
from dynsim.two_stage.model import PQ, data_loss
from dynsim.two_stage.task import Prompts, sample_prompts
from odes.two_stage import field, finite_length
from odes.two_stage.loss import ReducedState, Rule, losses
from odes.two_stage.sde import Seed, Signal, _seed_drift, _seed_noise, solve_seed
from tests.systems.two_stage import RULE, on_grids

pytestmark = pytest.mark.usefixtures("x64")
START = (0.3, 0.6, 0.03, 0.03, 0.04, 0.015, 0.01)


def test_state_and_signals_of_a_seed_move_as_their_equations_say():
    """Every number goes down K1 + K2, by differences on grids; all weights decay, and noise feeds
    the variances. Signals have c = (2/n) dLoss/dv of the blocks of other entries."""
    task, start = Prompts(12, 33, r=2.0, gamma0=0.8, s1=1.1, s2=0.9), np.array(START)
    stages = Annealing.of(Annealed(tau=0.15))

    def loss(x):
        of_P, *of_Q = (each.mean_of(np.logaddexp) for each in on_grids(task, x))
        return of_P + sum(of_Q) / 2

    steps = np.diag(1e-4 * start)
    slope = np.array([(loss(start + e) - loss(start - e)) / (2 * e.sum()) for e in steps])
    held = {"W": (0.2, -0.03, 0.05), "V": (-0.4, 0.02, 0.07)}
    seed = Seed(ReducedState(*START), *(Signal(*each) for each in held.values()))
    model, t = field.checked_model(task, True, RULE), jnp.zeros(())
    moved = jax.jit(lambda seed: _seed_drift(model, t, seed, (task, stages)))(seed)
    sizes, noise = np.array([11, 11 * 12, 11, 11, 11 * 11]), stages.eta_1 * stages.noise**2
    down = -4 / sizes * start[2:] * slope[2:] - 2 * stages.decay * start[2:] + noise
    down = np.r_[-slope[:2] - stages.decay * start[:2], down]
    # The grid of |g| errs by 2e-4.
    np.testing.assert_allclose(jax.tree.leaves(moved.total), down, rtol=4e-4)
    for name, one, rest, size in (("W", 0, 3, 11 * 12), ("V", 1, 6, 11 * 11)):
        along, cross, square = held[name]
        c, decay = 2 / size * slope[rest], stages.decay
        want = (
            -slope[one] - decay * along,
            -c * START[rest] - (c + 2 * decay) * cross,
            -2 * c * cross - 2 * decay * square,
        )
        np.testing.assert_allclose(jax.tree.leaves(getattr(moved, name)), want, rtol=1e-3)
    noise = _seed_noise(t, seed, (task, stages))
    amplitude = stages.eta_1**0.5 * stages.noise
    blocks = 2 * amplitude * np.sqrt(start[2:] / sizes)
    np.testing.assert_allclose(
        jax.tree.leaves(noise), [amplitude, amplitude, *blocks, *6 * [0]], rtol=1e-12
    )


@pytest.mark.more
def test_what_a_seed_measures_is_drawn_about_its_state():
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

    def moments(state):
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
    # At the start a block has the mean square of so many normal numbers.
    for size, block in zip([4, 20, 4, 4, 16], state[0, 2:], strict=True):
        np.testing.assert_allclose(block.mean(), 0.2**2, rtol=4 * (2 / size / 64) ** 0.5)
        spread = 4 * ((2 + 12 / size) / 64) ** 0.5
        np.testing.assert_allclose(block.var(), 2 * 0.2**4 / size, rtol=spread)
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


TASK = Prompts(4, 7, gamma0=0.8, s1=0.6, r=1.4)


@pytest.mark.parametrize("component", ["P", "Q"])
def test_outputs_have_the_moments_of_their_tokens(component):
    """Six tokens of seven places, drawn one by one, and drawn contexts. Noise across is as large
    as the score, so that tokens of either side pass the ReLU."""
    num, score, across, rng = 200_000, np.array([0.7]), np.array([1.0]), np.random.default_rng(0)
    label, side = rng.choice([-1.0, 1.0], size=(2, num))
    margin, noise = rng.normal(size=(2, num))
    signal = label * (0.8 + 0.6 * abs(margin))
    signal = signal if component == "P" else np.where(label > 0, 0, 1.4 * side)
    token = label * np.maximum(signal * score + across * noise, 0)
    mean, deviation = finite_length.output_moments(TASK, score, across, component)
    # Four standard errors of the mean, and of the deviation at a kurtosis of 5.
    np.testing.assert_allclose(mean, 6 / 7 * token.mean(), atol=4 * token.std() / num**0.5)
    np.testing.assert_allclose(deviation, np.sqrt(6 * token.var()) / 7, rtol=0.01)
    many = (np.repeat(each, num) for each in (score, across))
    found = finite_length.sample_outputs(TASK, *many, component, rng)
    np.testing.assert_allclose(found.mean(), mean, atol=4 * found.std() / num**0.5)
    np.testing.assert_allclose(found.std(), deviation, rtol=4 / num**0.5)


def test_sampled_weights_have_the_numbers_of_their_state():
    d, numbers = 400, np.array([1.3, -0.7, *np.arange(3, 8) / 20])
    U = ReducedState(*numbers).sample(d, np.random.default_rng(0))
    found = jax.tree.leaves(ReducedState.from_weights(U.W, U.V))
    # Four standard errors of a mean of d - 1 squares.
    np.testing.assert_allclose(found, numbers, rtol=4 * math.sqrt(2 / (d - 1)))


def test_variances_of_gradients_are_those_of_single_prompts():
    """The same prompts, one by one, in chunks of 256; of 600 prompts those of whole chunks."""
    task, rng = Prompts(3, 5), np.random.default_rng(0)
    U = PQ(*rng.normal(size=(2, 3, 3)).astype(np.float32))
    one = jax.grad(lambda U, prompt: data_loss(U, task.coupling, prompt))
    alone = lambda prompt: one(U, jax.tree.map(lambda leaf: leaf[None], prompt))
    chunks = [sample_prompts(task, key, 256) for key in jax.random.split(jax.random.key(1), 2)]
    each = [jax.tree.leaves(jax.jit(jax.vmap(alone))(drawn)) for drawn in chunks]
    W, V = (np.concatenate(part).var(axis=0) for part in zip(*each, strict=True))
    want = [W[0, 0], V[0, 0], W[0, 1:].mean(), W[1:].mean()]
    want += [V[0, 1:].mean(), V[1:, 0].mean(), V[1:, 1:].mean()]
    # float32 gradients of one, and many squared.
    found = jax.tree.leaves(finite_length.gradient_variances(task, U, 600))
    np.testing.assert_allclose(found, want, rtol=1e-4)
