"""Keeping exactly N heads, whatever scored them; the random order."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.removal import remove_heads
from headlab.methods.base import Method
from headlab.methods.random import Random

FULL = Layout(
    {kind: (tuple(range(4)),) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
    {kind: (4,) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
)


class Given(Method):
    """Scores that a test gives, in table order."""

    name = "given"

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def scores(self) -> dict[Head, float]:
        return dict(zip(self.heads(), self.values, strict=True))


def test_heads_come_in_table_order(model):
    method = Given([])
    method.attach(model, ["enc-dec", "enc-self"])
    assert method.scope == ("enc-self", "enc-dec")
    assert list(map(str, method.heads()))[3:6] == ["enc-self.0.3", "enc-self.1.0", "enc-self.1.1"]
    assert str(method.heads()[-1]) == "enc-dec.0.3"
    assert len(method.heads()) == 12


@pytest.mark.parametrize("target", [0, 1, 3, 8])
def test_exactly_the_best_are_kept(model, target):
    method = Given([0.1, -3.0, 2.0, 0.5, 7.0, -1.0, 0.0, 0.2])
    method.attach(model, ["enc-self"])
    layout = method.keep(target, FULL)
    best = [Head("enc-self", 1, 0), Head("enc-self", 0, 2), Head("enc-self", 0, 3)]
    assert layout.count(["enc-self"]) == target
    assert layout.count(["dec-self", "enc-dec"]) == 8
    if target <= 3:
        assert set(layout.within(["enc-self"])) == set(best[:target])
    else:
        assert layout == FULL


def test_ties_go_to_the_earlier_head_in_table_order(model):
    method = Given([1.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    method.attach(model, KINDS)
    assert str(method.keep(4, FULL)) == "enc-self:0=0,1,2,3;1= dec-self:0= enc-dec:0="
    assert str(method.keep(9, FULL)) == "enc-self:0=0,1,2,3;1=0,1,2 dec-self:0=0,1 enc-dec:0="


@pytest.mark.parametrize("target", [-1, 9, 100])
def test_more_heads_than_there_are_and_fewer_than_none_are_refused(model, target):
    method = Given([0.0] * 8)
    method.attach(model, ["enc-self"])
    with pytest.raises(ValueError, match=f"cannot keep {target} of 8 heads within enc-self"):
        method.keep(target, FULL)


def test_only_heads_that_exist_are_scored(model):
    pruned = FULL.keep([Head("enc-self", 1, 3), Head("enc-self", 0, 2)], ["enc-self"])
    remove_heads(model, pruned)
    method = Random(seed=1)
    method.attach(model, ["enc-self"])
    assert list(map(str, method.scores())) == ["enc-self.0.2", "enc-self.1.3"]
    assert method.keep(2, pruned) == pruned
    with pytest.raises(ValueError, match="cannot keep 3 of 2 heads"):
        method.keep(3, pruned)


def random_layouts(model, seed: int) -> list[set[Head]]:
    method = Random(seed)
    method.attach(model, KINDS)
    return [set(method.keep(target, FULL)) for target in range(17)]


def test_random_heads_are_nested_and_exact(model):
    kept = random_layouts(model, seed=3)
    assert [len(heads) for heads in kept] == list(range(17))
    assert all(fewer < more for fewer, more in pairwise(kept))


def test_random_heads_depend_on_their_seed_alone(model):
    first = random_layouts(model, seed=3)
    state = torch.get_rng_state()
    torch.manual_seed(99)
    assert random_layouts(model, seed=3) == first
    torch.manual_seed(99)
    before = torch.get_rng_state()
    random_layouts(model, seed=4)
    assert torch.equal(torch.get_rng_state(), before)  # nor do they use up torch's own random numbers
    torch.set_rng_state(state)
    assert len({frozenset(random_layouts(model, seed)[8]) for seed in range(20)}) == 20


def test_every_head_is_as_likely_to_be_kept(model):
    times = 2000
    counts = dict.fromkeys(FULL, 0)
    for seed in range(times):
        method = Random(seed)
        method.attach(model, KINDS)
        for head in method.keep(4, FULL):
            counts[head] += 1
    sigma = (times * 0.25 * 0.75) ** 0.5
    assert max(abs(count - times / 4) for count in counts.values()) < 5 * sigma


def test_random_trains_nothing(model):
    method = Random(1)
    method.attach(model, KINDS)
    assert not method.trains
    assert method.loss(10) is None
    assert method.factors() == {}
    assert all(layer.gate is None for layer in model)
