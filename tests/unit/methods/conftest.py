"""Layers to attach methods to: 2 of enc-self, 1 of dec-self and 1 of enc-dec, of 4 heads each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headlab.attention.heads import KINDS
from headlab.attention.layer import HeadAttention


@pytest.fixture
def model() -> nn.ModuleList:
    torch.manual_seed(1)
    layers = nn.ModuleList()
    for kind in reversed(KINDS):  # methods have to find the table order themselves
        for number in range(2 if kind == "enc-self" else 1):
            layer = HeadAttention(kind, 16, 4)
            layer.layer = number
            layers.append(layer)
    return layers
