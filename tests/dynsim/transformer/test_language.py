"""Training on text: against a plain loop, its records against closed forms, status, bad input."""

import dataclasses
import functools
import hashlib
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import dynsim
from dynsim import LanguageModel, Status, SyntheticText, Text, TextFile, TextFolder, TransformerSpec
from dynsim.classes import synthetic_corpus
from dynsim.transformer.network import Transformer

M, T, BATCH = 9, 5, 3
SIZES = TransformerSpec(M, T, layers=2, heads=2, width=4, mlp=3)
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
    return LanguageModel(task, 2, 2, 4, 3, length=T, num_held_out=num_held_out)


@jax.jit
def window_loss(model, windows):
    logits = jax.lax.map(model, windows[:, :-1])
    picked = jax.nn.log_softmax(logits)[
        np.arange(len(windows))[:, None], np.arange(T), windows[:, 1:]
    ]
    return -picked.mean()


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
            entropy = -(maps * np.log(np.where(maps > 0, maps, 1))).sum(-1)[..., 1:].mean((0, 2, 3))
            np.testing.assert_allclose(found["layer_entropy"][i], entropy, rtol=1e-9)
            assert found["entropy"][i] == pytest.approx(entropy.mean(), rel=1e-9)
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


def test_uniform_attention_has_the_entropy_of_its_keys() -> None:
    """All keys weigh the same: log of their number, the first row left out."""
    want = np.log(np.arange(2, T + 1)).mean()
    assert LanguageModel(length=T).uniform_entropy == pytest.approx(want)
    assert LanguageModel(length=2).uniform_entropy == pytest.approx(np.log(2))


def test_without_a_record_before_attention_has_not_changed(task: Text) -> None:
    problem = model_of(task, 2)
    (found,) = jax.jit(lambda key: problem.snapshot(problem.init(key)))(jax.random.key(0))
    assert found.maps.shape == (2, 2, 2, T, T)
    np.testing.assert_array_equal(found.before, found.maps)


LINES = [f"{'a' * (i % 3 + 1)} b c" for i in range(50)]
WORDS = [word for line in LINES for word in (*line.split(), "<eos>")]
SMALL = {"width": 4, "mlp": 0, "length": 5, "num_held_out": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "train.txt").write_text("x y x y x z x y\n" * 4)
    (tmp_path / "valid.txt").write_text("y x q z z y x\n")
    return tmp_path


def digest(*parts: list[str]) -> dict[str, str]:
    """The hash of the words of both parts of a text."""
    joined = " ".join([*parts[0], "", *parts[1]])
    return {"text": hashlib.sha256(joined.encode()).hexdigest()[:16]}


@pytest.mark.parametrize("min_count", [1, 3])
def test_a_file_is_split_by_its_tokens(folder: Path, min_count: int) -> None:
    source = TextFile(folder / "one.txt", min_count=min_count)
    assert not jax.tree.leaves(source), "what decides shapes is no number to trace"
    text = LanguageModel(source, **SMALL).build(dynsim.sgd(0.5)).text
    words = source.read().words
    assert words(text.train) == WORDS[:180]
    assert words(text.held_out) == WORDS[180:190]
    np.testing.assert_array_equal(text.prompts, text.held_out[None, :5])
    assert source.contents() == digest(WORDS[:180], WORDS[180:190])


def test_a_folder_has_a_file_for_each_split(folder: Path) -> None:
    source = TextFolder(folder)
    assert not jax.tree.leaves(source)
    text = LanguageModel(source, **SMALL).build(dynsim.sgd(0.5)).text
    assert source.read().words(text.held_out) == ["y", "x", "<unk>", "z", "z", "y", "x", "<eos>"]
    assert text.train.size == 36
    # With 5, z is as rare as an unknown word. The hash is that of all words.
    rare = TextFolder(folder, min_count=5)
    assert rare.read().words(rare.read().held_out).count("<unk>") == 3
    before = source.contents()
    assert rare.contents() == before
    (folder / "valid.txt").rename(folder / "other.txt")
    moved = dataclasses.replace(source, held_out="other.txt")
    assert moved.contents() == before
    for text in ("x y x once", "x y x other"):
        (folder / "train.txt").write_text(f"{text}\n")
        # q and z are not in the training text.
        held_out = ["y", "x", "<unk>", "<unk>", "<unk>", "y", "x", "<eos>"]
        assert moved.contents() == digest([*text.split(), "<eos>"], held_out)
    assert SyntheticText().contents() == {}


def test_a_text_is_its_own_corpus() -> None:
    tokens = np.arange(20) % 5
    problem = LanguageModel(Text(tokens, tokens, 5, tokens[None, :4]), **SMALL, prompt=3)
    assert problem.build(dynsim.sgd(0.5)) is problem
    assert problem.sizes.vocabulary == 5
    # That of a source is read.
    corpus = synthetic_corpus()
    want = Text(corpus.train, corpus.held_out, len(corpus.vocabulary), corpus.held_out[None, 7:12])
    read = LanguageModel(SyntheticText(), **SMALL, prompt=7).build(dynsim.sgd(0.5)).text
    assert eqx.tree_equal(read, want)
    # It needs no prompts, and has two tokens at least.
    shortest = Text(tokens % 2, tokens % 2, 2)
    assert shortest.prompts.shape == (0, 2)
    assert LanguageModel(shortest, **{**SMALL, "length": 2}).sizes.length == 2
