"""fairseq's Transformer with headlab's attention in all three places."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules import FairseqDropout
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from headlab.attention.dropout import Dropout
from headlab.attention.heads import Layout
from headlab.attention.layer import HeadAttention, attention_layers
from headlab.attention.removal import remove_heads
from headlab.config import ModelConfig

MAX_POSITIONS = 1024


class FairseqAttention(HeadAttention):
    """:class:`HeadAttention` behind the call that fairseq's layers make."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, None]:
        """fairseq's arguments; the weights are never returned (``record`` keeps them per head instead)."""
        memory = key if self.kind == "enc-dec" else None
        return super().forward(query, memory, key_padding_mask, attn_mask, incremental_state), None

    def _get_input_buffer(self, incremental_state: dict[str, Any] | None) -> dict[str, Tensor]:
        return {}  # fairseq's decoder layer asks, and uses the answer only with cross_self_attention


class EncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer with headlab's self-attention."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Called by fairseq's constructor."""
        return FairseqAttention("enc-self", embed_dim, cfg.encoder.attention_heads, dropout=cfg.attention_dropout)


class DecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with headlab's two attentions."""

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> nn.Module:
        """Called by fairseq's constructor; the extra keys are not supported and never asked for."""
        return FairseqAttention("dec-self", embed_dim, cfg.decoder.attention_heads, dropout=cfg.attention_dropout)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Called by fairseq's constructor."""
        return FairseqAttention(
            "enc-dec", embed_dim, cfg.decoder.attention_heads, cfg.encoder.embed_dim, cfg.attention_dropout
        )


class Encoder(TransformerEncoderBase):
    """fairseq's encoder over :class:`EncoderLayer`."""

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Called by fairseq's constructor, layer by layer."""
        return EncoderLayer(cfg)


class Decoder(TransformerDecoderBase):
    """fairseq's decoder over :class:`DecoderLayer`."""

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """Called by fairseq's constructor, layer by layer."""
        return DecoderLayer(cfg, no_encoder_attn)


class HeadlabTransformer(TransformerModelBase):
    """An encoder-decoder Transformer whose attention heads can be gated and removed."""

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> Encoder:
        """Called by fairseq's ``build_model``."""
        return Encoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> Decoder:
        """Called by fairseq's ``build_model``."""
        return Decoder(cfg, tgt_dict, embed_tokens)

    def layout(self) -> Layout:
        """The heads that exist now."""
        kept: dict[str, tuple[tuple[int, ...], ...]] = {}
        heads: dict[str, tuple[int, ...]] = {}
        for layer in attention_layers(self):
            kept[layer.kind] = (*kept.get(layer.kind, ()), layer.heads)
            heads[layer.kind] = (*heads.get(layer.kind, ()), layer.dim // layer.head_dim)
        return Layout(kept, heads)


def transformer_config(model: ModelConfig) -> TransformerConfig:
    """fairseq's configuration of the shape ``model``."""
    cfg = TransformerConfig()
    for half, layers in ((cfg.encoder, model.encoder_layers), (cfg.decoder, model.decoder_layers)):
        half.embed_dim, half.ffn_embed_dim = model.dim, model.ffn
        half.layers, half.attention_heads = layers, model.heads
        half.normalize_before = model.norm == "pre"
    cfg.decoder.input_dim = cfg.decoder.output_dim = model.dim
    cfg.max_source_positions = cfg.max_target_positions = MAX_POSITIONS
    cfg.dropout = model.dropout
    cfg.attention_dropout = model.attention_dropout
    cfg.activation_dropout = model.activation_dropout
    # The source embedding is the encoder's own, so that a frozen decoder can be frozen whole.
    cfg.share_decoder_input_output_embed = True
    cfg.share_all_embeddings = model.share_all_embeddings
    return cfg


class _Dictionaries:
    """What fairseq's ``build_model`` asks of a task."""

    def __init__(self, source: Dictionary, target: Dictionary) -> None:
        self.source_dictionary, self.target_dictionary = source, target


def build_model(
    model: ModelConfig, source: Dictionary, target: Dictionary, layout: Layout | None = None
) -> HeadlabTransformer:
    """A randomly initialised Transformer (from torch's current seed) with all heads, or with those of ``layout``."""
    built: HeadlabTransformer = HeadlabTransformer.build_model(transformer_config(model), _Dictionaries(source, target))
    numbers: dict[str, int] = {}
    for module in built.modules():
        if isinstance(module, HeadAttention):
            module.layer = numbers.get(module.kind, 0)
            numbers[module.kind] = module.layer + 1
        for name, child in list(module.named_children()):
            if isinstance(child, FairseqDropout):
                setattr(module, name, Dropout(child.p))
    if model.residual_init == "zero":
        for layer in (*built.encoder.layers, *built.decoder.layers):
            for module in layer.modules():
                if isinstance(module, HeadAttention):
                    nn.init.zeros_(module.out_proj.weight)
            nn.init.zeros_(layer.fc2.weight)
            nn.init.zeros_(layer.fc2.bias)
    if layout is not None:
        remove_heads(built, layout)
    return built


def mark_matrices(model: HeadlabTransformer) -> None:
    """Mark the matrices of the layers, embeddings left out, for an optimiser that treats them differently."""
    for half in (model.encoder, model.decoder):
        for parameter in half.layers.parameters():
            if parameter.dim() == 2:
                parameter.param_group = "matrices"


def freeze_decoder(model: HeadlabTransformer) -> None:
    """Stop training the decoder, its embedding and output projection included (Voita et al. 2019, section 6)."""
    for parameter in model.decoder.parameters():
        parameter.requires_grad_(False)


def detached_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights on the CPU, one entry per tensor: tied tensors appear under their first name."""
    return {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy ``weights`` (as from :func:`detached_state`) into ``model``; ValueError names the first misfit."""
    own = dict(model.named_parameters())
    for name in sorted(own.keys() ^ weights.keys()):
        raise ValueError(f"tensor {name} is {'missing' if name in own else 'not part of this model'}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise ValueError(f"tensor {name} is {tuple(weights[name].shape)}, not {tuple(parameter.shape)}")
            parameter.copy_(weights[name])
