"""The slow reference: how much the loss on the dev set rises when one head is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from headlab.methods.base import LossFn
from headlab.methods.ordering import Ordering, without


class LeaveOneOut(Ordering):
    """Loss per target token without a head minus that with all; one pass per head, and one with all."""

    name = "leave-one-out"

    @property
    def passes(self) -> int:
        """One more than there are heads."""
        return len(self.heads()) + 1

    def score(self, batches: Iterable[Any], loss_fn: LossFn) -> None:
        """Measure the loss with all heads, then without each of them."""
        whole = dev_loss(batches, loss_fn)
        for head in self.heads():
            with without(self.layers, [head]):
                self.values[head] = dev_loss(batches, loss_fn) - whole


def dev_loss(batches: Iterable[Any], loss_fn: LossFn) -> float:
    """Nats per target token over all ``batches``."""
    looked = [loss_fn(batch) for batch in batches]
    total = torch.stack([loss.detach().double() for loss, _ in looked]).sum()
    return float(total) / sum(tokens for _, tokens in looked)
