"""The size of what a head writes with: the norm of its block of the output projection. Looks at no data."""

from __future__ import annotations

from headlab.attention.heads import Head
from headlab.methods.base import Method


class Magnitude(Method):
    """||W_h||_F, with W_h the head's columns of the output projection."""

    name = "magnitude"

    def scores(self) -> dict[Head, float]:
        """The Frobenius norm of every head's block."""
        blocks = [layer.out_proj.weight.detach().unflatten(1, (-1, layer.head_dim)) for layer in self.layers]
        norms = [float(norm) for block in blocks for norm in block.double().norm(dim=(0, 2))]
        return dict(zip(self.heads(), norms, strict=True))
