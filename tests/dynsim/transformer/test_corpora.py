"""Corpora that a language model reads: their text, hash and prompt, and bad input."""

import dataclasses
import hashlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import dynsim
from dynsim import LanguageModel, SyntheticText, TextFile, TextFolder
from dynsim.classes import synthetic_corpus

RULE = dynsim.sgd(0.5)
SIZES = {"width": 4, "mlp": 0, "length": 5, "num_held_out": 2}
LINES = [f"{'a' * (i % 3 + 1)} b c" for i in range(50)]
WORDS = [word for line in LINES for word in (*line.split(), "<eos>")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "train.txt").write_text("x y x y x z x y\n" * 4)
    (tmp_path / "valid.txt").write_text("y x q z z y x\n")
    return tmp_path


@pytest.mark.more
def test_training_reads_the_corpus() -> None:
    corpus = synthetic_corpus()
    prompt = corpus.held_out[None, 7:12]
    text = dynsim.Text(corpus.train, corpus.held_out, len(corpus.vocabulary), prompt)
    run = lambda problem: dynsim.train(
        problem, RULE, jax.random.key(0), steps=3, batch=4, record=("loss", "attention")
    )
    want = run(LanguageModel(text, **SIZES))
    described = run(LanguageModel(SyntheticText(), **SIZES, prompt=7))
    jax.tree.map(np.testing.assert_array_equal, described.params, want.params)
    for name in ("loss", "attention"):
        np.testing.assert_array_equal(described[name], want[name])


@pytest.mark.parametrize("min_count", [1, 3])
def test_a_file_is_split_by_its_tokens(folder: Path, min_count: int) -> None:
    source = TextFile(folder / "one.txt", min_count=min_count)
    assert not jax.tree.leaves(source), "what decides shapes is no number to trace"
    text = LanguageModel(source, **SIZES).build(RULE).text
    words = source.read().words
    assert words(text.train) == WORDS[:180]
    assert words(text.held_out) == WORDS[180:190]
    np.testing.assert_array_equal(text.prompts, text.held_out[None, :5])
    joined = " ".join([*WORDS[:180], "", *WORDS[180:190]])
    assert source.contents() == {"text": hashlib.sha256(joined.encode()).hexdigest()[:16]}


def test_a_word_that_occurs_once_is_part_of_the_hash(folder: Path) -> None:
    source = TextFolder(folder)
    for text in ("x y x once", "x y x other"):
        (folder / "train.txt").write_text(f"{text}\n")
        held_out = "y x <unk> <unk> <unk> y x <eos>"  # q and z are not in the training text
        joined = f"{text} <eos>  {held_out}"
        assert source.contents() == {"text": hashlib.sha256(joined.encode()).hexdigest()[:16]}


def test_a_folder_has_a_file_for_each_split(folder: Path) -> None:
    source = TextFolder(folder)
    assert not jax.tree.leaves(source)
    text = LanguageModel(source, **SIZES).build(RULE).text
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
    (folder / "other.txt").write_text("y x z z z y x\n")
    assert moved.contents() != before
    assert SyntheticText().contents() == {}


@pytest.mark.usefixtures("unchecked")
def test_bad_corpora_are_named(folder: Path) -> None:
    (folder / "short.txt").write_text("a a a\n")
    build = lambda source, **fields: LanguageModel(source, **{**SIZES, **fields}).build(RULE)
    one = TextFile(folder / "one.txt")
    for call, message in [
        (lambda: LanguageModel("one.txt"), "corpus = 'one.txt': must be of type dynsim"),
        (lambda: LanguageModel(heads=3), "heads = 3: must divide width = 32"),
        (lambda: LanguageModel(prompt=-1), "prompt = -1: must be an integer >= 0"),
        (lambda: LanguageModel().init(jax.random.key(0)), "SyntheticText(): has not been read"),
        (lambda: build(TextFile("no.txt")), "path = no.txt: no such file"),
        (lambda: build(TextFile(folder)), f"path = {folder}: must be a file, not a folder"),
        (lambda: build(TextFolder("no")), "train = 'train.txt': must be a file in path = 'no'"),
        (lambda: build(TextFolder(folder, held_out="no")), "held_out = 'no': must be a file in"),
        (lambda: build(TextFile(one.path, min_count=0)), "min_count = 0: must be an integer >= 1"),
        (lambda: build(TextFile(folder / "short.txt")), "is too short for a held-out part"),
        (
            lambda: build(one, prompt=6),
            "prompt = 6: must leave length = 5 of the 10 held-out tokens",
        ),
        (lambda: build(one, length=10), "held_out: has 10 tokens, must have more than length = 10"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_a_text_needs_no_prompts_and_has_two_tokens_at_least() -> None:
    tokens = np.arange(20) % 2
    found = dynsim.Text(tokens, tokens, 2)
    assert found.prompts.shape == (0, 2)
    assert LanguageModel(found, **{**SIZES, "length": 2}).sizes.length == 2
    with pytest.raises(ValueError, match="vocabulary = 1: must be an integer >= 2"):
        dynsim.Text(tokens, tokens, 1)


def test_a_text_is_its_own_corpus() -> None:
    tokens = np.arange(20) % 5
    problem = LanguageModel(dynsim.Text(tokens, tokens, 5, tokens[None, :4]), **SIZES, prompt=3)
    assert problem.build(RULE) is problem
    assert problem.sizes.vocabulary == 5
