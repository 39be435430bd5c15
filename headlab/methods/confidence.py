"""How sure a head is of where to look: Voita et al. 2019, section 4.

The mean over query positions of the head's largest attention weight, the weight on EOS left out. EOS ends the source,
so it is the last key of enc-self and enc-dec; in the decoder it stands at the start, the first key of dec-self.
Padding counts neither as query nor as key, and a query that has no other key than EOS is left out too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.layer import HeadAttention, attention_layers
from headlab.methods.base import LossFn
from headlab.methods.ordering import Ordering, recorded


class Confidence(Ordering):
    """Mean maximum attention weight without EOS."""

    name = "confidence"

    def attach(self, model: nn.Module, scope: Iterable[str]) -> None:
        """Find the layers of the scope, and the decoder's first, which knows what padding asks enc-dec."""
        super().attach(model, scope)
        self.decoder = attention_layers(model, ["dec-self"])[:1]

    def score(self, batches: Iterable[Any], loss_fn: LossFn) -> None:
        """Look at the attention weights of every batch."""
        layers = self.live
        sums = [torch.zeros(layer.num_heads, dtype=torch.float64) for layer in layers]
        queries = [0] * len(layers)
        with recorded(list(dict.fromkeys([*layers, *self.decoder])), "A", "padding"):
            for batch in batches:
                loss_fn(batch)
                for place, layer in enumerate(layers):
                    found, counted = self._largest(layer)
                    sums[place] += (found * counted[:, None]).sum((0, 2), dtype=torch.float64).cpu()
                    queries[place] += int(counted.sum())
        self.take(total / max(count, 1) for total, count in zip(sums, queries, strict=True))

    def _largest(self, layer: HeadAttention) -> tuple[Tensor, Tensor]:
        """Largest weight of every query (sentences, heads, queries), and which queries count (sentences, queries)."""
        weights, keys = layer.features["A"].detach(), layer.features.get("padding")
        real = torch.ones_like(weights[:, 0, 0], dtype=torch.bool) if keys is None else ~keys
        asking = real if layer.kind != "enc-dec" else self._asking(weights)
        order = torch.arange(real.size(1), device=real.device)
        if layer.kind == "dec-self":
            eos = real & (real.cumsum(1) == 1)
            within = order[None, :] <= order[:, None]  # (queries, keys): no key after the query
        else:
            eos = real & (real.flip(1).cumsum(1).flip(1) == 1)
            within = torch.ones_like(weights[0, 0], dtype=torch.bool)
        seen = (real & ~eos)[:, None, :] & within
        largest = weights.masked_fill(~seen[:, None], 0).amax(-1)
        return largest, asking & seen.any(-1)

    def _asking(self, weights: Tensor) -> Tensor:
        """Which positions of the decoder are no padding."""
        padding = self.decoder[0].features.get("padding") if self.decoder else None
        return torch.ones_like(weights[:, 0, :, 0], dtype=torch.bool) if padding is None else ~padding
