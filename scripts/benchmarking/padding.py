"""How much of the training batches is padding: the most that another batching could gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headlab.config import OptimConfig
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task

#: Source lengths to a band of sentences that are sorted by their target lengths.
WIDTHS = range(1, 7)


@dataclass(frozen=True)
class Padding:
    """Shares of padded positions, from 0 to 1, on either side and on both together."""

    source: float
    target: float
    both: float


def padding(batches: Iterable[Sequence[int]], source: Sequence[int], target: Sequence[int]) -> Padding:
    """The padding of ``batches`` (numbers of sentences) for sentences of these lengths in pieces."""
    lengths = np.array([source, target])
    positions = np.zeros(2)
    for batch in batches:
        positions += lengths[:, batch].max(axis=1) * len(batch)
    real = lengths.sum(axis=1)
    on_source, on_target = (1 - real / positions).tolist()
    return Padding(on_source, on_target, 1 - float(real.sum() / positions.sum()))


def paddings(corpus: Corpus, machine: Machine, optim: OptimConfig) -> tuple[Padding, Padding]:
    """The padding of fairseq's batches of the training set, and the least that :func:`by_both` leaves.

    fairseq sorts sentences by source, then by target length, and cuts that into batches; here only the order differs.
    """
    task = load_task(corpus, machine)
    task.load_dataset("train")
    data = task.dataset("train")
    itr = task.get_batch_iterator(data, max_tokens=optim.batch_tokens, max_positions=task.max_positions())
    stock = padding(itr.frozen_batches, data.src_sizes, data.tgt_sizes)
    orders = [by_both(data.src_sizes, data.tgt_sizes, width) for width in WIDTHS]
    cut = [data.batch_by_size(each, max_tokens=optim.batch_tokens) for each in orders]
    return stock, min((padding(each, data.src_sizes, data.tgt_sizes) for each in cut), key=lambda each: each.both)


def by_both(source: Sequence[int], target: Sequence[int], width: int) -> NDArray[np.int64]:
    """Sentences in bands of ``width`` source lengths, and within a band by target length, up and down in turn."""
    sources, targets = np.asarray(source), np.asarray(target)
    bands = sources // width
    return np.lexsort((sources, np.where(bands % 2, -targets, targets), bands))
