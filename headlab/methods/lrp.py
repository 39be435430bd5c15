"""How much of the most likely word's logit comes through a head: Voita et al. 2019, section 4.

For every generation step of the dev set (the words before it as in the reference) a relevance of 1 starts at the
logit of the top-1 word and walks back to the embeddings (:mod:`headlab.methods.relevance`). What passes through the
output of a head is divided by the sum of its absolute value over the heads of the layer; the score is the mean over
all steps. With ``rule=as_released`` no relevance is negative, so that the heads of a layer share 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.layer import HeadAttention, attention_layers
from headlab.config import LrpConfig
from headlab.methods.base import LossFn
from headlab.methods.ordering import Ordering, recorded
from headlab.methods.relevance import Network, Rule, Walk, watched


class LRP(Ordering):
    """Mean relevance of a head to the top-1 logit, of that of its layer.

    Args:
        cfg: the rule and its eps.
        adapter: tells a model's parts apart.
    """

    name = "lrp"
    #: By how much the relevance that arrives may differ from the 1 that started, on average, before a warning.
    TOLERANCE = 1e-3
    #: The released code's constant, and one small enough to conserve the sums of plain ratios.
    EPS, PAPER_EPS = 1e-5, 1e-12

    def __init__(self, cfg: LrpConfig, adapter: Callable[[Any], Network]) -> None:
        super().__init__()
        released = cfg.rule == "as_released"
        eps = (self.EPS if released else self.PAPER_EPS) if cfg.eps is None else cfg.eps
        self.adapter, self.rule = adapter, Rule(released, eps)
        self.lost = 0.0

    def attach(self, model: nn.Module, scope: Iterable[str]) -> None:
        """Look at the whole model, whatever the scope."""
        super().attach(model, scope)
        self.network, self.every = self.adapter(model), attention_layers(model)
        self.decoder = attention_layers(model, ["dec-self"])[0]

    @torch.no_grad()
    def score(self, batches: Iterable[Any], loss_fn: LossFn) -> None:
        """Walk back from every step of every sentence."""
        sums = {layer.name: torch.zeros(layer.num_heads, dtype=torch.float64) for layer in self.live}
        steps, lost = 0, 0.0
        with recorded(self.every, "V", "A", "O", "padding"), watched(self.network) as seen:
            for batch in batches:
                loss_fn(batch)
                walk = Walk(self.network, seen, self.rule)
                features = walk.features()
                best = (features @ self.network.words.detach().to(features).t()).argmax(-1)
                for position, chosen in enumerate(best):
                    real = self._real(position, chosen)
                    arrived = walk.step(position, chosen)
                    lost += float((arrived - 1)[real].abs().sum())
                    steps += int(real.sum())
                    for layer in self.live:
                        sums[layer.name] += self._share(layer, walk)[real].sum(0).cpu()
        self.lost = lost / steps
        self.take(sums[layer.name] / steps for layer in self.live)

    def _real(self, position: int, chosen: Tensor) -> Tensor:
        padding = self.decoder.features.get("padding")
        return torch.ones_like(chosen, dtype=torch.bool) if padding is None else ~padding[:, position]

    @staticmethod
    def _share(layer: HeadAttention, walk: Walk) -> Tensor:
        found = walk.heads[layer.name]
        return found / found.abs().sum(1, keepdim=True).clamp_min(1e-30)

    def warnings(self) -> list[str]:
        """Relevance that got lost on the way, or came up."""
        if self.lost <= self.TOLERANCE:
            return []
        return [f"relevance changed by {self.lost:.2g} of itself on the way, on average: set method.lrp.eps smaller"]
