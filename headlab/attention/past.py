"""What a decoder remembers between the tokens of an incremental decoding: keys and values, sentence by sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: What one decoding remembers: a :class:`Past` under the name of each attention layer, and in a beam search
#: under BEAM a mask (sentences, hypotheses, keys) for self-attention, added to its scores: 0 where a key belongs to
#: the hypothesis and ``-inf`` where it does not.
State = dict[str, Any]
BEAM = "beam"


@dataclass
class Past:
    """The keys and values of one attention layer so far, both (sentences, heads, at least ``length``, head width).

    The hypotheses of a sentence keep theirs side by side, and the mask under BEAM says whose is whose: so a beam
    search never has to move them. ``length`` positions are filled; ``padding`` (sentences, ``length``) is true where a
    key is padding, None where none is.
    """

    k: Tensor
    v: Tensor
    length: int
    padding: Tensor | None = None

    def keys_values(self) -> tuple[Tensor, Tensor]:
        """Both (sentences * heads, length, head width): views."""
        return self.k[:, :, : self.length].flatten(0, 1), self.v[:, :, : self.length].flatten(0, 1)

    def append(self, k: Tensor, v: Tensor) -> None:
        """Add new positions, each (sentences, heads, positions, head width)."""
        start, self.length = self.length, self.length + k.size(2)
        if self.length > self.k.size(2):  # twice the room, so that what is there is copied rarely
            room = k.new_empty(*k.shape[:2], self.length, k.size(3))
            self.k, self.v = torch.cat([self.k[:, :, :start], room], 2), torch.cat([self.v[:, :, :start], room], 2)
        self.k[:, :, start : self.length] = k
        self.v[:, :, start : self.length] = v

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but those numbered ``sentences``."""
        self.k = self.k[:, :, : self.length].index_select(0, sentences)
        self.v = self.v[:, :, : self.length].index_select(0, sentences)
        if self.padding is not None:
            self.padding = self.padding.index_select(0, sentences)
