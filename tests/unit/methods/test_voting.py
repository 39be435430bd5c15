"""Who stays: votes, ties and counts done by hand."""

from __future__ import annotations

import json
import random
from dataclasses import asdict

import pytest

from headlab.attention.heads import Head
from headlab.methods.voting import LayerVote, per_group, per_layer, random_heads, random_members, stay


def vote(groups: list[int], votes: list[list[int]], kind: str = "enc-self", layer: int = 0) -> LayerVote:
    heads = tuple(range(len(groups)))
    return LayerVote(kind, layer, heads, tuple(groups), tuple(map(tuple, votes)), ((1.0,) * len(groups),) * len(groups))


def test_of_each_group_the_most_voted_stays():
    assert per_group(vote([0, 0, 0, 1, 1], [[5, 9, 1, 0, 0], [0, 0, 0, 2, 13]])) == [1, 4]


def test_the_released_code_keeps_the_most_voted_of_the_layer():
    split = vote([0, 0, 0, 1, 1], [[7, 8, 0, 0, 0], [0, 0, 0, 9, 6]])
    assert per_group(split) == [1, 3]
    lopsided = vote([0, 0, 1, 1, 1], [[8, 7, 0, 0, 0], [0, 0, 5, 5, 5]])
    assert per_layer(lopsided) == [0, 1]  # both of one group
    assert per_group(lopsided) == [0, 2]


def test_ties_go_to_the_earlier_head():
    assert per_group(vote([0, 0, 1, 1], [[4, 4, 0, 0], [0, 0, 4, 4]])) == [0, 2]
    assert per_layer(vote([0, 0, 1, 1], [[4, 4, 0, 0], [0, 0, 4, 4]])) == [0, 1]


def test_a_head_that_two_groups_voted_for_stays_once():
    # head 1 leads in both; its 9 votes for group 1 are settled first, so group 0 takes the next of its own
    assert per_group(vote([0, 1, 1], [[3, 6, 0], [0, 9, 8]])) == [0, 1]
    # group 1 has votes for nobody else: the head with most votes in all fills up
    assert per_group(vote([0, 1, 1, 0], [[2, 9, 0, 5], [0, 8, 0, 0]])) == [1, 3]


def test_random_members_come_from_different_groups_and_any_may_come():
    one = vote([0, 0, 0, 1, 1, 1, 1, 1], [[9, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 9, 0, 0, 0, 0]])
    drawn = [tuple(random_members(one, random.Random(seed))) for seed in range(300)]
    assert {tuple(one.groups[p] for p in places) for places in drawn} == {(0, 1)}
    assert len(set(drawn)) == 3 * 5
    heads = {tuple(random_heads(one, random.Random(seed))) for seed in range(600)}
    assert len(heads) == 28  # any two of eight


def layers() -> list[LayerVote]:
    return [
        vote([0, 0, 1, 1], [[9, 1, 0, 0], [0, 0, 4, 6]]),
        vote([0, 0, 0, 1], [[0, 3, 7, 0], [0, 0, 0, 10]], layer=1),
        vote([0, 1, 1, 1], [[10, 0, 0, 0], [0, 2, 6, 2]], "enc-dec"),
    ]


def names(target: int, how: str = "per_group", seed: int = 1) -> list[str]:
    return [str(head) for head in stay(layers(), how, target, seed)]


def test_the_papers_case_keeps_the_groups_of_every_layer():
    assert names(6) == ["enc-self.0.0", "enc-self.0.3", "enc-self.1.2", "enc-self.1.3", "enc-dec.0.0", "enc-dec.0.2"]


def test_the_fewest_voted_of_the_scope_go_until_the_target_is_reached():
    # 6 votes twice: the later one, enc-dec.0.2, goes first
    assert names(5) == ["enc-self.0.0", "enc-self.0.3", "enc-self.1.2", "enc-self.1.3", "enc-dec.0.0"]
    assert names(4) == ["enc-self.0.0", "enc-self.1.2", "enc-self.1.3", "enc-dec.0.0"]
    assert names(3) == ["enc-self.0.0", "enc-self.1.3", "enc-dec.0.0"]


def test_the_last_head_of_a_layer_is_never_dropped():
    poor = [
        vote([0, 0, 1, 1], [[1, 0, 0, 0], [0, 0, 2, 0]]),
        vote([0, 0, 1, 1], [[9, 0, 0, 0], [0, 0, 8, 0]], layer=1),
    ]
    assert [str(head) for head in stay(poor, "per_group", 2, 1)] == ["enc-self.0.2", "enc-self.1.0"]


@pytest.mark.parametrize("target", [0, 2, 7, 12])
def test_other_targets_are_refused(target):
    with pytest.raises(ValueError, match=f"cannot keep {target} heads: 3 layers keep one each at least, 6 stay"):
        names(target)


@pytest.mark.parametrize("how", ["random_members", "random_heads"])
def test_random_choices_are_exact_and_repeat_for_a_seed(how):
    assert names(5, how, 3) == names(5, how, 3)
    assert len({tuple(names(5, how, seed)) for seed in range(40)}) > 5
    assert all(len(set(names(target, how, seed))) == target for target in (3, 4, 5, 6) for seed in range(20))


def test_votes_survive_json_and_give_scores():
    for one in layers():
        assert LayerVote.from_json(json.loads(json.dumps(asdict(one)))) == one
    assert layers()[2].scores == {Head("enc-dec", 0, i): n for i, n in enumerate((10.0, 2.0, 6.0, 2.0))}
