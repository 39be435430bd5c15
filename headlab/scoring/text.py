"""BLEU and chrF of translations, and the difference between two systems with its uncertainty."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from headlab.errors import UserError

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


@dataclass(frozen=True)
class SeedsDifference:
    """Mean over ``n`` seeds of the BLEU difference, its 95 % interval and p-value, and the standard deviation of
    the seeds' differences (None for one seed)."""

    delta: float
    low: float
    high: float
    p_value: float
    sd: float | None
    n: int


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
    delta, deltas = _resampled_deltas([statistics], samples, seed)
    low, high = _interval(deltas)
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


def compare_over_seeds(
    pairs: Sequence[tuple[list[str], list[str]]], references: list[str], samples: int, seed: int
) -> SeedsDifference:
    """The mean of BLEU(system) − BLEU(reference system) over ``pairs``, one (system, reference system) per seed.

    Every resample draws the same sentences for all pairs, because all seeds translate one test set. p is the
    formula of sacreBLEU's paired bootstrap test applied to the mean difference.
    """
    statistics = [(_statistics(system, references), _statistics(reference, references)) for system, reference in pairs]
    delta, deltas = _resampled_deltas(statistics, samples, seed)
    low, high = _interval(deltas)
    each = [float(_bleu(a.sum(0)) - _bleu(b.sum(0))) for a, b in statistics]
    sd = float(np.std(each, ddof=1)) if len(each) > 1 else None
    p_value = 1.0
    if any(not np.array_equal(a, b) for a, b in statistics):
        sizes = np.abs(deltas)
        p_value = (int(np.sum(sizes - sizes.mean() > abs(delta))) + 1) / (samples + 1)
    return SeedsDifference(delta, low, high, p_value, sd, len(each))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of p-values that are read together, in the order given (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


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


def _resampled_deltas(
    pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], samples: int, seed: int
) -> tuple[float, NDArray[np.float64]]:
    """Mean BLEU difference of the pairs, and the same on ``samples`` joint resamples of the sentences."""
    systems = np.stack([table for pair in pairs for table in pair])  # [2 × pairs, sentences, 10]
    sentences = systems.shape[1]
    delta = _mean_delta(systems.sum(axis=1))

    random = np.random.default_rng(seed)
    block = max(1, _DRAWS // sentences)
    deltas = []
    for start in range(0, samples, block):
        draws = random.choice(sentences, size=(min(block, samples - start), sentences), replace=True)
        counts = np.stack([np.bincount(draw, minlength=sentences) for draw in draws]).astype(np.float64)
        deltas.append(_mean_delta(np.moveaxis(counts @ systems, 0, -2)))
    return float(delta), np.concatenate(deltas)


def _mean_delta(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over pairs of the BLEU difference, from summed statistics [..., 2 × pairs, 10]."""
    scores = _bleu(totals)
    return np.asarray((scores[..., 0::2] - scores[..., 1::2]).mean(axis=-1))


def _interval(deltas: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(deltas, [2.5, 97.5])
    return float(low), float(high)


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
