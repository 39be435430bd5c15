"""Differentiable subset pruning: Li, Cotterell & Sachan 2021, "Differentiable Subset Pruning of Transformer Heads".

Every head of the scope has one weight w, over all layers and kinds. In each forward pass of the model a subset of
exactly K heads is drawn by the Gumbel trick and relaxed, so that the weights learn from the model's own loss:

    r   = w + Gumbel noise
    p_1 = softmax(r / t);   r <- r + ln(1 - p_j),  p_(j+1) = softmax(r / t)      a head that was picked steps back
    m   = p_1 + ... + p_K                                                        every p sums to 1, so m sums to K

and head h is multiplied by m_h. The temperature t falls geometrically, and m hardens to the K largest r. At test
time the heads with the K largest w stay. K is part of the training: each target needs a selection of its own.

    relaxation=soft              m itself
    relaxation=straight_through  forward the K largest r, backward the gradient of m
    relaxation=identity          forward the K largest w without noise, backward as if that were w (released code)
    mode=joint                   the model trains along with the weights
    mode=pipelined               the model is frozen while heads are selected, and trained after
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from headlab.attention.heads import Head
from headlab.config import DspConfig
from headlab.methods.base import Method

#: What float32 cannot tell from nothing beside 1: a head with no more than that left to pick has been picked.
NOTHING = torch.finfo(torch.float32).eps
#: How many times as large as the gradient of the mask that of the weights may become in one pass.
SLOPE = 10.0


def gumbel(shape: tuple[int, ...], device: torch.device | None = None, draw: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise in float32, always finite."""
    waits = torch.empty(shape, dtype=torch.float32, device=device).exponential_(generator=draw)
    return -waits.clamp_min(torch.finfo(torch.float32).tiny).log()


def soft_top_k(r: Tensor, k: int, temperature: float) -> Tensor:
    """The relaxed mask of the ``k`` largest of ``r``, shape (heads,): it sums to ``k``; entries may exceed 1.

    A head that was picked for certain is left out of later picks: ln(1 - p) is bounded in float32, and one that is
    far ahead would be picked again. Where two of ``r`` are nearly equal the gradient grows as a power of 1/t (at
    t = 0.01 it is often beyond 1e6) and says no more than that they are; it is scaled down to ``SLOPE`` times that
    of the mask, so that it neither overflows nor, in a norm that is clipped, leaves nothing for the model.
    """
    if k in (0, len(r)):
        return r * 0 + float(k > 0)  # nothing to choose, but part of the graph
    mask, rest = torch.zeros_like(r), r
    for _ in range(k):
        p = torch.softmax(rest / temperature, dim=0)
        mask = mask + p
        left = 1 - p
        rest = torch.where(left > NOTHING, rest + left.clamp_min(NOTHING).log(), -math.inf)
    if mask.requires_grad:
        largest: list[Tensor] = []
        mask.register_hook(lambda gradient: largest.append(gradient.abs().max()))
        r.register_hook(lambda gradient: _bounded(gradient, SLOPE * largest.pop()))
    return mask


def _bounded(gradient: Tensor, limit: Tensor) -> Tensor:
    """``gradient`` in its direction, no entry larger than ``limit``; nothing where it overflowed."""
    size = gradient.abs().max()
    scale = (limit / size.clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1.0)
    return torch.where(size.isfinite(), gradient * scale, torch.zeros_like(gradient))


def hard_top_k(r: Tensor, k: int) -> Tensor:
    """1 for the ``k`` largest of ``r`` and 0 for the others, shape (heads,); ties go to the earlier head."""
    mask = torch.zeros_like(r)
    mask[r.argsort(descending=True, stable=True)[:k]] = 1.0
    return mask


class SubsetGate(nn.Module):
    """The weights of the heads of one attention layer, shape (heads,); ``factors`` gives their part of the mask."""

    def __init__(self, w: Tensor, factors: Callable[[], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(w.float())
        self.w.param_group = "gates"  # type: ignore[attr-defined] # own learning rate, no weight decay
        self.factors = factors

    def forward(self) -> Tensor:
        """One factor per head, shape (heads,): of a draw in training, 1 or 0 in evaluation."""
        return self.factors()


class DSP(Method):
    """One weight per head, learned so that the model does well with ``target`` heads of the scope.

    Args:
        cfg: relaxation, mode, learning rate and temperatures.
        target: K, the number of heads in every draw.
    """

    name = "dsp"
    trains = True
    #: On how many draws :meth:`undecided` is measured.
    DRAWS = 64

    def __init__(self, cfg: DspConfig, target: int) -> None:
        self.cfg, self.target = cfg, target
        self.learning_rate, self.freezes = cfg.lr, cfg.mode == "pipelined"
        self.temperature = cfg.start
        self.drawn: dict[int, Tensor] = {}  # by layer: its part of the draw of this forward pass, until it is taken

    def attach(self, model: nn.Module, scope: Iterable[str]) -> None:
        """Put gates on the layers; weights start Glorot-uniform over (layers, heads), as in the released code.

        Raises ValueError where the scope does not have ``target`` heads.
        """
        super().attach(model, scope)
        if not 0 <= self.target <= len(self.heads()):
            raise ValueError(f"no subset of {self.target} heads among the {len(self.heads())} of the scope")
        bound = math.sqrt(6 / (len(self.layers) + max(layer.num_heads for layer in self.layers)))
        self.gates: list[SubsetGate] = []
        for place, layer in enumerate(self.layers):
            w = torch.empty(layer.num_heads).uniform_(-bound, bound)
            gate = SubsetGate(w, partial(self._factors, place)).to(layer.out_proj.weight.device)
            layer.gate = gate
            self.gates.append(gate)
        self.start = self.weights().detach().clone()

    def weights(self) -> Tensor:
        """w of all heads of the scope in table order, in float32."""
        return torch.cat([gate.w.float() for gate in self.gates])

    def _factors(self, place: int) -> Tensor:
        """The part of the mask that belongs to the layer at ``place``.

        All layers share one draw for each forward pass. A pass asks every layer once, so a layer that asks again
        begins the next one.
        """
        if not self.gates[place].training:
            return self._by_layer(hard_top_k(self.weights().detach(), self.target))[place]
        if place not in self.drawn:
            self.drawn = dict(enumerate(self._by_layer(self.draw())))
        return self.drawn.pop(place)

    def _by_layer(self, mask: Tensor) -> tuple[Tensor, ...]:
        return mask.split([layer.num_heads for layer in self.layers])

    def draw(self) -> Tensor:
        """The mask of one forward pass in training, shape (heads,), from torch's own random numbers.

        fairseq's Trainer seeds those by the number of the update, so a resumed run draws what it would have drawn.
        """
        w = self.weights()
        if self.cfg.relaxation == "identity":
            return hard_top_k(w.detach(), self.target) + (w - w.detach())
        r = w + gumbel(w.shape, w.device)
        soft = soft_top_k(r, self.target, self.temperature)
        if self.cfg.relaxation == "soft":
            return soft
        return hard_top_k(r.detach(), self.target) + (soft - soft.detach())

    def advance(self, epoch: int, update: int, progress: float) -> None:
        """Cool down: geometrically from ``start`` to ``end`` over the share ``cooldown`` of the selection."""
        cfg = self.cfg
        self.temperature = cfg.start * (cfg.end / cfg.start) ** min(progress / cfg.cooldown, 1.0)

    def scores(self) -> dict[Head, float]:
        """w of every head."""
        return dict(zip(self.heads(), self.weights().tolist(), strict=True))

    def undecided(self) -> float:
        """How many of the heads of a draw are not among those that would be kept, on average."""
        if self.cfg.relaxation == "identity":
            return 0.0
        w = self.weights().detach().cpu()
        noise = gumbel((self.DRAWS, len(w)), draw=torch.Generator().manual_seed(0))
        picked = (w + noise).topk(self.target).indices
        return self.target - float(hard_top_k(w, self.target)[picked].sum()) / self.DRAWS

    def log(self) -> dict[str, float]:
        """Open heads, temperature, how far draws are from the kept heads, and w between the last kept and the next."""
        falling = sorted(self.scores().values(), reverse=True)
        numbers = {"heads_open": self.target, "temperature": self.temperature, "undecided": self.undecided()}
        if 0 < self.target < len(falling):
            numbers["gap"] = falling[self.target - 1] - falling[self.target]
        return numbers

    def warnings(self) -> list[str]:
        """Weights that hardly moved, or draws that still differ from what is kept."""
        found: list[str] = []
        moved = max((self.weights().detach() - self.start).abs().tolist(), default=0.0)
        if 0 < self.target < len(self.start) and moved < 0.5:
            found.append(f"no weight moved by more than {moved:.2f}: raise method.dsp.lr or the number of updates")
        if (undecided := self.undecided()) > self.target / 4:
            found.append(
                f"of {self.target} heads in a draw {undecided:.1f} are not among those kept, on average: "
                "raise method.dsp.lr or the number of updates"
            )
        return found
