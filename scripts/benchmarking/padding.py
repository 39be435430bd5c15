"""How much of the training batches is padding: the most that another batching could gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headlab.config import OptimConfig
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task


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


def stock_padding(corpus: Corpus, machine: Machine, optim: OptimConfig) -> Padding:
    """The padding of fairseq's batches of the training set: sorted by source, then by target length, then cut."""
    task = load_task(corpus, machine)
    task.load_dataset("train")
    data = task.dataset("train")
    itr = task.get_batch_iterator(data, max_tokens=optim.batch_tokens, max_positions=task.max_positions())
    return padding(itr.frozen_batches, data.src_sizes, data.tgt_sizes)
