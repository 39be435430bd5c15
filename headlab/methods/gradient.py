"""How much the loss hangs on a head: Michel, Levy and Neubig 2019, equation 2.

Multiply every head's output by a mask xi_h of ones; then

    I_h = E_x | dL(x) / dxi_h |        dL/dxi_h = sum over positions and width of O_h * dL/dO_h

with O_h the head's output before the output projection. One backward pass gives all heads of all sentences of a
batch at once. ``per=example`` takes the absolute value per sentence, as the paper's expectation says; ``per=batch``
per batch. L is summed over the target tokens of a sentence or batch and I_h divided by all target tokens, so that
both are in nats per token. Each layer's I is divided by its L2 norm (``normalise``).

The paper removes the heads of lowest I. With ``rounds=10`` they go a tenth at a time, and what is left is scored anew
with those gone; the score of a head is then its place in the order of removal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.heads import Head
from headlab.attention.layer import HeadAttention
from headlab.config import GradientConfig
from headlab.methods.base import LossFn
from headlab.methods.ordering import Ordering, recorded, without


class Gradient(Ordering):
    """The absolute gradient of the loss with respect to a mask of ones on the heads."""

    name = "gradient"
    differentiates = True

    def __init__(self, cfg: GradientConfig) -> None:
        super().__init__()
        self.cfg = cfg

    @property
    def passes(self) -> int:
        """One per round."""
        return self.cfg.rounds

    def score(self, batches: Iterable[Any], loss_fn: LossFn) -> None:
        """Score all heads at once, or round by round those that are left."""
        heads, rounds = self.heads(), self.cfg.rounds
        if rounds == 1:
            self.values = self.importance(batches, loss_fn, [])
            return
        gone: list[Head] = []
        for number in range(1, rounds + 1):
            found = self.importance(batches, loss_fn, gone)
            left = [head for head in reversed(heads) if head not in gone]  # of equal heads the later one goes first
            rising = sorted(left, key=lambda head: found[head])
            gone += rising[: round(number * len(heads) / rounds) - len(gone)]
        self.values = {head: float(place) for place, head in enumerate(gone)}

    def importance(self, batches: Iterable[Any], loss_fn: LossFn, gone: Collection[Head]) -> dict[Head, float]:
        """I_h of every head of the scope with the heads ``gone`` left out, which have 0."""
        layers = self.live
        sums = [torch.zeros(layer.num_heads, dtype=torch.float64) for layer in layers]
        tokens = 0
        with without(layers, gone), recorded(layers, "O"), outputs(layers) as written:
            for batch in batches:
                loss, count = loss_fn(batch)
                tokens += count
                slopes = torch.autograd.grad(loss, written(), materialize_grads=True)
                for place, (layer, slope) in enumerate(zip(layers, slopes, strict=True)):
                    by_sentence = mask_gradient(layer, slope)
                    units = by_sentence if self.cfg.per == "example" else by_sentence.sum(0, keepdim=True)
                    sums[place] += units.abs().sum(0).cpu()
        values: dict[Head, float] = {}
        for layer, total in zip(layers, sums, strict=True):
            names = [Head(layer.kind, layer.layer, index) for index in layer.heads]
            found = total / tokens * torch.tensor([head not in gone for head in names])
            if self.cfg.normalise:
                found = found / found.norm().clamp_min(1e-30)
            values |= dict(zip(names, found.tolist(), strict=True))
        return values


def mask_gradient(layer: HeadAttention, slope: Tensor) -> Tensor:
    """dL/dxi of every sentence and head, (sentences, heads), in double precision.

    ``slope`` (queries, sentences, dim) is dL/dY for the layer's output Y = sum_h xi_h O_h W_h + b, whose O is recorded.
    It is 0 at padding, which no loss hangs on.
    """
    back = (slope @ layer.out_proj.weight.to(slope.dtype)).detach().unflatten(-1, (layer.num_heads, -1))
    return torch.einsum("bhqw,qbhw->bh", layer.features["O"].detach().double(), back.double())


@contextmanager
def outputs(layers: Sequence[HeadAttention]) -> Iterator[Any]:
    """Gives a function that returns the outputs of ``layers`` in the last forward pass, as leaves or nodes of a graph.

    They require gradients even where nothing before them does.
    """
    found: dict[str, Tensor] = {}

    def keep(layer: nn.Module, inputs: Any, output: Any) -> None:
        assert isinstance(layer, HeadAttention)
        found[layer.name] = (output[0] if isinstance(output, tuple) else output).requires_grad_()

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield lambda: [found[layer.name] for layer in layers]
    finally:
        for hook in hooks:
            hook.remove()
