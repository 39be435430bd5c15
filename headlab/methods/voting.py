"""Voting-to-Stay (Ni et al. 2023, section 3.2): which heads stay, from the votes of one epoch. Plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headlab.attention.heads import Head


@dataclass(frozen=True)
class LayerVote:
    """What the votes of one epoch say about the heads of one attention layer.

    ``groups`` is the group of each of ``heads`` (original indices) over the whole epoch; ``votes[g][i]`` how many
    batches found the i-th head nearest to the centre of group g; ``cosines[i][j]`` is over the whole epoch.
    """

    kind: str
    layer: int
    heads: tuple[int, ...]
    groups: tuple[int, ...]
    votes: tuple[tuple[int, ...], ...]
    cosines: tuple[tuple[float, ...], ...]

    def total(self, place: int) -> int:
        """Votes of the head at ``place``, for whichever group."""
        return sum(votes[place] for votes in self.votes)

    @property
    def scores(self) -> dict[Head, float]:
        """Votes of every head."""
        return {Head(self.kind, self.layer, i): float(self.total(p)) for p, i in enumerate(self.heads)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LayerVote:
        """Read what ``dataclasses.asdict`` and JSON made of one."""

        def nested(rows: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
            return tuple(map(tuple, rows))

        return cls(
            value["kind"], value["layer"], tuple(value["heads"]), tuple(value["groups"]),
            nested(value["votes"]), nested(value["cosines"]),
        )  # fmt: skip


def per_group(vote: LayerVote) -> list[int]:
    """The paper: of every group the head with most votes stays; places of as many heads as there are groups.

    A head may have votes for two groups (k-means moved it): the largest count is settled first, and takes its head
    and its group out. Of equal counts the earlier head, then the lower group; a group that nobody else is left for
    takes the head with most votes in all.
    """
    cells = [(-count, place, group) for group, votes in enumerate(vote.votes) for place, count in enumerate(votes)]
    chosen: dict[int, int] = {}
    for minus, place, group in sorted(cells):
        if minus and group not in chosen and place not in chosen.values():
            chosen[group] = place
    left = sorted(set(range(len(vote.heads))) - set(chosen.values()), key=lambda p: (-vote.total(p), p))
    return sorted([*chosen.values(), *left[: len(vote.votes) - len(chosen)]])


def per_layer(vote: LayerVote) -> list[int]:
    """The released code: the C heads of the layer with most votes stay; of equal counts the earlier ones."""
    ranked = sorted(range(len(vote.heads)), key=lambda place: (-vote.total(place), place))
    return sorted(ranked[: len(vote.votes)])


def random_members(vote: LayerVote, draw: random.Random) -> list[int]:
    """Ablation: of every group any member stays."""
    groups = sorted(set(vote.groups))
    return sorted(draw.choice([p for p, g in enumerate(vote.groups) if g == group]) for group in groups)


def random_heads(vote: LayerVote, draw: random.Random) -> list[int]:
    """Ablation: any C heads of the layer stay."""
    return sorted(draw.sample(range(len(vote.heads)), len(vote.votes)))


def stay(votes: Sequence[LayerVote], how: str, target: int, seed: int) -> list[Head]:
    """Exactly ``target`` heads: the C of every layer, less those with fewest votes until ``target`` are left.

    ``how`` is per_group, per_layer, random_members or random_heads (drawn with ``seed``). The last head of a layer
    is never dropped; of heads with equal votes the later one in table order goes first. Raises ValueError where
    ``target`` cannot be reached.
    """
    draw = random.Random(seed)
    rules = {
        "per_group": per_group,
        "per_layer": per_layer,
        "random_members": lambda vote: random_members(vote, draw),
        "random_heads": lambda vote: random_heads(vote, draw),
    }
    staying = [(vote.total(p), (n, p)) for n, vote in enumerate(votes) if vote.heads for p in rules[how](vote)]
    layers = {n for _, (n, _) in staying}
    if not len(layers) <= target <= len(staying):
        raise ValueError(
            f"cannot keep {target} heads: {len(layers)} layers keep one each at least, {len(staying)} stay by vote"
        )
    for candidate in sorted(staying, key=lambda item: (item[0], [-number for number in item[1]])):
        if len(staying) == target:
            break
        if sum(n == candidate[1][0] for _, (n, _) in staying) > 1:
            staying.remove(candidate)
    return [Head(votes[n].kind, votes[n].layer, votes[n].heads[p]) for _, (n, p) in staying]
