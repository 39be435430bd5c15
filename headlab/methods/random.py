"""Random head scores: the rival that every learned method has to beat (Budhraja et al. 2020)."""

from __future__ import annotations

import torch

from headlab.attention.heads import Head
from headlab.methods.base import Method, ranked


class Random(Method):
    """A seeded random order of all heads of the scope; a smaller target keeps a subset of a larger one's heads."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def scores(self) -> dict[Head, float]:
        """The same order for the same seed and the same heads, whatever the model."""
        heads = self.heads()
        return ranked(heads, torch.randperm(len(heads), generator=torch.Generator().manual_seed(self.seed)))
