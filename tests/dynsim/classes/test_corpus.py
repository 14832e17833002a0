"""Text as token ids, on texts small enough to count by hand."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from dynsim.classes.corpus import batches, load_corpus, sample_windows, synthetic_corpus

TRAIN = "b a a\nc b a\n"


@pytest.mark.parametrize(
    ("text", "options", "vocabulary", "train"),
    [
        # By count, then by alphabet.
        (TRAIN, {}, "a <eos> b c <unk>", "b a a <eos> c b a <eos>"),
        (TRAIN, {"min_count": 2}, "a <eos> b <unk>", "b a a <eos> <unk> b a <eos>"),
        # Two b and one c are as many as the a, and "<unk>" comes before "a".
        (TRAIN, {"max_vocabulary": 3}, "<unk> a <eos>", "<unk> a a <eos> <unk> <unk> a <eos>"),
        # Unknown ones of the text and of the count are one.
        ("<unk> a a\n<unk> b a\n", {"min_count": 2}, "<unk> a <eos>",
         "<unk> a a <eos> <unk> <unk> a <eos>"),
        # Every line ends: empty ones too, and a last one without its newline.
        ("\ufeff\n a \n\nb", {}, "<eos> a b <unk>", "<eos> a <eos> <eos> b <eos>"),
        ("The the\n", {}, "<eos> The the <unk>", "The the <eos>"),
        ("The the\n", {"lower": True}, "the <eos> <unk>", "the the <eos>"),
    ],
)  # fmt: skip
def test_words_are_numbered(
    text: str, options: dict, vocabulary: str, train: str, tmp_path: Path
) -> None:
    (tmp_path / "train.txt").write_text(text, encoding="utf-8")
    corpus = load_corpus(tmp_path, valid=None, test=None, **options)
    assert corpus.valid is None
    assert corpus.vocabulary == tuple(vocabulary.split())
    assert corpus.words(corpus.train) == train.split()


def test_splits_share_a_vocabulary(tmp_path: Path) -> None:
    for name, text in {"train": TRAIN, "valid": "a d\n", "test": "c\n"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    corpus = load_corpus(tmp_path)
    assert (corpus.valid.tolist(), corpus.test.tolist()) == ([0, 4, 1], [3, 1])
    np.testing.assert_array_equal(corpus.ids(["c", "nowhere"]), [3, 4])
    assert corpus.train.dtype == np.int32


def test_single_file_is_split(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text(" ".join([*["a"] * 90, *["b"] * 5, *["c"] * 4]))
    corpus = load_corpus(file)
    assert corpus.vocabulary == ("a", "<eos>", "<unk>")
    np.testing.assert_array_equal(corpus.train, [0] * 90)
    np.testing.assert_array_equal(corpus.valid, [2] * 5)
    np.testing.assert_array_equal(corpus.test, [2] * 4 + [1])


@pytest.mark.parametrize("surplus", [0, 11])
def test_each_token_is_predicted_once(surplus: int) -> None:
    """In contiguous streams; a surplus that fills no batch is left out at the end."""
    length, batch, num = 4, 3, 5
    tokens = np.arange(num * batch * length + 1 + surplus)
    found = batches(tokens, length, batch)
    assert found.shape == (num, batch, length + 1)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(np.diff(found, axis=2), 1)
    targets = np.sort(found[:, :, 1:].ravel())
    np.testing.assert_array_equal(targets, np.arange(1, num * batch * length + 1))
    np.testing.assert_array_equal(found[1:, :, 0], found[:-1, :, -1])


def test_a_text_as_long_as_its_sequences() -> None:
    tokens = np.arange(12)
    np.testing.assert_array_equal(batches(tokens, 11, 1), [[tokens]])
    assert sample_windows(tokens[:5], jax.random.key(0), 1, 4).shape == (1, 5)
    assert batches(tokens[:9], 4, 2).shape == (1, 2, 5)
    assert batches(tokens, 1, 2).shape == (5, 2, 2)
    # By default.
    assert batches(np.arange(2 * 20 * 35 + 1)).shape == (2, 20, 36)


def test_random_windows_reach_both_ends() -> None:
    draw = jax.jit(sample_windows, static_argnums=(2, 3))
    tokens = np.arange(10, 20)
    found = np.asarray(draw(tokens, jax.random.key(1), 200, 3))
    assert found.shape == (200, 4)
    np.testing.assert_array_equal(np.diff(found, axis=1), 1)
    assert set(found[:, 0]) == set(range(10, 17))
    np.testing.assert_array_equal(found, draw(tokens, jax.random.key(1), 200, 3))


def test_generated_corpus() -> None:
    """Deterministic, with topics that determine the last word and stop words that do not."""
    corpus, same = (synthetic_corpus(3, num_sentences=400) for _ in range(2))
    np.testing.assert_array_equal(corpus.train, same.train)
    assert not np.array_equal(corpus.train, synthetic_corpus(4, num_sentences=400).train)
    words = " ".join(corpus.vocabulary[token] for token in corpus.train)
    sentences = [line.split() for line in words.split(" <eos>")][:-1]
    assert {len(line) for line in sentences} == {14}
    assert {tuple(line[-2:]) for line in sentences if "ship" in line} == {("the", "captain")}
    ending_of = {word: {line[-1] for line in sentences if word in line} for word in words.split()}
    assert len(ending_of["of"]) == 6
    drawn = [word for line in sentences for word in line[:-2]]
    stop = [word for word in drawn if {"captain", "king"} <= ending_of[word]]
    assert len(set(stop)) == 16
    assert len(stop) / len(drawn) == pytest.approx(0.5, abs=0.03)
    first = [word for word in drawn if word in ("ship", "castle", "hospital")]
    first += [word for word in drawn if word in ("airport", "violin", "field")]
    assert len(first) / (len(drawn) - len(stop)) == pytest.approx(1 / 3, abs=0.05)
    # A topic is drawn anew for every sixth sentence, and seldom the same again.
    endings = np.array([" ".join(line[-2:]) for line in sentences[:360]]).reshape(60, 6)
    assert (endings == endings[:, :1]).all()
    assert (endings[1:, 0] != endings[:-1, 0]).sum() > 30


def test_numbers_of_a_generated_corpus() -> None:
    """The smallest ones are allowed, and then no word is too rare to be in the vocabulary."""
    least = {"num_sentences": 20, "words_per_sentence": 1, "sentences_per_topic": 1}
    corpus = synthetic_corpus(**least, topic_share=0.999)
    words = [corpus.vocabulary[token] for token in corpus.train]
    assert "<unk>" not in words
    assert len(words) == 20 * 4 * 9 // 10
    # Topics are drawn anew for every sentence.
    assert len({*words[2::4]}) > 3
    # 6 topics of 5 words, 16 stop words, 2 queries, 6 next words and 2 more.
    whole = synthetic_corpus()
    assert len(whole.vocabulary) == 56
    assert [part.size for part in (whole.train, whole.held_out, whole.test)] == [27000, 1500, 1500]


def test_wikitext_counts(shared_file: Callable[[str], Path]) -> None:
    """Token counts of WikiText-2's splits as they are published."""
    folder = shared_file("data/wikitext-2/valid.txt").parent
    corpus = load_corpus(folder, train="valid.txt", valid="test.txt", test=None)
    assert (corpus.train.size, corpus.valid.size) == (217646, 245569)
    assert corpus.vocabulary[:3] == ("the", "<unk>", ",")
