"""BLEU and chrF of translations, and the difference between two systems with its uncertainty."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from headlab.errors import UserError
from headlab.scoring.seeds import interval

#: Most sentence draws of the bootstrap that are in memory at once.
_DRAWS = 4_000_000


@dataclass(frozen=True)
class TextScore:
    """Corpus scores (0 to 100) with the sacreBLEU signatures that say how they were computed."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str


@dataclass(frozen=True)
class Difference:
    """BLEU of a system minus BLEU of the one it is compared with, the 95 % interval of that, and the p-value."""

    delta: float
    low: float
    high: float
    p_value: float


def score_text(hypotheses: list[str], references: list[str]) -> TextScore:
    """Score detokenised text, one line a sentence: BLEU (13a tokeniser) and chrF2."""
    _check_lines(hypotheses, references)
    bleu, chrf = BLEU(), CHRF()
    return TextScore(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        chrf_signature=str(chrf.get_signature()),
    )


def compare(
    system: list[str], reference_system: list[str], references: list[str], samples: int, seed: int
) -> Difference:
    """BLEU of ``system`` minus BLEU of ``reference_system``.

    The interval holds the middle 95 % of the differences over ``samples`` resamples of the sentences, both
    systems on the same ones. p is that of sacreBLEU's paired bootstrap test, and 1 where no sentence scores differently
    (sacreBLEU's formula gives such pairs its smallest p).
    """
    statistics = _statistics(system, references), _statistics(reference_system, references)
    delta = float(_bleu(statistics[0].sum(axis=0)) - _bleu(statistics[1].sum(axis=0)))
    low, high = interval(_resampled(statistics[0], samples, seed) - _resampled(statistics[1], samples, seed))
    p_value = 1.0
    if not np.array_equal(*statistics):
        with _sacrebleu_seed(seed):
            test = PairedTest(
                [("reference", reference_system), ("system", system)],
                {"BLEU": BLEU()},
                [references],
                test_type="bs",
                n_samples=samples,
            )
            result = test()[1]["BLEU"][1]
        p_value = float(result.p_value)  # type: ignore[union-attr,arg-type]
    return Difference(delta, low, high, p_value)


def resampled_bleu(hypotheses: list[str], references: list[str], samples: int, seed: int) -> NDArray[np.float64]:
    """BLEU on ``samples`` resamples of the sentences, [samples].

    The resamples depend on ``seed`` and the number of sentences alone: they are the same sentences for all systems.
    """
    return _resampled(_statistics(hypotheses, references), samples, seed)


def _check_lines(hypotheses: list[str], references: list[str]) -> None:
    if not references:
        raise UserError("scoring: there are no reference sentences: give a test set with at least one line")
    if len(hypotheses) != len(references):
        raise UserError(
            f"scoring: {len(hypotheses)} translations but {len(references)} references: translate the test set again"
        )


def _statistics(hypotheses: list[str], references: list[str]) -> NDArray[np.float64]:
    """sacreBLEU's sufficient statistics, [sentences, 10]: both lengths, 4 counts of matches, 4 counts of n-grams."""
    _check_lines(hypotheses, references)
    return np.array(BLEU()._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)


def _bleu(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """BLEU of summed statistics [..., 10], as sacreBLEU computes it (exp smoothing), for all of them at once."""
    length, reference_length = totals[..., 0], totals[..., 1]
    matches, ngrams = totals[..., 2:6], totals[..., 6:10]
    unmatched = matches == 0
    halvings = 2.0 ** np.cumsum(unmatched, axis=-1)  # the k-th order without a match counts as 1/2^k matches
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(unmatched, 1 / halvings, matches) / ngrams
        penalty = np.exp(np.minimum(0.0, 1 - reference_length / length))
        scores = 100 * penalty * np.exp(np.log(precisions).mean(axis=-1))
    # no match at all is 0, and so is an order that no sentence is long enough for
    return np.where(unmatched.all(axis=-1) | (ngrams == 0).any(axis=-1), 0.0, scores)


def _resampled(statistics: NDArray[np.float64], samples: int, seed: int) -> NDArray[np.float64]:
    """BLEU on ``samples`` resamples of the sentences, from their statistics [sentences, 10]."""
    sentences = len(statistics)
    random = np.random.default_rng(seed)
    block = max(1, _DRAWS // sentences)
    scores = []
    for start in range(0, samples, block):
        draws = random.choice(sentences, size=(min(block, samples - start), sentences), replace=True)
        counts = np.stack([np.bincount(draw, minlength=sentences) for draw in draws]).astype(np.float64)
        scores.append(_bleu(counts @ statistics))
    return np.concatenate(scores)


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Fix the seed of sacreBLEU's tests, which is an environment variable; it takes 0 for 'no seed'."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed or 12345)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
