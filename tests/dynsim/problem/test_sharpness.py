"""Recorded sharpness against NumPy's eigenvalues of Hessians that are known or written out."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dynsim
import odes
from dynsim import schedules
from dynsim.joma import Hidden, Joint
from dynsim.problem import sharpness
from dynsim.problem.train import drawn
from dynsim.two_stage.model import PQ, Split
from tests.dynsim.problem.test_train import Net

KEY = jax.random.key(2)
# LOBPCG promises 1e-3 of the largest eigenvalue, and has its square; float32 adds little.
RTOL = 1e-4


class Quadratic(dynsim.Problem):
    """w^T A w / 2 on two groups of weights, with a quartic that bends it along the last one."""

    A: Any
    bend: float = 0.0

    def init(self, key):
        n = len(self.A)
        return {"a": jnp.full(n // 2, 0.5), "b": jnp.full(n - n // 2, 0.5)}

    def population_loss(self, params):
        w = jnp.concatenate([params["a"], params["b"]])
        return w @ self.A @ w / 2 + self.bend * w[-1] ** 4 / 12

    def groups(self, params):
        return {"a": "a", "b": "b"}


def matrix(values: Any, n: int, seed: int = 0) -> np.ndarray:
    """A random symmetric matrix with these eigenvalues, all others between -1 and 1."""
    rng = np.random.default_rng(seed)
    rest = rng.uniform(-1, 1, n - len(values))
    Q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    return (Q * np.concatenate([values, rest])) @ Q.T


def descended(problem: dynsim.Problem, rule: Any, *names: str, **options: Any) -> dict[str, Any]:
    given = {"steps": 3, "times": [0, 1, 3], "batch": math.inf, "dtype": "float64"} | options
    return dynsim.train(problem, rule, KEY, record=list(names), **given).observables


@pytest.mark.parametrize(("n", "dtype"), [(12, "float64"), (300, "float32")])
@pytest.mark.more
def test_several_equal_and_negative_eigenvalues_are_found(n: int, dtype: Any) -> None:
    values = [7.0, 5.0, 5.0, 5.0, 3.0]
    problem = Quadratic(matrix(values, n))
    names = [f"sharpness_{i}" for i in range(1, 6)]
    found = descended(problem, dynsim.sgd(0.01), "sharpness", *names, dtype=dtype)
    np.testing.assert_allclose(found["sharpness"], 7, rtol=RTOL)
    for name, want in zip(names, values, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=RTOL)
    below = descended(Quadratic(-matrix([3.0], n) - 5 * np.eye(n)), dynsim.sgd(0.01), "sharpness")
    want = np.linalg.eigvalsh(-matrix([3.0], n) - 5 * np.eye(n))[-1]
    np.testing.assert_allclose(below["sharpness"], want, rtol=2e-3)


def test_a_direction_that_was_not_looked_at_is_found_once_it_grows() -> None:
    """The eigenvectors of the record before are exact, and span nothing of the new one."""
    values = np.linspace(0, 1, 300)
    values[:3] = 5, 4, 6
    before = jnp.eye(300)[:, :2]
    find = jax.jit(lambda d: sharpness.largest(lambda v: d * v, jnp.zeros(300), 2, before, 1)[0])
    # Whatever the size of the matrix.
    for scale in (1.0, 1e-9, 1e9):
        found = find(jnp.asarray(scale * values, "float32"))
        np.testing.assert_allclose(found, [6 * scale, 5 * scale], rtol=RTOL)


def test_matrices_without_a_largest_eigenvalue_are_data() -> None:
    begin = jnp.eye(300)[:, :1]
    find = jax.jit(
        jax.vmap(lambda c: sharpness.largest(lambda v: c * v, jnp.zeros(300), 1, begin, 1)[0])
    )
    found = find(jnp.array([0.0, jnp.nan, jnp.inf, 2.0]))[:, 0]
    # Rounding, which differs between processors.
    np.testing.assert_allclose(found, [0, np.nan, np.nan, 2], rtol=1e-6)


class Drawn(Quadratic):
    """w^T H w / 2 with the Hessian H of each step, and no population loss."""

    population_loss = dynsim.Problem.population_loss

    def loss(self, params, data):
        w = jnp.concatenate([params["a"], params["b"]])
        return w @ data[0] @ w / 2


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_the_preconditioner_is_that_of_the_next_update(kind: str) -> None:
    """Written out in NumPy: averages of squares of the gradients up to that of the next batch,
    rates that rise for one group of weights and fall for the other, and coupled decay, which the
    preconditioner divides."""
    hessians = np.stack([matrix([7.0 + k, 5.0], 4, k) for k in range(4)])
    b1, b2, eps, decay, one = 0.8, 0.9, 1e-3, 0.5, np.eye(4)
    options = {"b1": b1} if kind == "adam" else {}
    eta = {"a": schedules.constant(0.1, warmup=3), "b": schedules.linear(0.2, 3, 0.1)}
    rule = getattr(dynsim, kind)(eta, b2=b2, eps=eps, decay=decay, **options)
    given = {"times": range(4), "batch": 1, "data": hessians[:, None]}
    names = "preconditioned_sharpness", "sharpness"
    found = descended(Drawn(hessians[0]), rule, *names, **given)
    w, m, v = np.full(4, 0.5), np.zeros(4), np.zeros(4)
    for k, H in enumerate(hessians):
        rates = np.repeat([0.1 * k / 3, 0.2 * (1 - 0.3 * k)], 2)
        g = (H + decay * one) @ w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        adam = kind == "adam"
        P = np.sqrt(v / (1 - b2 ** (k + 1)) if adam else v) + eps
        c = (1 - b1) / (1 + b1) if adam else 1
        want = np.linalg.eigvals(c * (rates / P)[:, None] * (H + decay * one)).real.max()
        np.testing.assert_allclose(found["preconditioned_sharpness"][k], want, rtol=1e-10)
        np.testing.assert_allclose(found["sharpness"][k], np.linalg.eigvalsh(H)[-1], rtol=1e-10)
        w = w - rates * (m / (1 - b1 ** (k + 1)) if adam else g) / P


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_preconditioned_sharpness_is_that_of_the_rates_of_its_step(nesterov: bool) -> None:
    """Scaled by 2 over the value, the step with momentum, rates and decay by group has the
    eigenvalue -1, at each of the steps along which rates change."""
    A, mu, decay, one = matrix([7.0, 5.0], 4), 0.6, np.diag([0.0, 0.0, 3.0, 3.0]), np.eye(4)
    A = A @ A
    eta = {"a": schedules.linear(0.02, 3, 0.1), "b": schedules.constant(0.05, warmup=3)}
    options = {"momentum": mu, "nesterov": nesterov, "decay": {"b": 3.0}}
    found = descended(Quadratic(A), dynsim.sgd(eta, **options), "preconditioned_sharpness")
    for value, k in zip(found["preconditioned_sharpness"], (0, 1, 3), strict=True):
        rates = np.repeat([0.02 * (1 - 0.3 * k), 0.05 * k / 3], 2)
        E, H = np.diag(2 / value * rates), A + decay
        # The velocity becomes mu v + H w, and weights move by it, Nesterov's by one more such.
        v, w = np.hstack([mu * one, H]), np.hstack([0 * one, one])
        moved = w - E @ (mu * v + np.hstack([0 * one, H]) if nesterov else v)
        # Rounding.
        assert np.abs(np.linalg.eigvals(np.vstack([v, moved])) + 1).min() < 1e-9


@functools.partial(jax.jit, static_argnums=0)
def hessian(loss: Any, params: Any, data: Any) -> jax.Array:
    flat, unravel = ravel_pytree(params)
    return jax.hessian(lambda p: loss(unravel(p), data))(flat)


def eigenvalues(loss: Any, params: Any, data: Any) -> np.ndarray:
    """Those of the Hessian, written out, the largest first."""
    return np.linalg.eigvalsh(hessian(loss, params, data))[::-1]


@pytest.mark.more
def test_a_network_has_the_eigenvalues_of_the_hessian_of_the_next_batch() -> None:
    problem, rule = Net(), dynsim.sgd(0.1)
    options = {"steps": 8, "batch": 16, "times": [0, 1, 8], "dtype": "float32"}
    found = descended(problem, rule, "sharpness", "sharpness_3", "params", **options)
    data = drawn(problem, KEY, 8, 16)
    weights, rest = eqx.partition(problem.init(KEY), eqx.is_inexact_array)
    paths, structure = jax.tree.flatten_with_path(weights)
    names = ["params." + jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in paths]
    loss = lambda p, batch: problem.loss(eqx.combine(p, rest), batch)
    for i, k in enumerate(options["times"]):
        now = jax.tree.unflatten(structure, [found[name][i] for name in names])
        batch = jax.tree.map(lambda leaf, k=k: leaf[k], data)
        want = eigenvalues(loss, now, batch)
        np.testing.assert_allclose(found["sharpness"][i], want[0], rtol=RTOL)
        np.testing.assert_allclose(found["sharpness_3"][i], want[2], rtol=RTOL)


def test_the_largest_number_of_eigenvalues_is_allowed() -> None:
    # LOBPCG needs more than five times as many weights as eigenvalues and one more.
    for n, most in ((201, 39), (300, 58)):
        vectors = sharpness.starting_vectors(jnp.zeros(n), {"sharpness": most})
        assert vectors["sharpness"].shape == (n, most)


@pytest.mark.more
def test_runs_of_a_batch_have_the_sharpness_that_they_have_alone() -> None:
    """Also beside one that diverges, whose sharpness is not a number at its end."""
    problem = Quadratic(matrix([7.0, 5.0], 300), bend=1.0)

    def run(eta: Any) -> Any:
        rule = dynsim.sgd(eta)
        options = {"steps": 9, "times": [0, 3, 9], "batch": math.inf, "dtype": "float32"}
        return dynsim.train(problem, rule, KEY, record="sharpness", **options)["sharpness"]

    found = jax.vmap(run)(jnp.array([0.05, 0.2, 1e9]))
    # Rounding differs in a batch.
    np.testing.assert_allclose(found[0], run(0.05), rtol=RTOL)
    np.testing.assert_allclose(found[1], run(0.2), rtol=RTOL)
    assert np.isnan(found[2, -1])


@pytest.mark.parametrize("n", [12, 300])
@pytest.mark.more
def test_the_sharpness_has_derivatives_of_both_modes(n: int) -> None:
    """By the coefficient of the quartic: w^2 of the last weight, the top eigenvector."""
    A = np.diag(np.linspace(0, 1, n))

    def last(bend: Any) -> Any:
        rule = dynsim.sgd(0.1)
        options = {"steps": 1, "times": [0], "batch": math.inf, "dtype": "float32"}
        run = dynsim.train(Quadratic(A, bend), rule, KEY, record="sharpness", **options)
        return run["sharpness"][0]

    for derivative in (jax.grad(last), jax.jacfwd(last)):
        np.testing.assert_allclose(derivative(jnp.float32(20.0)), 0.25, rtol=1e-3)


@pytest.mark.more
def test_flows_record_the_sharpness_of_their_weights() -> None:
    """Of an exact quartic: the Hessian along the flow of its only bent weight."""
    problem = Quadratic(np.diag([0.0, 0.0, 0.0, 2.0]), bend=3.0)
    rule = dynsim.sgd(0.1, decay=0.5)
    names = ["sharpness", "preconditioned_sharpness", "params"]
    found = odes.flow(problem, rule, [0, 5, 20], key=KEY, record=names)
    w = found["params.b"][:, -1]
    np.testing.assert_allclose(found["sharpness"], 2 + 3 * w**2, rtol=1e-9)
    np.testing.assert_allclose(found["preconditioned_sharpness"], 0.1 * (2.5 + 3 * w**2), rtol=1e-6)


@pytest.mark.more
def test_where_no_population_loss_holds_the_sharpness_is_that_of_the_next_batch() -> None:
    """JoMA's is one of infinite sequences, so that finite ones have that of their batch."""
    task = dynsim.sequence_classes([[0.6, 0.4, 0.0], [0.3, 0.0, 0.7]], [0, 0])
    problem, rule = dynsim.JoMA(task, 6, scale=1.0, activation="tanh"), dynsim.sgd(0.1)
    record = ["sharpness", "params"]
    run = dynsim.train(problem, rule, KEY, steps=1, times=[0], batch=4, record=record)
    params = Joint(
        Hidden(run["params.Y.V"][0], run["params.Y.r"][0]),
        run["params.Z"][0],
    )
    data = jax.tree.map(lambda leaf: leaf[0], drawn(problem, KEY, 1, 4))
    want = eigenvalues(lambda p, batch: problem.loss(p, batch), params, data)
    # float32.
    np.testing.assert_allclose(run["sharpness"][0], want[0], rtol=1e-4)


@pytest.mark.more
def test_prompts_have_the_hessian_by_the_signal_alone() -> None:
    """Two-stage weights are a sum, of which gradients move one part."""
    task, rule = dynsim.Prompts(3, 5, tau_0=0.25, pool=8, num_test=2), dynsim.sgd(0.1)
    record = ["sharpness", "params"]
    run = dynsim.train(task, rule, KEY, steps=1, times=[0], batch=8, record=record)
    held, shared = task.prepare(KEY)
    # A batch of the pool, by the same keys.
    chosen = held.batches(KEY, 1, 8)(jnp.int32(0))
    data = jax.tree.map(lambda leaf: leaf[chosen], task.prompts(shared.pool))
    zero = task.init(KEY)
    noise = PQ(run["params.noise.W"][0], run["params.noise.V"][0])
    want = eigenvalues(
        lambda signal, data: task.loss(Split(signal, noise), data), zero.signal, data
    )
    # float32.
    np.testing.assert_allclose(run["sharpness"][0], want[0], rtol=1e-4)


@pytest.mark.more
def test_a_resumed_run_goes_on_with_the_same_eigenvectors() -> None:
    problem = Quadratic(matrix([7.0, 6.9], 300), bend=1.0)
    train = functools.partial(
        dynsim.train, problem, dynsim.sgd(0.05), KEY, batch=math.inf, record="sharpness"
    )
    half = train(steps=4, times=[2, 4], checkpoint=True)
    rest = train(steps=8, times=[6, 8], checkpoint=half.checkpoint)
    whole = train(steps=8, times=[2, 4, 6, 8], checkpoint=True)
    np.testing.assert_array_equal(
        np.concatenate([half["sharpness"], rest["sharpness"]]), whole["sharpness"]
    )
