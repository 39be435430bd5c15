"""Grouped Head Attention: Ni et al. 2023, section 3, with Voting-to-Stay.

In training, the k heads of every attention layer are put into C groups by k-means over one feature map per head
(``map``: V values, A attention weights, O outputs; before dropout and gates, padding left out), afresh in every
forward pass, and the group constraint of every layer (headlab.methods.grouping.constraint) is added to the loss:

    weighting=per_token     cross-entropy per target token + mean over layers   (paper)
    weighting=as_released   cross-entropy summed over tokens + sum over layers  (released code: ntokens / layers weaker)

Then every batch of one epoch votes, the model frozen and in evaluation mode: in each group the head nearest to the
centre gets 1. The C heads that stay are chosen in :mod:`headlab.methods.voting`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.heads import Head, Layout
from headlab.attention.layer import HeadAttention, attention_layers
from headlab.config import GhaConfig
from headlab.methods.base import LossFn, Method
from headlab.methods.grouping import (
    constraint,
    cosines,
    flat,
    gram,
    kmeans,
    matched,
    nearest,
    shares,
    structure,
)
from headlab.methods.voting import LayerVote, stay


class GHA(Method):
    """The group constraint in training, and the vote after it.

    Args:
        cfg: map, alpha, beta, weighting, and when and how to vote.
        groups: C; a layer that has fewer heads gets as many groups as heads.
        seed: of ``vote=random_*``.
    """

    name = "gha"
    trains = True
    watches = True
    #: How many batches of the valid set the structure of the groups is measured on when an epoch ends.
    DEV_BATCHES = 2

    def __init__(self, cfg: GhaConfig, groups: int, seed: int) -> None:
        self.cfg, self.groups, self.seed = cfg, groups, seed
        self.polled: list[LayerVote] = []
        self.vote_update: int | None = None  # after which update the weights to vote on were kept
        self.last: dict[str, tuple[Tensor, Tensor]] = {}  # per layer: Gram matrix and groups of the last batch
        self.epoch_groups: dict[str, list[int]] = {}  # per layer, on the dev batches of the last epoch
        self.epoch_centres: dict[str, Tensor] = {}
        self.epoch_numbers: dict[str, float] = {}

    def attach(self, model: nn.Module, scope: Iterable[str]) -> None:
        """Ask the layers for their feature maps."""
        super().attach(model, scope)
        self.live = [layer for layer in self.layers if layer.heads]
        self.by_size: dict[int, list[HeadAttention]] = {}
        for layer in self.live:
            self.by_size.setdefault(layer.num_heads, []).append(layer)
        # The first layer of the decoder knows the padding of what enc-dec is asked by.
        self.decoder = next(iter(attention_layers(model, ["dec-self"])), None)
        for layer in self.live:
            layer.record = frozenset({self.cfg.map, "padding"})
        if self.decoder is not None:
            self.decoder.record |= {"padding"}

    def detach(self) -> None:
        """Ask the layers for nothing any more."""
        for layer in [*self.live, *([] if self.decoder is None else [self.decoder])]:
            layer.record, layer.features = frozenset(), {}

    def _rows(self, layer: HeadAttention) -> Tensor:
        """The feature maps of a layer in its last forward pass, (heads, numbers), padding as 0."""
        about_keys = self.cfg.map == "V" or layer.kind != "enc-dec"
        source = layer if about_keys or self.decoder is None else self.decoder
        padding = source.features.get("padding")
        return flat(layer.features[self.cfg.map], None if padding is None else ~padding)

    def _grouped(self, rows: dict[str, Tensor]) -> Iterable[tuple[list[HeadAttention], int, Tensor, Tensor]]:
        """Layers of equal size, their number of groups, Gram matrices and groups, from one matrix of each layer."""
        for size, layers in self.by_size.items():
            grams = torch.stack([rows[layer.name] for layer in layers])
            groups = min(self.groups, size)
            yield layers, groups, grams, kmeans(grams, groups).to(grams.device)

    def loss(self, ntokens: int) -> Tensor | None:
        """The group constraint of the forward pass before, per target token; None where alpha and beta are 0."""
        cfg = self.cfg
        if not self.live or (cfg.alpha == 0 and cfg.beta == 0):
            return None
        total = torch.zeros((), device=self.live[0].out_proj.weight.device)
        for layers, groups, grams, found in self._grouped(self._grams()):
            total = total + constraint(grams, found, groups, cfg.alpha, cfg.beta).sum()
            for layer, one, members in zip(layers, grams.detach(), found, strict=True):
                self.last[layer.name] = one, members
        return total / (len(self.live) if cfg.weighting == "per_token" else ntokens)

    def _grams(self) -> dict[str, Tensor]:
        """The Gram matrix of every layer for the forward pass before, whose features are let go."""
        found = {layer.name: gram(self._rows(layer)) for layer in self.live}
        for layer in self.layers:
            layer.features = {}
        return found

    def epoch_ended(self, epoch: int, update: int, batches: Iterable[Any], loss_fn: LossFn) -> bool:
        """Measure the groups on fixed dev batches in evaluation mode; true when these are the weights to vote on.

        They are after epoch ``vote_epoch``, or, with ``threshold``, after the first epoch in which no centre moved by
        more than that, relative to its length (and at the latest after ``vote_epoch``).
        """
        rows: dict[str, list[Tensor]] = {layer.name: [] for layer in self.live}
        for batch in islice(batches, self.DEV_BATCHES):
            loss_fn(batch)
            for layer in self.live:
                rows[layer.name].append(self._rows(layer).clone())  # not of inference mode
        whole = {name: torch.cat(parts, 1) for name, parts in rows.items()}
        numbers: dict[str, float] = {}
        changes, shift = 0, 0.0
        for layers, groups, grams, found in self._grouped({name: gram(one) for name, one in whole.items()}):
            measured = structure(grams, found)
            centres = shares(found, groups, grams).transpose(1, 2)
            for place, layer in enumerate(layers):
                now = found[place].tolist()
                same = matched(self.epoch_groups.get(layer.name, now), now)
                now = [same[group] for group in now]
                changes += sum(a != b for a, b in zip(now, self.epoch_groups.get(layer.name, now), strict=True))
                self.epoch_groups[layer.name] = now
                numbers |= {f"{key}/{layer.name}": float(values[place]) for key, values in measured.items()}
                if self.cfg.threshold is not None:
                    moved = torch.empty(groups, centres.size(2)).to(centres)
                    moved[[same[group] for group in range(groups)]] = centres[place]
                    shift = max(shift, self._shift(layer.name, (moved @ whole[layer.name]).cpu()))
        self.epoch_numbers = numbers | {"group_changes": changes}
        if self.cfg.threshold is not None:
            self.epoch_numbers["centre_shift"] = shift
        settled = self.cfg.threshold is not None and shift < self.cfg.threshold
        if self.vote_update is None and (settled or epoch == self.cfg.vote_epoch):
            self.vote_update = update
            return True
        return False

    def _shift(self, name: str, centres: Tensor) -> float:
        """The largest way of a centre of a layer since the epoch before, over its length then; infinite at first."""
        before, self.epoch_centres[name] = self.epoch_centres.get(name), centres
        if before is None:
            return math.inf
        return float(((centres - before).norm(dim=1) / before.norm(dim=1).clamp_min(1e-12)).max())

    def score(self, batches: Iterable[Any], loss_fn: LossFn) -> None:
        """Let every batch vote: in each group of each layer the head nearest to the centre gets 1.

        k-means numbers groups arbitrarily. So the groups that count are those of the Gram matrices summed over all
        batches (the whole epoch as one feature map), and the groups of a batch are taken for those of the epoch that
        they share most heads with (:func:`headlab.methods.grouping.matched`).
        """
        total = {layer.name: torch.zeros(layer.num_heads, layer.num_heads) for layer in self.live}
        ballots: dict[str, list[tuple[list[int], list[int]]]] = {layer.name: [] for layer in self.live}
        for batch in batches:
            loss_fn(batch)
            grams = {name: one.detach().double().cpu() for name, one in self._grams().items()}
            for layers, groups, stacked, found in self._grouped(grams):
                winners = nearest(stacked, found, groups)
                for place, layer in enumerate(layers):
                    total[layer.name] = total[layer.name] + stacked[place]
                    ballots[layer.name].append((found[place].tolist(), winners[place].tolist()))
        polled: dict[str, LayerVote] = {}
        for layers, groups, stacked, found in self._grouped(total):
            alike = cosines(stacked)
            for place, layer in enumerate(layers):
                votes = [[0] * layer.num_heads for _ in range(groups)]
                for members, first in ballots[layer.name]:
                    same = matched(found[place].tolist(), members)
                    for group, winner in enumerate(first):
                        votes[same[group]][winner] += 1
                polled[layer.name] = LayerVote(
                    layer.kind, layer.layer, layer.heads, tuple(found[place].tolist()), tuple(map(tuple, votes)),
                    tuple(tuple(round(value, 4) for value in row) for row in alike[place].tolist()),
                )  # fmt: skip
        self.polled = [polled[layer.name] for layer in self.live]

    def scores(self) -> dict[Head, float]:
        """The votes of every head; 0 before the vote."""
        votes = {head: count for vote in self.polled for head, count in vote.scores.items()}
        return {head: votes.get(head, 0.0) for head in self.heads()}

    def keep(self, target: int, layout: Layout) -> Layout:
        """``layout`` with the ``target`` heads that the vote leaves (:func:`headlab.methods.voting.stay`)."""
        return layout.keep(stay(self.polled, self.cfg.vote, target, self.seed), self.scope)

    def log(self) -> dict[str, float]:
        """How the groups of the last batch are set apart, a mean over layers; what the end of an epoch found, once."""
        found: dict[str, list[float]] = {}
        for one, members in self.last.values():
            for key, value in structure(one[None], members[None]).items():
                if not math.isnan(value):
                    found.setdefault(key, []).append(float(value))
        numbers = {key: sum(values) / len(values) for key, values in found.items()}
        numbers |= {key: value for key, value in self.epoch_numbers.items() if math.isfinite(value)}
        self.epoch_numbers = {}
        return numbers | ({} if self.vote_update is None else {"vote_update": self.vote_update})

    def state_dict(self) -> dict[str, Any]:
        """What the next epoch is compared with, and when to vote."""
        return {
            "vote_update": self.vote_update,
            "epoch_groups": self.epoch_groups,
            "epoch_centres": self.epoch_centres,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up an earlier epoch."""
        self.vote_update, self.epoch_groups = state["vote_update"], state["epoch_groups"]
        self.epoch_centres = state["epoch_centres"]
