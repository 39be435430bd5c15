"""Layer-wise relevance propagation through a Transformer: Voita et al. 2019, section 4 and appendix; Bach et al. 2015.

The relevance of an output is handed to what went into it, in proportion to contributions z = weight * input:

    paper         r_i = sum_o  z_oi / (Z_o + eps sign(Z_o)) r_o,    Z_o = sum_i z_oi
    as_released   r_i = sum_o (z_oi+ / 2 (Z_o+ + eps) + z_oi- / 2 (Z_o- - eps)) r_o, positive and negative z apart;
                  then scaled so that each position (head, for attention) hands on all that it got

Non-linearities are ignored: ReLU is the identity, a layer norm subtracts the mean and has constant scales, attention
weights are constants, so that relevance goes to values alone (``consider_attn_constant`` of the released code).
Biases get nothing, so that sums are conserved. (The released code spreads a bias over all inputs and, unless told
otherwise, lets relevance go to queries and keys too.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.layer import HeadAttention

_TINY = 1e-30


@dataclass(frozen=True)
class Block:
    """A residual block: x + f(norm(x)), or norm(x + f(x)) after it; f is attention or two linear maps."""

    norm: nn.Module
    inside: HeadAttention | tuple[nn.Linear, nn.Linear]


@dataclass(frozen=True)
class Network:
    """What relevance has to know of a Transformer; ``norm_first`` says where the norms of all blocks stand.

    ``words`` is the output projection, (words, dim).
    """

    encoder: Sequence[Block]
    decoder: Sequence[Block]
    encoder_norm: nn.Module | None
    decoder_norm: nn.Module | None
    words: Tensor
    norm_first: bool

    @property
    def modules(self) -> list[nn.Module]:
        """Every module whose inputs and outputs relevance goes by."""
        found = [norm for norm in (self.encoder_norm, self.decoder_norm) if norm is not None]
        for block in [*self.encoder, *self.decoder]:
            found += [block.norm, *(block.inside if isinstance(block.inside, tuple) else [block.inside])]
        return found


@dataclass(frozen=True)
class Rule:
    """How the relevance of outputs is shared among inputs; ``released`` names the rule, else it is the paper's."""

    released: bool
    eps: float

    def linear(self, x: Tensor, weight: Tensor, relevance: Tensor, within: int = 1) -> Tensor:
        """From the outputs x W^T, (..., outputs), to the inputs x, (..., inputs); weight (..., outputs, inputs).

        ``within`` last dimensions are what as_released scales as one.
        """
        if not self.released:
            outputs = x @ weight.mT
            signed = torch.where(outputs < 0, -self.eps, self.eps)
            return x * ((relevance / (outputs + signed)) @ weight)
        x_up, x_down, w_up, w_down = x.clamp_min(0), x.clamp_max(0), weight.clamp_min(0), weight.clamp_max(0)
        up = 0.5 * relevance / (x_up @ w_up.mT + x_down @ w_down.mT + self.eps)
        down = 0.5 * relevance / (x_up @ w_down.mT + x_down @ w_up.mT - self.eps)
        found = x_up * (up @ w_up + down @ w_down) + x_down * (up @ w_down + down @ w_up)
        axes = tuple(range(-within, 0))
        given, handed = relevance.abs().sum(axes, keepdim=True), found.abs().sum(axes, keepdim=True)
        return found * (given / handed.clamp_min(_TINY))

    def add(self, a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
        """From a + b to both."""
        ones = torch.ones(1, 2, dtype=a.dtype, device=a.device)
        shared = self.linear(torch.stack([a, b], -1), ones, relevance[..., None], within=2)
        return shared[..., 0], shared[..., 1]

    def norm(self, x: Tensor, relevance: Tensor) -> Tensor:
        """From a layer norm to its input: scales cancel in all ratios, what is left is x minus its mean."""
        width = x.size(-1)
        centring = torch.eye(width, dtype=x.dtype, device=x.device) - 1 / width
        return self.linear(x, centring, relevance)


@dataclass
class Walk:
    """Relevance walking backwards through one forward pass that was :func:`watched`.

    Positions come first: (positions, sentences, width), as in fairseq. Of the decoder only as many positions are
    looked at as the relevance has: those up to the generation step it started from. ``heads`` gathers the relevance of
    every head's output, (sentences, heads) by layer name; all in double precision.
    """

    network: Network
    seen: dict[nn.Module, tuple[Tensor, Tensor]]
    rule: Rule
    heads: dict[str, Tensor] = field(default_factory=dict)

    def features(self) -> Tensor:
        """What the output projection reads, (positions, sentences, width)."""
        return self._last(self.network.decoder, self.network.decoder_norm)

    def step(self, position: int, chosen: Tensor) -> Tensor:
        """Walk from the logits of the words ``chosen`` (sentences,) at one position to all embeddings.

        Returns what arrives there of a relevance of 1 for every sentence, (sentences,): 1 up to the rule's eps.
        """
        read = self.features()[: position + 1]
        rows = self.network.words.detach().double()[chosen][:, None]
        relevance = torch.zeros_like(read)
        one = torch.ones(len(chosen), 1, 1, dtype=read.dtype, device=read.device)
        relevance[position] = self.rule.linear(read[position][:, None], rows, one)[:, 0]
        memory = self._last(self.network.encoder, self.network.encoder_norm)
        source = torch.zeros_like(memory)
        target = self._half(self.network.decoder, self.network.decoder_norm, relevance, source)
        source = self._half(self.network.encoder, self.network.encoder_norm, source, None)
        return target.sum((0, 2)) + source.sum((0, 2))

    def _last(self, blocks: Sequence[Block], norm: nn.Module | None) -> Tensor:
        return self._of(norm if norm is not None else blocks[-1].norm)[1]

    def _of(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        inputs, output = self.seen[module]
        return inputs.detach().double(), output.detach().double()

    def _half(
        self, blocks: Sequence[Block], norm: nn.Module | None, relevance: Tensor, memory: Tensor | None
    ) -> Tensor:
        """From the output of encoder or decoder to its embeddings; what goes to the encoder is added to ``memory``."""
        length = relevance.size(0)
        if norm is not None:
            relevance = self.rule.norm(self._of(norm)[0][:length], relevance)
        for block in reversed(blocks):
            inside, normed = block.inside, self._of(block.norm)[0][:length]
            if isinstance(inside, HeadAttention) and not inside.heads:  # adds a bias, which gets nothing
                relevance = relevance if self.network.norm_first else self.rule.norm(normed, relevance)
                continue
            first, last = (inside, inside) if isinstance(inside, HeadAttention) else inside
            entered, written = self._of(first)[0][:length], self._of(last)[1][:length]
            if not self.network.norm_first:
                relevance = self.rule.norm(normed, relevance)
            kept, relevance = self.rule.add(normed if self.network.norm_first else entered, written, relevance)
            if isinstance(inside, HeadAttention) and inside.kind == "enc-dec":
                assert memory is not None
                read = self._last(self.network.encoder, self.network.encoder_norm)
                memory += self._attention(inside, read, relevance)
                relevance = torch.zeros_like(relevance)  # queries get nothing
            elif isinstance(inside, HeadAttention):
                relevance = self._attention(inside, entered, relevance)
            else:
                relevance = self.rule.linear(self._of(last)[0][:length], inside[1].weight.detach().double(), relevance)
                relevance = self.rule.linear(entered, inside[0].weight.detach().double(), relevance)
            if self.network.norm_first:
                relevance = self.rule.norm(normed, relevance)
            relevance = kept + relevance
        return relevance

    def _attention(self, layer: HeadAttention, read: Tensor, relevance: Tensor) -> Tensor:
        """From a layer's output (queries, sentences, dim) to what its values were made of, ``read``."""
        queries, keys = relevance.size(0), read.size(0)
        maps = {name: layer.features[name].detach().double() for name in ("O", "A", "V")}
        out, weights, values = maps["O"][:, :, :queries], maps["A"][:, :, :queries, :keys], maps["V"][:, :, :keys]
        written = out.permute(2, 0, 1, 3)  # (queries, sentences, heads, width)
        relevance = self.rule.linear(written.flatten(2), layer.out_proj.weight.detach().double(), relevance)
        per_head = relevance.view(written.shape)
        self.heads[layer.name] = per_head.sum((0, 3))
        to_values = self.rule.linear(values.mT, weights, per_head.permute(1, 2, 3, 0), within=2)
        to_values = to_values.permute(3, 0, 1, 2).flatten(2)  # (keys, sentences, heads * width)
        return self.rule.linear(read, layer.v_proj.weight.detach().double(), to_values)


@contextmanager
def watched(network: Network) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Gives the input and the output of every module of ``network`` in the last forward pass inside."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> None:
        entered = inputs[0] if inputs else named["query"]
        seen[module] = entered, output[0] if isinstance(output, tuple) else output

    hooks = [module.register_forward_hook(keep, with_kwargs=True) for module in network.modules]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
