"""Scores and differences against sacreBLEU itself."""

import os
import random
import statistics

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from headlab.errors import UserError
from headlab.scoring.text import _bleu, compare, resampled_bleu, score_text

WORDS = [f"word{i}" for i in range(60)]


def corpus(sentences: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(sentences)]


def noisy(lines: list[str], rate: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(w if rng.random() > rate else rng.choice(WORDS) for w in line.split()) for line in lines]


REFERENCES = corpus(120)
GOOD, BAD = noisy(REFERENCES, 0.2, 1), noisy(REFERENCES, 0.35, 2)


def test_score_text_gives_sacrebleus_numbers_and_signatures():
    score = score_text(GOOD, REFERENCES)
    assert score.bleu == corpus_bleu(GOOD, [REFERENCES]).score
    assert score.chrf == corpus_chrf(GOOD, [REFERENCES]).score
    assert "tok:13a" in score.bleu_signature and "smooth:exp" in score.bleu_signature
    assert "nc:6" in score.chrf_signature and "nw:0" in score.chrf_signature


def test_detokenised_text_is_tokenised_before_scoring():
    assert score_text(["Yes, he did it today."], ["Yes , he did it today ."]).bleu == pytest.approx(100)


def test_translations_that_do_not_fit_the_references_are_refused():
    with pytest.raises(UserError, match="1 translations but 2 references"):
        score_text(["a"], ["a", "b"])
    with pytest.raises(UserError, match="no reference sentences"):
        score_text([], [])


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("sentences", [1, 3, 40])
def test_vectorised_bleu_is_sacrebleus(sentences, rate):
    metric = BLEU()
    references = corpus(sentences)
    totals, expected = [], []
    for seed in range(20):
        hypotheses = [line[: random.Random(seed).randint(0, 80)] for line in noisy(references, rate, seed)]
        totals.append(np.sum(metric._extract_corpus_statistics(hypotheses, [references]), axis=0, dtype=float))
        expected.append(metric.corpus_score(hypotheses, [references]).score)
    assert _bleu(np.array(totals)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("hypotheses", [["", ""], ["x y", "z"], ["word1 word2", "word3"]])
def test_vectorised_bleu_of_hopeless_translations_is_sacrebleus(hypotheses):
    metric, references = BLEU(), ["word1 word2 word9 word8", "word3 word4"]
    totals = np.sum(metric._extract_corpus_statistics(hypotheses, [references]), axis=0, dtype=float)
    assert _bleu(totals) == pytest.approx(metric.corpus_score(hypotheses, [references]).score, abs=1e-9)


def test_compare_gives_the_difference_of_corpus_bleu_and_sacrebleus_p(monkeypatch):
    difference = compare(GOOD, BAD, REFERENCES, samples=200, seed=7)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    test = PairedTest([("a", BAD), ("b", GOOD)], {"BLEU": BLEU()}, [REFERENCES], test_type="bs", n_samples=200)
    expected = corpus_bleu(GOOD, [REFERENCES]).score - corpus_bleu(BAD, [REFERENCES]).score
    assert difference.delta == pytest.approx(expected, abs=1e-9)
    assert difference.p_value == test()[1]["BLEU"][1].p_value


def test_interval_is_that_of_a_plain_bootstrap():
    difference = compare(GOOD, BAD, REFERENCES, samples=1000, seed=1)
    metric, rng = BLEU(), random.Random(5)
    good, bad = (metric._extract_corpus_statistics(lines, [REFERENCES]) for lines in (GOOD, BAD))
    deltas = []
    for _ in range(1000):
        drawn = rng.choices(range(len(REFERENCES)), k=len(REFERENCES))
        a, b = (metric._aggregate_and_compute([table[i] for i in drawn]).score for table in (good, bad))
        deltas.append(a - b)
    low, high = statistics.quantiles(deltas, n=40)[0], statistics.quantiles(deltas, n=40)[-1]
    assert difference.low == pytest.approx(low, abs=(high - low) / 10)
    assert difference.high == pytest.approx(high, abs=(high - low) / 10)


def test_compare_is_seeded_and_antisymmetric():
    first = compare(GOOD, BAD, REFERENCES, samples=100, seed=3)
    assert compare(GOOD, BAD, REFERENCES, samples=100, seed=3) == first
    assert compare(GOOD, BAD, REFERENCES, samples=100, seed=4).low != first.low
    swapped = compare(BAD, GOOD, REFERENCES, samples=100, seed=3)
    assert (swapped.delta, swapped.low, swapped.high) == pytest.approx((-first.delta, -first.high, -first.low))


def test_seed_zero_is_a_seed_too():
    assert compare(GOOD, BAD, REFERENCES, 50, seed=0) == compare(GOOD, BAD, REFERENCES, 50, seed=0)


def test_outputs_that_score_alike_everywhere_have_p_1():
    spaced = [f"{line} " for line in GOOD]
    for other in (GOOD, spaced):
        assert compare(GOOD, other, REFERENCES, samples=50, seed=1) == compare(GOOD, GOOD, REFERENCES, 50, 1)
        difference = compare(GOOD, other, REFERENCES, samples=50, seed=1)
        assert (difference.delta, difference.low, difference.high, difference.p_value) == (0, 0, 0, 1)


def test_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    compare(GOOD, BAD, REFERENCES, samples=10, seed=1)
    assert os.environ["SACREBLEU_SEED"] == "99"
    monkeypatch.delenv("SACREBLEU_SEED")
    compare(GOOD, BAD, REFERENCES, samples=10, seed=1)
    assert "SACREBLEU_SEED" not in os.environ


def test_resamples_are_the_same_sentences_for_all_systems():
    draws = np.random.default_rng(9).choice(len(REFERENCES), size=(8, len(REFERENCES)))
    for system in (GOOD, BAD):
        expected = [corpus_bleu([system[i] for i in d], [[REFERENCES[i] for i in d]]).score for d in draws]
        assert resampled_bleu(system, REFERENCES, samples=8, seed=9) == pytest.approx(expected, abs=1e-9)
