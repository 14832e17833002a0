"""Training on text: against a plain loop, its records against closed forms, status, bad input."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import LanguageModel, Status, Text, TransformerSpec
from dynsim.transformer import model
from dynsim.transformer.model import Transformer

M, T, BATCH = 9, 5, 3
SIZES = TransformerSpec(M, T, layers=1, heads=2, width=4, mlp=3)
RECORD = ("loss", "entropy", "layer_entropy", "top", "change", "layer_change", "attention")


def make(key):
    """The starting weights of a run, and the key of its windows; drawn in 32 bits."""
    with jax.enable_x64(False):
        init_key, data_key = jax.random.split(key)
        start = jax.jit(Transformer, static_argnums=0)(SIZES, init_key)
    return jax.tree.map(lambda leaf: leaf.astype(float), start), data_key


def windows_of(text: Text, data_key, k: int):
    with jax.enable_x64(False):
        starts = jax.random.randint(jax.random.fold_in(data_key, k), (BATCH,), 0, 60 - T)
    return np.stack([text.train[s : s + T + 1] for s in np.asarray(starts)])


@pytest.fixture
def task() -> Text:
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, M, (2, T))
    return Text(rng.integers(0, M, 60), rng.integers(0, M, 40), M, prompts)


def model_of(task: Text, num_held_out: int = 64) -> LanguageModel:
    return LanguageModel(task, 1, 2, 4, 3, length=T, num_held_out=num_held_out)


@jax.jit
def window_loss(model, windows):
    logits = jax.lax.map(model, windows[:, :-1])
    picked = jax.nn.log_softmax(logits)[
        np.arange(len(windows))[:, None], np.arange(T), windows[:, 1:]
    ]
    return -picked.mean()


RULES = {
    "momentum": functools.partial(dynsim.sgd, momentum=0.8),
    "adam": functools.partial(dynsim.adam, b1=0.7, b2=0.9, eps=1e-3),
}
LOSS = jax.jit(window_loss)
VALUE_AND_GRAD = jax.jit(jax.value_and_grad(window_loss))
attention = jax.jit(Transformer.attention)


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_training_is_a_plain_loop(task: Text) -> None:
    """Windows are those of the run's key, from the definition; gradients and updates are a loop's,
    and the records those of the weights of each step. The run is one of two in a batch."""
    keys, etas = jax.random.split(jax.random.key(5)), np.array([0.1, 0.7])
    run = lambda eta, key: dynsim.train(
        model_of(task, 4), dynsim.sgd(eta), key, steps=3, batch=BATCH,
        times=np.array([0, 2, 3]), record=RECORD, dtype="float64",
    )  # fmt: skip
    found = jax.tree.map(lambda leaf: leaf[1], jax.vmap(run)(etas, keys))
    key, eta = keys[1], etas[1]
    model, data_key = make(key)
    held_out = [task.held_out[s : s + T + 1] for s in (0, 11, 22, 34)]
    before, seen = None, []
    for k in range(4):
        windows = windows_of(task, data_key, k)
        loss, grads = VALUE_AND_GRAD(model, windows)
        if k in (0, 2, 3):
            i = len(seen)
            assert found["batch_loss"][i] == pytest.approx(float(loss), rel=1e-10)
            of_text = float(LOSS(model, np.stack(held_out)))
            assert found["loss"][i] == pytest.approx(of_text, rel=1e-10)
            maps = np.stack([attention(model, row[:-1]) for row in held_out])
            before = maps if before is None else before
            moved = np.abs(maps - before).sum(-1)[..., 1:].mean((0, 2, 3)) / 2
            np.testing.assert_allclose(found["layer_change"][i], moved, rtol=1e-9, atol=1e-15)
            assert found["change"][i] == pytest.approx(moved.mean(), rel=1e-9, abs=1e-15)
            entropy = -(maps * np.log(np.where(maps > 0, maps, 1))).sum(-1)[..., 1:].mean()
            np.testing.assert_allclose(found["layer_entropy"][i], [entropy], rtol=1e-9)
            assert found["entropy"][i] == pytest.approx(entropy, rel=1e-9)
            assert found["top"][i] == pytest.approx(maps.max(-1)[..., 1:].mean(), rel=1e-9)
            prompts = np.stack([attention(model, row) for row in task.prompts])
            np.testing.assert_allclose(found["attention"][i], prompts, rtol=1e-9, atol=1e-12)
            before = maps
            seen.append(k)
        if k < 3:
            model = jax.tree.map(lambda p, g: p - eta * g, model, grads)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9), found.params, model)
    assert found.status == Status.OK
    assert found.first_bad_step == -1


@pytest.mark.usefixtures("x64")
@pytest.mark.full(
    "test_training_is_a_plain_loop",
    "dynsim/training/test_rules.py::test_rules_follow_their_formulas",
    "dynsim/training/test_rules.py::test_long_gradients_are_clipped_before_anything_else",
)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_rules_with_memory_and_clipping(task: Text, kind: str) -> None:
    """Three updates of all weights together, clipped to a norm that every gradient exceeds."""
    eta, clip = 0.05, 0.1
    found = dynsim.train(
        model_of(task, 2), RULES[kind](eta, clip=clip), jax.random.key(1), steps=3, batch=BATCH,
        record=("loss",), dtype="float64",
    ).params  # fmt: skip
    model, data_key = make(jax.random.key(1))
    leaves, structure = jax.tree.flatten(model)
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    m = v = 0.0
    for k in range(3):
        windows = windows_of(task, data_key, k)
        g = flat(VALUE_AND_GRAD(model, windows)[1])
        assert np.linalg.norm(g) > clip
        g = g * clip / np.linalg.norm(g)
        if kind == "momentum":
            m = 0.8 * m + g
            update = m
        else:
            m, v = 0.7 * m + 0.3 * g, 0.9 * v + 0.1 * g**2
            update = m / (1 - 0.7 ** (k + 1)) / (np.sqrt(v / (1 - 0.9 ** (k + 1))) + 1e-3)
        new = np.split(flat(model) - eta * update, np.cumsum([x.size for x in leaves])[:-1])
        shaped = [jnp.asarray(x.reshape(old.shape)) for x, old in zip(new, leaves, strict=True)]
        model = jax.tree.unflatten(structure, shaped)
    np.testing.assert_allclose(flat(found), flat(model), rtol=1e-9, atol=1e-12)


def test_a_short_gradient_is_not_clipped() -> None:
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([[0.0, 4.0]])}

    def clipped(gradient: dict, largest: float) -> dict:
        rule = dynsim.sgd(1.0, clip=largest)
        update, _ = rule.update(gradient, rule.init(gradient), gradient, jnp.int32(0))
        return jax.tree.map(lambda x: -x, update)

    jax.tree.map(np.testing.assert_array_equal, clipped(gradient, 5.5), gradient)
    jax.tree.map(
        np.testing.assert_array_equal,
        clipped(gradient, 2.5),
        jax.tree.map(lambda x: x / 2, gradient),
    )


def test_uniform_attention_has_the_entropy_of_its_keys() -> None:
    """All keys weigh the same: log of their number, the first row left out. With all attention on
    one key there is none; a swap of keys moves all of it."""
    keys = np.arange(1, T + 1)
    uniform = (np.tril(np.ones((T, T))) / keys[:, None])[None, None, None]
    want = np.log(keys[1:]).mean()
    np.testing.assert_allclose(model.layer_entropy(uniform), [want], rtol=1e-6)
    assert LanguageModel(length=T).uniform_entropy == pytest.approx(want)
    assert LanguageModel(length=2).uniform_entropy == pytest.approx(np.log(2))
    np.testing.assert_allclose(model.layer_top(uniform), [np.mean(1 / keys[1:])], rtol=1e-6)
    itself = np.broadcast_to(np.eye(T), (1, 1, 1, T, T))
    first = np.broadcast_to(np.eye(T)[np.zeros(T, int)], (1, 1, 1, T, T))
    assert float(model.layer_entropy(itself)[0]) == 0
    assert float(model.layer_change(itself, first)[0]) == 1


def test_without_a_record_before_attention_has_not_changed(task: Text) -> None:
    problem = model_of(task, 2)
    (found,) = jax.jit(lambda key: problem.snapshot(problem.init(key)))(jax.random.key(0))
    assert found.maps.shape == (2, 1, 2, T, T)
    np.testing.assert_array_equal(found.before, found.maps)


@pytest.mark.full("test_training_is_a_plain_loop")
def test_rates_and_keys_are_traced(task: Text) -> None:
    """A batch over rates and keys is the single runs, from one compilation."""
    traces = []

    def run(eta, key):
        traces.append(1)
        rule = dynsim.sgd(eta, clip=0.5 * eta)
        return dynsim.train(model_of(task), rule, key, steps=4, batch=BATCH, record=("loss",))

    etas, keys = jnp.array([0.1, 2.0]), jax.random.split(jax.random.key(3), 2)
    both = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))(etas, keys)
    assert len(traces) == 1
    assert both["loss"].shape == (2, 2, 5)
    for i, key in enumerate(keys):
        for j, eta in enumerate(etas):
            # float32, the same operations in another order.
            np.testing.assert_allclose(both["loss"][i, j], run(eta, key)["loss"], rtol=1e-4)
    np.testing.assert_allclose(both["loss"][:, 0, 0], both["loss"][:, 1, 0], rtol=1e-6)
    assert not np.isclose(both["loss"][:, 0, -1], both["loss"][:, 1, -1]).any()


@pytest.mark.full(
    "dynsim/training/test_loop.py::test_runs_are_judged_by_their_last_stretch",
    "dynsim/training/test_loop.py::test_weights_are_looked_through_once_at_the_end",
)
def test_divergence_is_a_status(task: Text) -> None:
    """Numbers that are no longer finite, or a loss that is absurd at the end, even when nothing is
    recorded then."""
    run = functools.partial(
        dynsim.train, model_of(task), key=jax.random.key(0), batch=20, times=np.array([0])
    )
    # The first ends at a loss of millions, with weights that are numbers.
    for eta, finite in ((10.0, True), (1e30, False)):
        found = run(rule=dynsim.sgd(eta), steps=5)
        assert found.status == Status.DIVERGED
        assert 1 <= found.first_bad_step <= 5
        assert np.isfinite(found["loss"]).all()
        assert np.isfinite(np.asarray(found.params.unembedding.weight)).all() == finite
    assert run(rule=dynsim.sgd(0.1), steps=5).status == Status.OK


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(task: Text) -> None:
    train = np.asarray(task.train)
    bad_tokens = [
        (train + 1, train, r"train: has token 9, must be in \[0, vocabulary = 9\)"),
        (train, train - 1, r"held_out: has token -1, must be in"),
        (train * 1.0, train, "train: has shape .* must be whole numbers"),
        (train, train[None], "held_out: has shape .* 1 axes"),
    ]
    for first, second, message in bad_tokens:
        with pytest.raises(ValueError, match=message):
            Text(first, second, M)
    with pytest.raises(ValueError, match="prompts: has token 9"):
        Text(train, train, M, np.full((1, 3), 9))
    wrong = [
        ({"length": 60}, "train: has 60 tokens, must have more than length = 60"),
        ({"length": 4}, "prompts: have 5 tokens, must have at most length = 4"),
        ({"heads": 3}, "heads = 3: must divide width = 32"),
        ({"layers": 7}, "layers = 7: must be"),
        ({"num_held_out": 2.5}, "num_held_out = 2.5: must be"),
    ]
    for fields, message in wrong:
        with pytest.raises(ValueError, match=message):
            LanguageModel(task, **fields)
    with pytest.raises(ValueError, match="batch = inf: LanguageModel has no method"):
        dynsim.train(model_of(task), dynsim.sgd(0.1), jax.random.key(0), steps=2, batch=math.inf)
