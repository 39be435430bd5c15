"""Removing heads for good: fewer rows in Q, K and V, fewer columns in the output projection. Pure torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import HeadAttention, attention_layers


def remove_heads(model: nn.Module, layout: Layout, factors: Mapping[Head, float] | None = None) -> None:
    """Cut ``model`` down to the heads of ``layout``, in place.

    Args:
        model: any module that contains :class:`HeadAttention` layers.
        layout: the heads to keep, by original index; each must still exist.
        factors: what each kept head's output is multiplied by for good, folded into its columns of the output
            projection (a gate at evaluation); 1 where absent. 0 is refused: such a head should be removed.

    A gate on a layer is taken off. The result computes what the model computed with its removed heads masked.
    Raises ValueError where the layout is one of another model, and leaves the model as it is.
    """
    factors = factors or {}
    layers = attention_layers(model)
    _check(layers, layout, factors)
    for layer in layers:
        keep = layout.kept[layer.kind][layer.layer]
        factor = [float(factors.get(Head(layer.kind, layer.layer, i), 1.0)) for i in keep]
        cut_layer(layer, keep, torch.tensor(factor))


def _check(layers: Sequence[HeadAttention], layout: Layout, factors: Mapping[Head, float]) -> None:
    heads: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        heads[layer.kind] = (*heads.get(layer.kind, ()), layer.dim // layer.head_dim)
    for kind in KINDS:
        own, given = heads.get(kind, ()), layout.heads.get(kind, ())
        if own != given:
            raise ValueError(f"layout: has {kind} layers of {given} heads, the model of {own}")
    existing = {Head(layer.kind, layer.layer, index) for layer in layers for index in layer.heads}
    for head in layout:
        if head not in existing:
            raise ValueError(f"head {head} does not exist any more")
        if factors.get(head) == 0:
            raise ValueError(f"head {head} is kept but its gate is 0")


def cut_layer(layer: HeadAttention, keep: Sequence[int], factors: Tensor) -> None:
    """Keep the heads ``keep`` (original indices) of one layer, scaled by ``factors``, shape (len(keep),)."""
    places = [layer.heads.index(i) for i in keep]
    rows = torch.tensor([p * layer.head_dim + j for p in places for j in range(layer.head_dim)], dtype=torch.long)
    rows = rows.to(layer.out_proj.weight.device)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        projection.weight = _like(projection.weight, projection.weight[rows])
        projection.bias = _like(projection.bias, projection.bias[rows])
        projection.out_features = len(rows)
    scale = factors.repeat_interleave(layer.head_dim).to(layer.out_proj.weight)
    layer.out_proj.weight = _like(layer.out_proj.weight, layer.out_proj.weight[:, rows] * scale)
    layer.out_proj.in_features = len(rows)
    layer.heads = tuple(keep)
    layer.gate = None


def _like(old: Tensor, new: Tensor) -> nn.Parameter:
    return nn.Parameter(new.detach().clone(), requires_grad=old.requires_grad)
