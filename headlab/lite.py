"""Baselines of Ni et al. 2023 that are small from the start: as many parameters as a pruned model, all their heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headlab.attention.heads import Layout
from headlab.config import ModelConfig
from headlab.scoring.size import ModelShape, parameters


def model_shape(model: ModelConfig, source: int, target: int) -> ModelShape:
    """The sizes of ``model`` over vocabularies of ``source`` and ``target`` pieces."""
    return ModelShape(
        model.encoder_layers, model.decoder_layers, model.heads, model.dim, model.ffn, source, target,
        norm=model.norm, shared_embeddings=model.share_all_embeddings,
    )  # fmt: skip


def as_small_as(model: ModelConfig, layout: Layout) -> dict[str, ModelConfig]:
    """The shapes whose parameters, embeddings left out, are nearest to those of ``model`` with the heads of ``layout``.

    ``lite1`` has fewer layers, as many in either stack where it had as many; ``lite2`` is narrower, its feed-forward
    layers in proportion. For Transformer-base with 36 of 144 heads these are the paper's Lite1 (4 + 4 layers) and
    Lite2 (width 424, feed-forward 1696).
    """
    wanted = parameters(model_shape(model, 0, 0), layout, embeddings=False)

    def nearest(shapes: Iterable[ModelConfig]) -> ModelConfig:
        def size(shape: ModelConfig) -> int:
            full = Layout.full(shape.encoder_layers, shape.decoder_layers, shape.heads)
            return parameters(model_shape(shape, 0, 0), full, embeddings=False)

        return min(shapes, key=lambda shape: abs(size(shape) - wanted))

    deepest = max(model.encoder_layers, model.decoder_layers)
    shallow = (
        replace(
            model,
            encoder_layers=max(round(model.encoder_layers * depth / deepest), 1),
            decoder_layers=max(round(model.decoder_layers * depth / deepest), 1),
        )
        for depth in range(1, deepest + 1)
    )
    narrow = (
        replace(model, dim=dim, ffn=round(model.ffn * dim / model.dim))
        for dim in range(model.heads, model.dim + 1, model.heads)
    )
    return {"lite1": nearest(shallow), "lite2": nearest(narrow)}
