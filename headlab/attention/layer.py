"""Multi-head attention that knows its heads by name: gated, recorded and removed one by one. Pure torch.

One class serves encoder self-attention, decoder self-attention and encoder-decoder attention, in training,
in evaluation and in incremental decoding. Ungated and with all its heads it computes
softmax(Q K^T / sqrt(d_h)) V W_o + b exactly as Vaswani et al. 2017 (section 3.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headlab.attention.dropout import dropout
from headlab.attention.heads import KINDS

#: Per attention module: the keys, values (sentences x heads, positions, head width) and key padding seen so far.
State = dict[str, dict[str, Tensor]]


class HeadAttention(nn.Module):
    """Scaled dot-product attention over a set of named heads.

    Args:
        kind: ``enc-self``, ``dec-self`` or ``enc-dec``.
        dim: width of queries and outputs, in channels.
        heads: number of heads; each is ``dim // heads`` wide.
        key_dim: width of keys and values (default ``dim``).
        dropout: probability of dropping an attention weight in training.

    ``gate`` is None or a module that returns one factor per head, shape (heads,), each time it is called: once
    per forward pass. ``record`` names the per-head features to keep in ``features`` after a forward pass:
    ``V`` values (sentences, heads, keys, width), ``A`` attention weights (sentences, heads, queries, keys),
    ``O`` head outputs (sentences, heads, queries, width); all before dropout and before the gate. ``padding``
    keeps what was given as ``key_padding`` (sentences, keys), and nothing where nothing was.
    """

    gate: nn.Module | None

    def __init__(self, kind: str, dim: int, heads: int, key_dim: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"{heads} heads do not divide a width of {dim}")
        self.kind, self.layer = kind, 0
        self.dim, self.head_dim = dim, dim // heads
        self.heads: tuple[int, ...] = tuple(range(heads))  # the original indices of the heads that exist
        self.dropout = dropout
        key_dim = dim if key_dim is None else key_dim
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(key_dim, dim)
        self.v_proj = nn.Linear(key_dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.gate = None
        self.beam = 1  # in incremental decoding: how many neighbouring rows of the memory are one sentence
        self.record: frozenset[str] = frozenset()
        self.features: dict[str, Tensor] = {}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform projections, as fairseq: Q, K and V with gain 1/sqrt(2) as if they were one matrix."""
        same = self.k_proj.in_features == self.dim
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5 if same else 1.0)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    @property
    def num_heads(self) -> int:
        """How many heads exist now."""
        return len(self.heads)

    @property
    def name(self) -> str:
        """``kind.layer``: unique in a model."""
        return f"{self.kind}.{self.layer}"

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        key_padding: Tensor | None = None,
        mask: Tensor | None = None,
        state: State | None = None,
    ) -> Tensor:
        """Attend from ``query`` to ``memory``.

        Args:
            query: (queries, sentences, dim).
            memory: (keys, sentences, key_dim); None attends to ``query`` itself.
            key_padding: (sentences, keys), true where a key is padding.
            mask: (queries, keys), added to the scores; ``-inf`` forbids.
            state: incremental decoding: the keys and values of earlier calls, extended here for
                self-attention and computed once for encoder-decoder attention.

        Returns:
            (queries, sentences, dim).
        """
        queries, sentences, _ = query.shape
        if not self.heads:  # nothing to add but the bias of the output projection
            self._record(sentences, padding=key_padding)
            return self.out_proj.bias.to(query.dtype).expand(queries, sentences, self.dim)
        k, v, key_padding = self._keys_values(query, memory, key_padding, state)
        # In a beam search the hypotheses of one sentence attend to the same keys: they become more queries of it.
        beam = sentences * self.num_heads // k.size(0)
        sentences //= beam
        # Queries are scaled before the product: it is the smaller tensor.
        q = self._split(self.q_proj(query) * self.head_dim**-0.5, beam)
        scores = torch.bmm(q, k.transpose(1, 2))
        if mask is not None:
            scores = scores.add_(mask)
        if key_padding is not None:
            by_sentence = scores.view(sentences, self.num_heads, beam * queries, -1)
            scores = by_sentence.masked_fill_(key_padding[:, None, None, :], float("-inf")).view_as(scores)
        weights = torch.softmax(scores, dim=-1)
        context = torch.bmm(dropout(weights, self.dropout, self.training), v)
        if self.record:
            self._record(sentences, V=v, A=weights, O=context, padding=key_padding)
        context = self._merge(context, beam)
        weight = self.out_proj.weight
        if self.gate is not None:
            # A gate scales a head's output, that is its columns of the output projection: one small product
            # instead of one over all positions, and gradients reach the gate just the same.
            weight = weight * self.gate().to(weight.dtype).repeat_interleave(self.head_dim)
        return F.linear(context, weight, self.out_proj.bias)

    def _split(self, x: Tensor, beam: int = 1) -> Tensor:
        """(positions, sentences * beam, heads * width) -> (sentences * heads, beam * positions, width).

        A view where there is no beam.
        """
        positions, rows, _ = x.shape
        if beam == 1:
            return x.view(positions, rows * self.num_heads, self.head_dim).transpose(0, 1)
        x = x.view(positions, rows // beam, beam, self.num_heads, self.head_dim)
        return x.permute(1, 3, 2, 0, 4).reshape(-1, beam * positions, self.head_dim)

    def _merge(self, x: Tensor, beam: int) -> Tensor:
        """The inverse of :meth:`_split`."""
        if beam > 1:
            x = x.view(-1, self.num_heads, beam, x.size(1) // beam, self.head_dim).permute(0, 2, 1, 3, 4)
            x = x.reshape(-1, x.size(3), self.head_dim)
        return x.transpose(0, 1).reshape(x.size(1), -1, self.num_heads * self.head_dim)

    def _keys_values(
        self, query: Tensor, memory: Tensor | None, key_padding: Tensor | None, state: State | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        past = state.get(self.name, {}) if state is not None else {}
        if memory is not None and past:  # encoder-decoder: projected once per sentence
            return past["k"].flatten(0, 1), past["v"].flatten(0, 1), past.get("padding")
        source = query if memory is None else memory
        if memory is not None and state is not None and self.beam > 1:
            # Beam search repeats every sentence of the memory; once is enough.
            source = memory[:, :: self.beam].contiguous()
            key_padding = key_padding[:: self.beam] if key_padding is not None else None
        k, v = self._split(self.k_proj(source)), self._split(self.v_proj(source))
        if state is not None:
            sentences = source.size(1)
            k, v = (t.reshape(sentences, self.num_heads, -1, self.head_dim) for t in (k, v))
            if past:
                k, v = torch.cat([past["k"], k], 2), torch.cat([past["v"], v], 2)
                key_padding = _join_padding(past.get("padding"), key_padding, past["k"].size(2), k)
            state[self.name] = {"k": k, "v": v}
            if key_padding is not None:
                state[self.name]["padding"] = key_padding
            k, v = k.flatten(0, 1), v.flatten(0, 1)
        return k, v, key_padding

    def reorder(self, state: State, order: Tensor) -> None:
        """Follow a beam search: row ``i`` of the state becomes row ``order[i]``.

        Encoder-decoder attention keeps one row per sentence, and moves nothing as long as none leaves the batch.
        """
        past = state.get(self.name)
        if past is None:
            return
        if self.kind == "enc-dec":
            order = order[:: self.beam] // self.beam
            if order.size(0) == past["k"].size(0):
                return
        state[self.name] = {name: tensor.index_select(0, order) for name, tensor in past.items()}

    def _record(self, sentences: int, padding: Tensor | None, **tensors: Tensor) -> None:
        self.features = {
            name: t.unflatten(0, (sentences, self.num_heads)) for name, t in tensors.items() if name in self.record
        }
        if padding is not None and "padding" in self.record:
            self.features["padding"] = padding

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f"{self.name}, heads={list(self.heads)} of width {self.head_dim}"


def _join_padding(past: Tensor | None, new: Tensor | None, past_length: int, keys: Tensor) -> Tensor | None:
    """Key padding (sentences, keys) over the earlier and the new keys; None where there is none in either."""
    if past is None and new is None:
        return None
    sentences, new_length = keys.size(0), keys.size(2) - past_length

    def filled(padding: Tensor | None, length: int) -> Tensor:
        return padding if padding is not None else torch.zeros(sentences, length, dtype=torch.bool, device=keys.device)

    return torch.cat([filled(past, past_length), filled(new, new_length)], 1)


def attention_layers(model: nn.Module, scope: Iterable[str] | None = None) -> list[HeadAttention]:
    """The attention layers of ``model`` (of the kinds in ``scope``) in table order: kind, then layer."""
    kinds = set(KINDS if scope is None else scope)
    found = [m for m in model.modules() if isinstance(m, HeadAttention) and m.kind in kinds]
    return sorted(found, key=lambda m: (KINDS.index(m.kind), m.layer))
