"""Multi-head attention that knows its heads by name: gated, recorded and removed one by one. Pure torch.

One class serves encoder self-attention, decoder self-attention and encoder-decoder attention, in training,
in evaluation and in incremental decoding. Ungated and with all its heads it computes
softmax(Q K^T / sqrt(d_h)) V W_o + b exactly as Vaswani et al. 2017 (section 3.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headlab.attention.dropout import dropout
from headlab.attention.heads import KINDS
from headlab.attention.past import BEAM, Past, State


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
            query: (queries, sentences, dim). While decoding it may hold several neighbouring hypotheses of each
                sentence: (1, sentences * hypotheses, dim).
            memory: (keys, sentences, key_dim); None attends to ``query`` itself.
            key_padding: (sentences, keys), true where a key is padding.
            mask: (queries, keys), added to the scores; ``-inf`` forbids.
            state: incremental decoding: the keys and values of earlier calls, extended here for
                self-attention and computed once for encoder-decoder attention.

        Returns:
            The shape of ``query``.
        """
        queries, rows, _ = query.shape
        if not self.heads:  # nothing to add but the bias of the output projection
            self._record(rows, padding=key_padding)
            return self.out_proj.bias.to(query.dtype).expand(queries, rows, self.dim)
        k, v, key_padding = self._keys_values(query, memory, key_padding, state)
        # The hypotheses of one sentence attend to the same keys: they become more queries of it.
        sentences = k.size(0) // self.num_heads
        beam = rows // sentences
        # Queries are scaled before the product: it is the smaller tensor.
        q = self._split(self.q_proj(query) * self.head_dim**-0.5, beam)
        biases = [] if mask is None else [mask]
        if memory is None and state is not None and BEAM in state:
            biases.append(state[BEAM][:, None])
        if key_padding is not None:
            biases.append(_forbidden(key_padding, q.dtype)[:, None, None])
        q, k, v = (t.unflatten(0, (sentences, -1)) for t in (q, k, v))
        context, weights = (self._fused if self._fuses(q) else self._by_hand)(q, k, v, biases)
        if self.record:
            self._record(sentences, V=v.flatten(0, 1), O=context, padding=key_padding, **weights)
        context = self._merge(context, beam)
        weight = self.out_proj.weight
        if self.gate is not None:
            # A gate scales a head's output, that is its columns of the output projection: one small product
            # instead of one over all positions, and gradients reach the gate just the same.
            weight = weight * self.gate().to(weight.dtype).repeat_interleave(self.head_dim)
        return F.linear(context, weight, self.out_proj.bias)

    def _fuses(self, q: Tensor) -> bool:
        """Whether the kernels of a GPU are taken, which never write the weights down."""
        return q.is_cuda and "A" not in self.record

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """:meth:`_by_hand` in one kernel."""
        bias = reduce(torch.add, biases).to(q.dtype) if biases else None
        rate = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, bias, rate, scale=1.0)
        return context.flatten(0, 1), {}

    def _by_hand(self, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What the heads give, (sentences * heads, queries, width), and their weights as ``A``.

        ``q``, ``k`` and ``v`` are (sentences, heads, positions, width), ``biases`` are added to the scores.
        On a CPU plain products are faster than torch's fused kernel for sentences of usual length.
        """
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
        for bias in biases:
            scores.view(*q.shape[:3], -1).add_(bias)
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(dropout(weights, self.dropout, self.training), v.flatten(0, 1)), {"A": weights}

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
        """Keys and values (sentences * heads, keys, width), and which keys are padding (sentences, keys)."""
        past: Past | None = state.get(self.name) if state is not None else None
        if memory is not None and past is not None:  # encoder-decoder: projected once per sentence
            return *past.keys_values(), past.padding
        source = query if memory is None else memory
        beam = 1
        if memory is None and state is not None:
            if key_padding is not None:
                raise ValueError(f"{self.name}: no padding can be told apart among tokens decoded one by one")
            beam = source.size(1) // state[BEAM].size(0) if BEAM in state else 1
        k, v = self._split(self.k_proj(source), beam), self._split(self.v_proj(source), beam)
        if state is None:
            return k, v, key_padding
        k, v = (t.unflatten(0, (-1, self.num_heads)) for t in (k, v))
        if past is None:
            past = state[self.name] = Past(k, v, k.size(2), key_padding)
        else:
            past.append(k, v)
        return *past.keys_values(), key_padding

    def _record(self, sentences: int, padding: Tensor | None, **tensors: Tensor) -> None:
        self.features = {
            name: t.unflatten(0, (sentences, self.num_heads)) for name, t in tensors.items() if name in self.record
        }
        if padding is not None and "padding" in self.record:
            self.features["padding"] = padding

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f"{self.name}, heads={list(self.heads)} of width {self.head_dim}"


def _forbidden(padding: Tensor, dtype: torch.dtype) -> Tensor:
    """``-inf`` where ``padding`` is true and 0 elsewhere: adding it to scores is faster than filling them."""
    return torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(padding, float("-inf"))


def attention_layers(model: nn.Module, scope: Iterable[str] | None = None) -> list[HeadAttention]:
    """The attention layers of ``model`` (of the kinds in ``scope``) in table order: kind, then layer."""
    kinds = set(KINDS if scope is None else scope)
    found = [m for m in model.modules() if isinstance(m, HeadAttention) and m.kind in kinds]
    return sorted(found, key=lambda m: (KINDS.index(m.kind), m.layer))
