"""The semidefinite complementarity problem: closed forms, its conditions, and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from odes.central.edge import complement as solve

SOLVE = jax.jit(solve)


def random_problem(k: int, seed: int, spread: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Some eigenvalues beyond the edge and some below, and B of full rank whose entries spread
    over powers of ten."""
    rng = np.random.default_rng(seed)
    E = rng.normal(size=(k, k, 3 * k))
    size = 10 ** (spread * rng.uniform(-1, 1, k))
    E = (E + E.transpose(1, 0, 2)) * (size[:, None] * size)[:, :, None]
    return np.diag(rng.normal(size=k)), E


@pytest.mark.parametrize("a", [-0.3, 0.0, 2.0])
def test_of_one_eigenvalue_is_a_quotient(a: float) -> None:
    with jax.enable_x64(True):
        found = SOLVE(jnp.array([[a]]), jnp.array([[[1.0, 2.0]]]))
    np.testing.assert_allclose(found.X, [[max(0, -a / 5)]], rtol=1e-14)
    assert found.solved


def test_of_separate_eigenvalues_is_least_squares_without_negative_numbers() -> None:
    """Where E_ij = 0 for i != j, X is diagonal: min |sum_i x_i E_ii + r|^2/2 with E^T r = A."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        rows, rest = rng.normal(size=(4, 6)), rng.normal(size=6)
        want = nnls(rows.T, -rest)[0]
        assert 0 < (want > 0).sum()
        with jax.enable_x64(True):
            E = jnp.zeros((4, 4, 6)).at[jnp.arange(4), jnp.arange(4)].set(rows)
            found = SOLVE(jnp.diag(jnp.asarray(rows @ rest)), E)
        # The tolerance of the solver, times the condition of B.
        np.testing.assert_allclose(found.X, np.diag(want), atol=1e-6)


@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-7), ("float32", 1e-2)])
@pytest.mark.more
def test_random_problems_satisfy_all_conditions(dtype: str, atol: float) -> None:
    for k in (2, 3, 4):
        problems = [random_problem(k, seed, spread=0.5) for seed in range(8)]
        A, E = (np.stack(each).astype(dtype) for each in zip(*problems, strict=True))
        with jax.enable_x64(dtype == "float64"):
            found = jax.vmap(SOLVE)(jnp.asarray(A), jnp.asarray(E))
        assert found.X.dtype == dtype
        assert np.all(found.solved)
        X = np.asarray(found.X, np.float64)
        # The other matrix and the products are NumPy's.
        slack = A + np.einsum("bklx,bkl,bijx->bij", E, X, E)
        np.testing.assert_allclose(found.slack, slack, atol=atol * np.abs(A).max())
        assert np.linalg.eigvalsh(X).min() > -atol
        assert np.linalg.eigvalsh(slack).min() > -atol
        size = 1 + np.abs(X).max(axis=(1, 2))
        assert (np.abs(np.einsum("bij,bij->b", X, slack)) / size).max() < atol
        # Neither is zero throughout, so that the products say something.
        assert X.max() > 0.1 > atol


def searched(A: np.ndarray, E: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, int]:
    """The answer and the number of iterations of accelerated projected gradients with restarts."""

    def projected(matrix: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(matrix)
        return vectors * np.maximum(values, 0) @ vectors.T

    k = len(A)
    root = np.linalg.norm(np.diagonal(E).T, axis=1) ** -0.5
    units = np.outer(root, root)
    a, e = A * units, (E * units[..., None]).reshape(k * k, -1)
    B = e @ e.T
    slope = lambda y: a + (B @ y.ravel()).reshape(k, k)
    most, least = np.linalg.eigvalsh(B)[-1], np.linalg.eigvalsh(a)[0]
    unsolved = lambda y: np.abs(y - projected(y - slope(y))).max() > -1e-9 * least
    y = ahead = near / units
    inertia, turns = 1.0, 0
    while unsolved(y):
        new = projected(ahead - slope(ahead) / most)
        following = (1 + np.sqrt(1 + 4 * inertia**2)) / 2
        along, inertia = (inertia - 1) / following, following
        if np.sum((ahead - new) * (new - y)) > 0:
            along, inertia = 0.0, 1.0
        y, ahead, turns = new, new + along * (new - y), turns + 1
    return y * units, turns


@pytest.mark.parametrize("size", [1.0, 0.1])
def test_the_search_takes_the_steps_of_its_algorithm(size: float) -> None:
    A, E = random_problem(3, 4, spread=0.5)
    near = 0.2 * np.eye(3)
    want, turns = searched(size * A, E, near)
    with jax.enable_x64(True):
        found = SOLVE(*map(jnp.asarray, (size * A, E, near)))
    assert turns > 20
    # A last step may be due to rounding.
    assert abs(int(found.turns) - turns) <= 1
    np.testing.assert_allclose(found.X, want, atol=1e-8 * np.abs(want).max())


def test_it_is_the_minimum_that_scipy_finds() -> None:
    """Of the convex function over X = R R^T, by a method that knows nothing of projections."""
    A, E = random_problem(3, 5)
    B = np.einsum("ijx,klx->ijkl", E, E)
    with jax.enable_x64(True):
        found = np.asarray(SOLVE(jnp.asarray(A), jnp.asarray(E)).X)

    def value(root: np.ndarray) -> float:
        X = root.reshape(3, 3) @ root.reshape(3, 3).T
        return np.einsum("ij,ijkl,kl", X, B, X) / 2 + np.sum(A * X)

    best = minimize(value, np.eye(3).ravel(), tol=1e-14)
    root = best.x.reshape(3, 3)
    # BFGS with differences gets half of the digits.
    np.testing.assert_allclose(found, root @ root.T, atol=1e-5)


def test_what_no_push_satisfies_is_not_solved() -> None:
    """Nothing changes the first eigenvalue, as on a quadratic loss."""
    E = jnp.zeros((2, 2, 3)).at[1, 1].set(1.0)
    found = SOLVE(jnp.diag(jnp.array([-1.0, 1.0])), E)
    assert (found.solved, found.turns) == (False, 2000)
    assert SOLVE(jnp.diag(jnp.array([1.0, -1.0])), E).solved


def test_a_search_that_starts_at_the_answer_ends_there() -> None:
    """And one that starts elsewhere finds the same, in units that differ by powers of ten."""
    with jax.enable_x64(True):
        A, E = (jnp.asarray(each) for each in random_problem(3, 4, spread=0.5))
        found = SOLVE(A, E)
        again, away = (SOLVE(A, E, near) for near in (found.X, 3 * found.X + jnp.eye(3)))
    assert found.turns > 10
    assert again.turns == 0
    np.testing.assert_allclose(again.X, found.X, rtol=1e-12)
    assert away.solved
    # The tolerance, in units of the norms of E_ii, times the condition of B.
    np.testing.assert_allclose(away.X, found.X, atol=1e-6 * np.abs(found.X).max())


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_without_negative_eigenvalues_zero_is_the_answer_wherever_the_search_starts(
    least: float,
) -> None:
    A = jnp.diag(jnp.array([least, 2.0]))
    found = SOLVE(A, jnp.ones((2, 2, 1)), jnp.eye(2))
    np.testing.assert_array_equal(found.X, 0)
    assert (found.solved, found.turns) == (True, 0)
