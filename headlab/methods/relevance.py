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

from collections.abc import Callable, Iterator, Sequence
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

    @property
    def dtype(self) -> torch.dtype:
        """Plain ratios grow to millions on their way and cancel out again; positive shares of 1 do not."""
        return torch.float32 if self.released else torch.float64


class Contributions:
    """What goes from inputs x, (..., inputs), to outputs x W^T; hands relevance back as often as it is asked.

    Args:
        rule: how.
        x: the inputs; where the first dimension is positions, relevance may be of the first few alone.
        weight: W, (..., outputs, inputs).
        within: how many of the last dimensions as_released scales as one.
    """

    def __init__(self, rule: Rule, x: Tensor, weight: Tensor, within: int = 1) -> None:
        self.released, self.x, self.weight, self.within = rule.released, x, weight, within
        if self.released:
            self.x_up, self.x_down = x.clamp_min(0), x.clamp_max(0)
            self.w_up, self.w_down = weight.clamp_min(0), weight.clamp_max(0)
            self.up = self.x_up @ self.w_up.mT + self.x_down @ self.w_down.mT + rule.eps
            self.down = self.x_up @ self.w_down.mT + self.x_down @ self.w_up.mT - rule.eps
        else:
            outputs = x @ weight.mT
            self.total = outputs + torch.where(outputs < 0, -rule.eps, rule.eps)

    def back(self, relevance: Tensor) -> Tensor:
        """From the relevance of the outputs to that of the inputs."""
        n = relevance.size(0)
        if not self.released:
            return self.x[:n] * ((relevance / self.total[:n]) @ self.weight)
        half = 0.5 * relevance
        up, down = half / self.up[:n], half / self.down[:n]
        found = self.x_up[:n] * (up @ self.w_up + down @ self.w_down)
        found += self.x_down[:n] * (up @ self.w_down + down @ self.w_up)
        axes = tuple(range(-self.within, 0))
        given, handed = relevance.abs().sum(axes, keepdim=True), found.abs().sum(axes, keepdim=True)
        return found * (given / handed.clamp_min(_TINY))


@dataclass
class Walk:
    """Relevance walking backwards through one forward pass that was :func:`watched`.

    Positions come first: (positions, sentences, width), as in fairseq. Of the decoder only as many positions are
    looked at as the relevance has: those up to the generation step it started from. ``heads`` gathers the relevance of
    every head's output, (sentences, heads) by layer name.
    """

    network: Network
    seen: dict[nn.Module, tuple[Tensor, Tensor]]
    rule: Rule
    heads: dict[str, Tensor] = field(default_factory=dict)
    known: dict[tuple[nn.Module, str], Contributions] = field(default_factory=dict)  # the same for all steps

    def features(self) -> Tensor:
        """What the output projection reads, (positions, sentences, width)."""
        return self._last(self.network.decoder, self.network.decoder_norm)

    def step(self, position: int, chosen: Tensor) -> Tensor:
        """Walk from the logits of the words ``chosen`` (sentences,) at one position to all embeddings.

        Returns what arrives there of a relevance of 1 for every sentence, (sentences,): 1 up to rounding and eps.
        """
        read = self.features()[: position + 1]
        rows = self.network.words.detach()[chosen][:, None].to(self.rule.dtype)
        relevance = torch.zeros_like(read)
        logits = Contributions(self.rule, read[position][:, None], rows)
        relevance[position] = logits.back(torch.ones_like(logits.x[..., :1]))[:, 0]
        source = torch.zeros_like(self._memory())
        target = self._half(self.network.decoder, self.network.decoder_norm, relevance, source)
        source = self._half(self.network.encoder, self.network.encoder_norm, source, None)
        return target.sum((0, 2)) + source.sum((0, 2))

    def _memory(self) -> Tensor:
        return self._last(self.network.encoder, self.network.encoder_norm)

    def _last(self, blocks: Sequence[Block], norm: nn.Module | None) -> Tensor:
        return self._cast(self.seen[norm if norm is not None else blocks[-1].norm][1])

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.rule.dtype)

    def _once(
        self, module: nn.Module, what: str, make: Callable[[], tuple[Tensor, Tensor]], within: int = 1
    ) -> Contributions:
        """The contributions of a part of the network, whose inputs and weight ``make`` gives."""
        if (module, what) not in self.known:
            x, weight = map(self._cast, make())
            self.known[module, what] = Contributions(self.rule, x, weight, within)
        return self.known[module, what]

    def _norm(self, norm: nn.Module) -> Contributions:
        """Of a layer norm: scales cancel in all ratios, what is left is its input minus the mean."""
        x = self.seen[norm][0]
        width = x.size(-1)
        return self._once(norm, "norm", lambda: (x, torch.eye(width, device=x.device) - 1 / width))

    def _linear(self, module: nn.Linear, read: Tensor) -> Contributions:
        return self._once(module, "linear", lambda: (read, module.weight))

    def _sum(self, block: Block, a: Tensor, b: Tensor) -> Contributions:
        """Of a + b, each (..., width): two inputs for every output."""
        return self._once(block.norm, "sum", lambda: (torch.stack([a, b], -1), a.new_ones(1, 2)), within=2)

    def _half(
        self, blocks: Sequence[Block], norm: nn.Module | None, relevance: Tensor, memory: Tensor | None
    ) -> Tensor:
        """From the output of encoder or decoder to its embeddings; what goes to the encoder is added to ``memory``."""
        first = self.network.norm_first
        if norm is not None:
            relevance = self._norm(norm).back(relevance)
        for block in reversed(blocks):
            inside = block.inside
            if not first:
                relevance = self._norm(block.norm).back(relevance)
            if isinstance(inside, HeadAttention) and not inside.heads:  # adds a bias, which gets nothing
                continue
            enters, writes = (inside, inside) if isinstance(inside, HeadAttention) else inside
            entered, written = self.seen[enters][0], self.seen[writes][1]
            beside = self.seen[block.norm][0] if first else entered
            kept, relevance = self._sum(block, beside, written).back(relevance[..., None]).unbind(-1)
            if isinstance(inside, HeadAttention) and inside.kind == "enc-dec":
                assert memory is not None
                memory += self._attention(inside, self._memory(), relevance)
                relevance = torch.zeros_like(relevance)  # queries get nothing
            elif isinstance(inside, HeadAttention):
                relevance = self._attention(inside, entered, relevance)
            else:
                relevance = self._linear(inside[1], self.seen[inside[1]][0]).back(relevance)
                relevance = self._linear(inside[0], entered).back(relevance)
            if first:
                relevance = self._norm(block.norm).back(relevance)
            relevance = kept + relevance
        return relevance

    def _attention(self, layer: HeadAttention, read: Tensor, relevance: Tensor) -> Tensor:
        """From a layer's output (queries, sentences, dim) to what its values were made of, ``read``."""
        out, weights, values = (self._cast(layer.features[name]) for name in ("O", "A", "V"))
        queries = relevance.size(0)
        keys = queries if layer.kind == "dec-self" else read.size(0)
        per_head = self._linear(layer.out_proj, out.permute(2, 0, 1, 3).flatten(2)).back(relevance)
        per_head = per_head.unflatten(2, (layer.num_heads, -1))  # (queries, sentences, heads, width)
        self.heads[layer.name] = per_head.sum((0, 3))
        looked = Contributions(self.rule, values[:, :, :keys].mT, weights[:, :, :queries, :keys], within=2)
        to_values = looked.back(per_head.permute(1, 2, 3, 0))  # (sentences, heads, width, keys)
        return self._linear(layer.v_proj, read).back(to_values.permute(3, 0, 1, 2).flatten(2))


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
