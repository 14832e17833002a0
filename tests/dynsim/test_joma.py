"""JoMA's layer and everything that is recorded of it, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import entr, logsumexp

import dynsim
from dynsim.joma import OBSERVABLES, Hidden, Joint
from dynsim.yz.model import Examples, population

TEMPERATURE = 0.7
PRIOR = np.array([0.5, 0.3, 0.2])
# Two queries, and tokens that some classes lack.
TASK = dynsim.sequence_classes(
    [[0.5, 0.3, 0.2, 0, 0], [0.2, 0.1, 0.3, 0.4, 0], [0, 0.6, 0.1, 0.1, 0.2]], [1, 0, 1],
    prior=PRIOR,
)  # fmt: skip
ROWS = [1, 0, 1]
EVERY = population(TASK)
PHI = {
    "linear": lambda u: u,
    "relu": lambda u: np.maximum(u, 0),
    "tanh": np.tanh,
    "quadratic": lambda u: u * u / 2,
}


def attended(kind: str, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    if kind == "linear":
        return z / TEMPERATURE * x
    weighed = np.exp(z / TEMPERATURE) * x
    return weighed if kind == "exp" else weighed / weighed.sum()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("attention", "activation", "head"),
    [
        ("linear", "tanh", "cross-entropy"),
        ("exp", "quadratic", "signal"),
        ("softmax", "relu", "cross-entropy"),
        ("softmax", "linear", "signal"),
    ],
)
def test_losses_and_observables_are_those_of_numpy(
    attention: str, activation: str, head: str
) -> None:
    problem = dynsim.JoMA(
        TASK, attention=attention, activation=activation, head=head, temperature=TEMPERATURE
    )
    rng = np.random.default_rng(0)
    V, r, Z = (rng.normal(size=shape) for shape in ((3, 5), (3, 2), (2, 5)))
    params = Joint(Hidden(V, r), Z)
    groups = problem.groups(params)
    assert (groups.Y, groups.Z) == ("Y", "Z")

    def loss(n: int, x: np.ndarray) -> float:
        h = PHI[activation](V @ attended(attention, Z[ROWS[n]], x) + r[:, ROWS[n]])
        return h.mean() - h[n] if head == "signal" else logsumexp(h) - h[n]

    b = np.array([attended(attention, Z[m], x) for m, x in zip(ROWS, TASK.probs, strict=True)])
    share = np.abs(b) / np.abs(b).sum(1, keepdims=True)
    left = {"linear": Z**2 / 2}.get(attention, TEMPERATURE * Z).sum(0)
    right = (V**2).sum(0) / 2
    if attention == "softmax":
        right = right - (V**2).sum() * (PRIOR @ TASK.probs) / 2
    want = {
        "loss": PRIOR @ [loss(n, x) for n, x in enumerate(TASK.probs)],
        "entropy": PRIOR @ entr(share).sum(1),
        "correlation": np.corrcoef(left, right)[0, 1],
        "conserved": left - right,
        "weight": np.linalg.norm(V, axis=0),
        "logits": Z,
        "attended": b,
    }
    # Sequences of a batch, with weights of their own.
    classes, weight = np.array([2, 0, 2, 1]), np.array([0.1, 0.2, 0.3, 0.4])
    counts = np.array([[0, 3, 1, 0, 2], [2, 1, 0, 0, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 0]])

    @jax.jit
    def found(params: Joint) -> tuple:
        (snapshot,) = problem.snapshot(params)
        batch = problem.loss(params, Examples(classes, counts, weight))
        return {name: measured(snapshot) for name, measured in OBSERVABLES.items()}, batch

    observed, batch = found(params)
    assert {*observed} == {*want}
    for name, value in want.items():
        np.testing.assert_allclose(observed[name], value, rtol=1e-12, err_msg=name)
    losses = [loss(n, x / x.sum()) for n, x in zip(classes, counts, strict=True)]
    assert float(batch) == pytest.approx(weight @ losses, rel=1e-12)


@pytest.mark.parametrize("attention", ["linear", "exp"])
def test_weights_start_normal_and_linear_attention_at_one(attention: str) -> None:
    """Within six standard errors of mean and variance."""
    task = dynsim.Overlapping(40).build()
    start = dynsim.JoMA(task, attention=attention, scale=0.3).init(jax.random.key(0))
    assert start.Z.shape == (40, 205)
    for part, mean in ((start.Y.V, 0), (start.Y.r, 0), (start.Z, float(attention == "linear"))):
        entries = (np.asarray(part, float).ravel() - mean) / 0.3
        assert abs(entries.mean()) < 6 / entries.size**0.5
        assert abs(entries.var() - 1) < 6 * (2 / entries.size) ** 0.5


def test_tokens_that_a_class_lacks_get_no_attention_however_large_their_logits() -> None:
    """Nor do the others lose theirs, or their derivatives."""
    problem = dynsim.JoMA(TASK)
    Z = jnp.zeros((2, 5)).at[:, 4].set(1e4)
    both = jax.jit(lambda Z: (problem.attended(Z, EVERY), jax.jacfwd(problem.attended)(Z, EVERY)))
    b, slope = both(Z)
    np.testing.assert_allclose(b[:2], TASK.probs[:2], rtol=1e-6)
    assert np.isfinite(slope).all()


def test_softmax_attention_is_that_of_large_logits_too() -> None:
    """Exponentials of 100 and more overflow in float32."""
    problem = dynsim.JoMA(TASK)
    z = np.random.default_rng(0).normal(size=(2, 5))
    found = jax.jit(lambda Z: problem.attended(Z, EVERY))(jnp.asarray(100 + z, "float32"))
    want = np.exp(z[ROWS]) * TASK.probs
    # Rounding of 100 in float32.
    np.testing.assert_allclose(found, want / want.sum(1, keepdims=True), rtol=2e-5)


@pytest.mark.usefixtures("x64")
def test_correlation_depends_on_no_scale_and_is_zero_where_a_side_does_not_vary() -> None:
    problem = dynsim.JoMA(TASK, attention="exp")
    rng = np.random.default_rng(0)
    V, r, Z = (rng.normal(size=shape) for shape in ((3, 5), (3, 2), (2, 5)))
    found = jax.jit(lambda params: OBSERVABLES["correlation"](*problem.snapshot(params)))
    want = np.corrcoef(Z.sum(0), (V**2).sum(0))[0, 1]
    for scale in (1, 1e-4):
        assert float(found(Joint(Hidden(scale * V, r), scale * Z))) == pytest.approx(want, rel=1e-9)
    assert float(found(Joint(Hidden(0 * V, r), Z))) == 0
