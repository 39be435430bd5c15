"""fairseq's Transformer as relevance propagation sees it."""

from __future__ import annotations

from typing import Any

from headlab.fairseq_plugin.model import HeadlabTransformer
from headlab.methods.relevance import Block, Network


def network(model: HeadlabTransformer) -> Network:
    """The blocks of ``model`` in the order of its forward pass."""
    encoder, decoder = model.encoder, model.decoder
    return Network(
        encoder=[block for layer in encoder.layers for block in _blocks(layer)],
        decoder=[block for layer in decoder.layers for block in _blocks(layer)],
        encoder_norm=encoder.layer_norm,
        decoder_norm=decoder.layer_norm,
        words=decoder.output_projection.weight,
        norm_first=bool(encoder.layers[0].normalize_before),
    )


def _blocks(layer: Any) -> list[Block]:
    """Self-attention, attention to the encoder where there is one, feed-forward."""
    found = [Block(layer.self_attn_layer_norm, layer.self_attn)]
    if getattr(layer, "encoder_attn", None) is not None:
        found.append(Block(layer.encoder_attn_layer_norm, layer.encoder_attn))
    return [*found, Block(layer.final_layer_norm, (layer.fc1, layer.fc2))]
