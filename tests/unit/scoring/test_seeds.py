"""Differences over seeds against closed forms and a bootstrap written here."""

import random
import statistics

import numpy as np
import pytest
from sacrebleu import corpus_bleu

from headlab.scoring.seeds import holm, interval, over_seeds
from headlab.scoring.text import compare, resampled_bleu

from .test_text import BAD, GOOD, REFERENCES, noisy

PAIRS = [(noisy(REFERENCES, 0.2, seed), noisy(REFERENCES, 0.3, seed + 100)) for seed in range(3)]


def of_pairs(pairs, samples=200, seed=1):
    resampled = [
        resampled_bleu(a, REFERENCES, samples, seed) - resampled_bleu(b, REFERENCES, samples, seed) for a, b in pairs
    ]
    deltas = [corpus_bleu(a, [REFERENCES]).score - corpus_bleu(b, [REFERENCES]).score for a, b in pairs]
    return over_seeds(deltas, resampled)


def test_over_one_seed_all_is_as_in_compare():
    one, alone = of_pairs([(GOOD, BAD)], 200, 7), compare(GOOD, BAD, REFERENCES, samples=200, seed=7)
    assert (one.delta, one.low, one.high) == pytest.approx((alone.delta, alone.low, alone.high))
    assert one.p_value == alone.p_value  # headlab's own formula beside sacreBLEU's, on the same resamples


def test_the_interval_is_that_of_means_over_jointly_drawn_sentences():
    result, rng = of_pairs(PAIRS, samples=1000), random.Random(5)
    means = []
    for _ in range(300):
        drawn = rng.choices(range(len(REFERENCES)), k=len(REFERENCES))
        references = [[REFERENCES[i] for i in drawn]]
        scores = [[corpus_bleu([s[i] for i in drawn], references).score for s in pair] for pair in PAIRS]
        means.append(statistics.mean(a - b for a, b in scores))
    low, high = statistics.quantiles(means, n=40)[0], statistics.quantiles(means, n=40)[-1]
    assert (result.low, result.high) == pytest.approx((low, high), abs=(high - low) / 7)
    assert result.low < result.delta < result.high


def test_the_same_pair_three_times_is_no_more_evidence_than_once():
    once, thrice = of_pairs([(GOOD, BAD)]), of_pairs([(GOOD, BAD)] * 3)  # drawn apart it would shrink by sqrt(3)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))


def test_mean_interval_and_p_of_numbers_that_can_be_worked_out_by_hand():
    # the means are -2, -1, 0, 1, 2; their sizes less the mean size 1.2: 0.8, -0.2, -1.2, -0.2, 0.8: two beyond 0.5
    resampled = [np.array([-3.0, -2, -1, 0, 1]), np.array([-1.0, 0, 1, 2, 3])]
    result = over_seeds([0.25, 0.75], resampled)
    assert (result.delta, result.p_value) == (0.5, (2 + 1) / 6)
    assert (result.low, result.high) == pytest.approx((-2 + 0.1, 2 - 0.1))  # 2.5 % of the way along four steps


def test_seeds_that_change_nothing_have_p_1():
    nothing = over_seeds([0.0, 0.0], [np.zeros(9), np.zeros(9)])
    assert (nothing.delta, nothing.low, nothing.high, nothing.p_value) == (0, 0, 0, 1)


def test_the_interval_is_the_middle_95_percent():
    assert interval(np.arange(1001) / 1000) == pytest.approx((0.025, 0.975))


def test_holm_adjusts_as_r_does():
    # R: p.adjust(c(0.04, 0.01, 0.03, 0.02), "holm"); p.adjust(c(0.5, 0.6, 0.001), "holm")
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.6, 0.001]) == pytest.approx([1.0, 1.0, 0.003])
    assert holm([]) == []
