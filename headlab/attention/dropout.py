"""Dropout that is cheap on a CPU, where torch's Bernoulli sampling costs more than the matrix products around it.

A mask needs one random number per element but not 53 random bits: here each element gets 16 bits of NumPy's
SFC64 stream. The stream is seeded from torch's generator, so ``torch.manual_seed`` reproduces masks as usual.
The rate is the nearest multiple of 1/65536 and the scale is its exact inverse, so the output is unbiased.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16
_LARGEST_SEED = (1 << 63) - 1


class _ScaledMask(torch.autograd.Function):
    """``x * mask`` for a constant mask; keeps the mask alone for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad_outputs[0] * mask, None


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element of ``x`` independently with probability ``p`` in training and scale the rest by 1 / (1 - p).

    On a GPU this is torch's fused kernel.
    """
    if not training or p <= 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p, training)
    dropped = round(p * _LEVELS)
    stream = np.random.SFC64(int(torch.randint(_LARGEST_SEED, ())))
    draws = torch.from_numpy(stream.random_raw((x.numel() + 3) // 4).view(np.int16))
    mask = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Written as numbers at once: a mask of bools would cost twice the time to convert.
    torch.ge(draws[: x.numel()].view(x.shape), dropped - _LEVELS // 2, out=mask)
    return _ScaledMask.apply(x, mask.mul_(_LEVELS / (_LEVELS - dropped)))


class Dropout(nn.Module):
    """:func:`dropout` as a module."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """``x`` of any shape; ``inplace`` is accepted for fairseq's sake and ignored."""
        return dropout(x, self.p, self.training)
