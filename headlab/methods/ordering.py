"""What methods share that rank heads by looking at a trained model, and train nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.heads import Head
from headlab.attention.layer import HeadAttention
from headlab.methods.base import Method


class Ordering(Method):
    """A method whose scores are the ``values`` that :meth:`score` found, or that an earlier :meth:`score` saved."""

    looks = True

    def __init__(self) -> None:
        self.values: dict[Head, float] = {}

    @property
    def live(self) -> list[HeadAttention]:
        """The layers that have heads."""
        return [layer for layer in self.layers if layer.heads]

    def scores(self) -> dict[Head, float]:
        """The value of every head; there are none before :meth:`score`."""
        return {head: self.values[head] for head in self.heads()}

    def take(self, rows: Iterable[Tensor]) -> None:
        """Set the values from one row (heads,) per layer of :attr:`live`."""
        flat = [float(value) for row in rows for value in row]
        self.values = dict(zip(self.heads(), flat, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The values under the names of their heads."""
        return {"scores": {str(head): value for head, value in self.scores().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up saved values."""
        self.values = {Head.parse(name): value for name, value in state["scores"].items()}


class Mask(nn.Module):
    """A gate of given factors, shape (heads,)."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.register_buffer("factors", factors)

    def forward(self) -> Tensor:
        """The factors, in training and in evaluation."""
        return self.get_buffer("factors")


@contextmanager
def without(layers: Sequence[HeadAttention], heads: Iterable[Head]) -> Iterator[None]:
    """Leave ``heads`` out of every forward pass inside: their gates are 0 and those of all others 1."""
    gone = set(heads)
    before = [layer.gate for layer in layers]
    try:
        for layer in layers:
            stays = [float(Head(layer.kind, layer.layer, index) not in gone) for index in layer.heads]
            layer.gate = Mask(torch.tensor(stays).to(layer.out_proj.weight))
        yield
    finally:
        for layer, gate in zip(layers, before, strict=True):
            layer.gate = gate


@contextmanager
def recorded(layers: Sequence[HeadAttention], *names: str) -> Iterator[None]:
    """Have ``layers`` keep these features of every forward pass inside, beside what they keep anyway."""
    before = [layer.record for layer in layers]
    try:
        for layer in layers:
            layer.record = layer.record | set(names)
        yield
    finally:
        for layer, names_before in zip(layers, before, strict=True):
            layer.record, layer.features = names_before, {}
