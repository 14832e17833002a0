"""Samplers: counts are the counts of the tokens, and both follow the stated law."""

import jax
import numpy as np
import pytest
from scipy import stats

import dynsim
from dynsim.yz import sampling

UNEVEN = dynsim.sequence_classes(
    [[0.7, 0.2, 0.1, 0, 0], [0, 0, 0, 0.5, 0.5]], query=[0, 3], prior=[0.3, 0.7]
)
# Each statistical test fails by chance with this probability; keys are fixed, so it either
# does now and for ever, or never.
P_VALUE = 1e-6


def test_counts_are_the_counts_of_the_tokens() -> None:
    key, task = jax.random.key(1), dynsim.SynMedium(3).build()
    classes, tokens = sampling.sample_tokens(task, key, 64, 33)
    examples = sampling.sample_counts(task, key, 64, 33)
    np.testing.assert_array_equal(classes, examples.classes)
    np.testing.assert_array_equal(tokens[:, -1], np.asarray(task.query)[classes])
    want = [np.bincount(row[:-1], minlength=task.M) for row in np.asarray(tokens)]
    np.testing.assert_array_equal(examples.counts, want)
    recorded = sampling.examples_from_tokens(task, tokens, np.asarray(task.next_token)[classes])
    np.testing.assert_array_equal(recorded.counts, want)
    labels = np.asarray(task.next_token)[classes]
    one_step = sampling.examples_from_tokens(task, tokens[None], labels[None])
    np.testing.assert_array_equal(one_step.counts, [want])
    np.testing.assert_array_equal(recorded.classes, classes)
    np.testing.assert_array_equal(recorded.weight, np.float32(np.full(64, 1 / 64)))
    compared = sampling.counts_sampler(task, 64, 33, "float32", scatter=False)(key)
    np.testing.assert_array_equal(compared.counts, want)


@pytest.mark.parametrize("task", [UNEVEN, dynsim.SynSmall().build()], ids=["uneven", "syn-small"])
def test_tokens_and_classes_follow_their_law(task: dynsim.SequenceClasses) -> None:
    batch, length = 4096, 33
    examples = sampling.sample_counts(task, jax.random.key(2), batch, length)
    drawn = np.bincount(examples.classes, minlength=task.K)
    assert stats.chisquare(drawn, batch * task.prior).pvalue > P_VALUE
    for n in range(task.K):
        counts = np.asarray(examples.counts)[np.asarray(examples.classes) == n]
        p = task.probs[n]
        present = p > 0
        assert not counts[:, ~present].any()
        assert (counts.sum(1) == length - 1).all()
        total = counts.sum(0)[present]
        assert stats.chisquare(total, total.sum() * p[present]).pvalue > P_VALUE
        # Independence within a sequence: one token's count is binomial, not only its mean.
        first = int(np.argmax(p))
        observed = np.bincount(counts[:, first].astype(int), minlength=length)
        expected = len(counts) * stats.binom.pmf(np.arange(length), length - 1, p[first])
        rare = expected < 5
        pooled = [np.r_[x[~rare], x[rare].sum()] for x in (observed, expected)]
        assert stats.chisquare(*pooled).pvalue > P_VALUE


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    # Class 1 has one token only, so its row of the support is filled up with three others; the
    # float32 cumulative sum of the ten tenths of class 0 stays below 1.
    probs = np.zeros((2, 12))
    probs[0, :10], probs[1, 10] = 0.1, 1
    task = dynsim.sequence_classes(probs, query=[0, 1])
    examples = sampling.sample_counts(task, jax.random.key(3), 20_000, 129)
    counts = np.asarray(examples.counts)
    assert (counts[np.asarray(examples.classes) == 1, 10] == 128).all()
    boundaries = np.asarray(sampling._cumulative(task))
    assert (boundaries[0, 9:] == 1).all()
    assert (boundaries[1] == 1).all()


def test_infinite_length_weighs_classes_by_their_share() -> None:
    drawn = sampling.sample_classes(UNEVEN, jax.random.key(4), 1000)
    examples = dynsim.JoMA(UNEVEN).examples(drawn, "float32")
    assert float(examples.weight.sum()) == pytest.approx(1, abs=1e-6)
    drawn = np.asarray(examples.weight) * 1000
    assert stats.chisquare(drawn, 1000 * UNEVEN.prior, sum_check=False).pvalue > P_VALUE
