"""Differences in BLEU over several seeds, from what BLEU is on common resamples of the test sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SeedsDifference:
    """The mean over seeds of a BLEU difference, its 95 % interval and its p-value."""

    delta: float
    low: float
    high: float
    p_value: float


def over_seeds(deltas: Sequence[float], resampled: Sequence[NDArray[np.float64]]) -> SeedsDifference:
    """The mean of ``deltas``, one per seed, with the uncertainty that the test sentences leave.

    ``resampled``: of each seed its difference on every resample, [samples]. The k-th resample has to be the same
    sentences for all seeds, because all of them translate one test set: sentences are drawn jointly. p is the formula
    of sacreBLEU's paired bootstrap test applied to the mean difference, and 1 where no resample shows any.
    """
    joint = np.mean(np.stack(list(resampled)), axis=0)
    delta = float(np.mean(deltas))
    low, high = interval(joint)
    p_value = 1.0
    if any(np.any(values) for values in resampled):
        sizes = np.abs(joint)
        p_value = (int(np.sum(sizes - sizes.mean() > abs(delta))) + 1) / (len(joint) + 1)
    return SeedsDifference(delta, low, high, p_value)


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of p-values that are read together, in the order given (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
