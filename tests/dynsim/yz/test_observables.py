"""Everything that is recorded of the layer in Y and Z, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import dynsim
from dynsim.yz import observables
from dynsim.yz.observables import MEASURED, RECALL_THRESHOLDS

# Class 0 has two distinct tokens, class 1 one, class 2 none, class 3 no common one, and token 7 is
# in no class; unequal priors; the most probable token of a kind is not the first of its kind.
PROBS = np.array(
    [
        [0.1, 0.2, 0.25, 0.45, 0, 0, 0, 0],
        [0.3, 0.4, 0, 0, 0.3, 0, 0, 0],
        [0.45, 0.55, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0.6, 0.4, 0],
    ]
)
PRIOR, ROWS, NEXT = np.array([0.4, 0.1, 0.3, 0.2]), [1, 0, 1, 0], [3, 1, 6, 0]
TASK = dynsim.sequence_classes(PROBS, [7, 4, 7, 4], NEXT, PRIOR)
FEWER = dynsim.sequence_classes(PROBS[[0, 1, 3]], [7, 4, 4], [3, 1, 0])
DISTINCT, COMMON = [[2, 3], [4], [], [5, 6]], [[0, 1], [0, 1], [0, 1], []]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("residual", [False, True])
def test_observables_are_those_of_numpy(residual: bool) -> None:
    rng = np.random.default_rng(2)
    Y, Z = 2 * rng.normal(size=(8, 8)), rng.normal(size=(2, 8))
    # Classes 0 and 3 predict their next tokens, the others do not.
    Y[2:4, 3], Y[5:7, 0] = 20, 20
    z, nan = Z[ROWS], np.nan
    c = PROBS * np.exp(z)
    c /= c.sum(1, keepdims=True)
    f = c / np.linalg.norm(c, axis=1, keepdims=True)
    queries = np.eye(8)[[7, 4, 7, 4]]
    size = np.linalg.norm(f + queries, axis=1, keepdims=True)
    h = (f + queries) / size if residual else f
    logits = h @ Y
    g = (np.eye(8)[NEXT] - softmax(logits, axis=1)) @ Y.T
    if residual:
        g = (g - h * (h * g).sum(1, keepdims=True)) / size
    own = [softmax(np.log(c[n, d])) for n, d in enumerate(DISTINCT) if d]
    speed = (f * g).sum(1)
    drive = f * (g - f * speed[:, None])
    top = lambda kind: [z[n, t[np.argmax(PROBS[n, t])]] if t else nan for n, t in enumerate(kind)]
    gain = [drive[n, d].sum() / (f[n, d] ** 2).sum() if d else nan for n, d in enumerate(DISTINCT)]
    hit = logits.argmax(1) == NEXT
    assert hit.tolist() == [True, False, False, True]
    above = np.concatenate([c[n, d] for n, d in enumerate(DISTINCT)])
    want = {
        "loss": -PRIOR @ log_softmax(logits, axis=1)[range(4), NEXT],
        "accuracy": PRIOR @ hit,
        # Class 2 has no distinct token to have an entropy.
        "entropy": nan,
        "z_top_distinct": top(DISTINCT),
        "z_top_common": top(COMMON),
        "speed": speed,
        "xi": gain,
        "overlap": f @ f.T,
        "attention": c,
        "normalised_attention": f,
        "z": z,
        "recall": [(above > 10 ** (k / 20) / 8).mean() for k in range(-40, 21)],
    }

    @jax.jit
    def observed(task: dynsim.SequenceClasses, Y: jax.Array, Z: jax.Array) -> dict[str, jax.Array]:
        s = observables.measure(task, dynsim.YZ(Y, Z, residual))
        found = {name: function(task, s) for name, function in MEASURED.functions.items()}
        # The entropy of the classes that have distinct tokens: 0 and 1 have common ones as before.
        part = jax.tree.map(lambda leaf: leaf[jnp.array([0, 1, 3])], s)
        return {**found, "some": observables.entropy(FEWER, part)}

    found = observed(TASK, Y, Z)
    want["some"] = np.mean([-(p * np.log(p)).sum() for p in own])
    assert {*found} == {*want}
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


def test_entropy_can_be_differentiated_where_a_token_has_no_attention() -> None:
    """Exponentials of -200 vanish in float32; of the others, shares s have -s (log s + entropy)."""
    task = dynsim.sequence_classes([[0.2, 0.3, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]], [0, 1])

    def measured(z: jax.Array) -> jax.Array:
        Z = jnp.zeros((2, 4)).at[0, :3].set(z)
        return observables.entropy(task, observables.measure(task, dynsim.YZ(jnp.zeros((4, 4)), Z)))

    found, slope = jax.jit(jax.value_and_grad(measured))(jnp.array([0.4, -0.3, -200.0]))
    share = softmax(np.log([0.2, 0.3]) + np.array([0.4, -0.3]))
    entropy = -(share * np.log(share)).sum()
    # The mean over two classes, of which the second has one token.
    assert float(found) == pytest.approx(entropy / 2, rel=1e-5)
    want = [*(-share * (np.log(share) + entropy) / 2), 0]
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-7)


def test_before_the_first_step_every_class_counts_as_wrong() -> None:
    """All logits are equal then, and the largest is not strictly so."""
    measured = jax.jit(
        lambda Y: observables.accuracy(
            TASK, observables.measure(TASK, dynsim.YZ(Y, jnp.zeros((2, 8))))
        )
    )
    assert float(measured(jnp.zeros((8, 8)))) == 0


def test_recall_has_twenty_thresholds_for_a_factor_of_ten() -> None:
    np.testing.assert_allclose(np.log10(RECALL_THRESHOLDS), np.arange(-40, 21) / 20, atol=1e-12)


def test_attention_at_a_threshold_does_not_exceed_it() -> None:
    """Of four distinct tokens among eight, each has two eighths at zero weights."""
    task = dynsim.sequence_classes(np.eye(2).repeat(4, axis=1) / 4, [0, 1])
    found = observables.recall_at([1.9, 2.0])(
        task, observables.measure(task, dynsim.YZ(jnp.zeros((8, 8)), jnp.zeros((2, 8))))
    )
    np.testing.assert_array_equal(found, [1, 0])
