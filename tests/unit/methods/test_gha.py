"""The group constraint in training and the vote, on attention layers and on feature maps that a test gives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import HeadAttention, attention_layers
from headlab.config import GhaConfig
from headlab.methods.gha import GHA

FULL = Layout(
    {kind: (tuple(range(4)),) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
    {kind: (4,) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
)
SOURCE_PADDING = torch.tensor([[False] * 5, [True] * 2 + [False] * 3, [False] * 5])
TARGET_PADDING = torch.tensor([[False] * 4, [False] * 3 + [True], [False] * 4])


def attached(model: nn.Module, groups: int = 2, scope=KINDS, **settings) -> GHA:
    method = GHA(GhaConfig(**settings), groups, seed=1)
    method.attach(model, scope)
    return method


def forward(model: nn.Module, source: Tensor, target: Tensor, padded: bool = True) -> Tensor:
    """One pass through all layers, as a Transformer calls them: inputs [positions, sentences, 16]."""
    keys, queries = (SOURCE_PADDING, TARGET_PADDING) if padded else (None, None)
    total = torch.zeros(())
    for layer in attention_layers(model):
        if layer.kind == "enc-self":
            total = total + layer(source, key_padding=keys).sum()
        elif layer.kind == "dec-self":
            total = total + layer(target, key_padding=queries).sum()
        else:
            total = total + layer(target, source, key_padding=keys).sum()
    return total


def inputs(seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(5, 3, 16, generator=draw), torch.randn(4, 3, 16, generator=draw)


def maps_of(layer: HeadAttention, name: str, source: Tensor, target: Tensor) -> list[Tensor]:
    """One flat feature map per head, computed anew from the layer's weights, padding left out."""
    query, memory = (source, source) if layer.kind == "enc-self" else (target, target)
    key_real = query_real = ~SOURCE_PADDING if layer.kind == "enc-self" else ~TARGET_PADDING
    if layer.kind == "enc-dec":
        memory, key_real = source, ~SOURCE_PADDING
    found = []
    for head in range(4):
        rows = slice(4 * head, 4 * head + 4)
        q, k, v = (
            F.linear(x, p.weight[rows], p.bias[rows]).transpose(0, 1)
            for x, p in ((query, layer.q_proj), (memory, layer.k_proj), (memory, layer.v_proj))
        )
        scores = (q @ k.transpose(1, 2) / 2).masked_fill(~key_real[:, None, :], -torch.inf)
        weights = scores.softmax(-1)
        full = {"V": v, "A": weights, "O": weights @ v}[name]
        real = key_real if name == "V" else query_real
        found.append(torch.cat([one[r].flatten() for one, r in zip(full, real, strict=True)]))
    return found


@pytest.mark.parametrize("name", ["V", "A", "O"])
def test_maps_are_those_of_the_weights_and_padding_is_left_out(model, name):
    method = attached(model, map=name)
    forward(model, *inputs())
    grams = method._grams()
    for layer in attention_layers(model):
        maps = maps_of(layer, name, *inputs())
        wanted = torch.tensor([[float(a @ b) for b in maps] for a in maps])
        assert torch.allclose(grams[layer.name], wanted, atol=1e-4), layer.name


def test_queries_of_enc_dec_are_masked_also_where_the_decoder_is_not_in_scope(model):
    method = attached(model, map="O", scope=["enc-dec"])
    forward(model, *inputs())
    (gram,) = method._grams().values()
    maps = maps_of(attention_layers(model, ["enc-dec"])[0], "O", *inputs())
    assert float(gram[1, 2]) == pytest.approx(float(maps[1] @ maps[2]), abs=1e-4)


def test_the_two_weightings(model):
    losses = {}
    for weighting in ("per_token", "as_released"):
        method = attached(model, weighting=weighting)
        forward(model, *inputs())
        losses[weighting] = float(method.loss(50))
    # mean over 4 layers beside a mean over tokens, or sum over layers beside a sum over 50 tokens
    assert losses["per_token"] * 4 / 50 == pytest.approx(losses["as_released"], rel=1e-5)
    assert abs(losses["per_token"]) > 0.01


def test_without_weight_there_is_no_loss(model):
    method = attached(model, alpha=0.0, beta=0.0)
    forward(model, *inputs())
    assert method.loss(50) is None


def test_gradients_reach_the_projections_that_make_the_map(model):
    method = attached(model, map="V")
    forward(model, *inputs())
    method.loss(50).backward()
    for layer in model:
        assert float(layer.v_proj.weight.grad.abs().max()) > 0
        assert layer.q_proj.weight.grad is None
    assert all(layer.features == {} for layer in model)  # let go, so that the next pass does not hold two graphs


def test_a_layer_with_fewer_heads_has_as_many_groups_and_one_without_none(model):
    from headlab.attention.removal import remove_heads

    left = [Head("enc-self", 0, 2), Head("enc-self", 0, 3), *FULL.within(["enc-dec"])]
    remove_heads(model, FULL.keep(left, KINDS))
    method = attached(model, groups=3, map="O")
    forward(model, *inputs())
    assert math.isfinite(float(method.loss(10)))
    method.score([inputs(seed) for seed in range(4)], lambda batch: forward(model, *batch))
    assert [(vote.kind, len(vote.votes), vote.heads) for vote in method.polled] == [
        ("enc-self", 2, (2, 3)),
        ("enc-dec", 3, (0, 1, 2, 3)),
    ]


def given(model: nn.Module, batch: list[list[float]]) -> Tensor:
    """A pass whose value maps on every layer are two numbers per head."""
    for layer in attention_layers(model):
        layer.features = {"V": torch.tensor(batch)[None, :, None, :]}
    return torch.zeros(())


#: Heads 0, 1, 2 lie together and 3 apart. Head 1 is in the middle of the first two batches, head 2 in the third.
#: In the second batch, head 0 is farther from the mean than head 3, which swaps the numbers that k-means gives.
BATCHES = [
    [[0.0, 1.0], [0.0, 1.2], [0.0, 1.5], [9.0, 0.0]],
    [[0.0, 9.0], [0.0, 8.4], [0.0, 7.0], [2.0, 0.0]],
    [[0.0, 1.0], [0.0, 2.0], [0.0, 1.6], [9.0, 0.0]],
]


def test_every_batch_has_a_vote_for_each_group(model):
    method = attached(model)
    assert set(method.scores().values()) == {0.0}
    method.score(BATCHES, lambda batch: given(model, batch))
    assert len(method.polled) == 4
    for vote in method.polled:
        assert vote.groups[0] == vote.groups[1] == vote.groups[2] != vote.groups[3]
        together, apart = vote.groups[0], vote.groups[3]
        assert vote.votes[together] == (0, 2, 1, 0)
        assert vote.votes[apart] == (0, 0, 0, 3)
    scores = method.scores()
    assert [scores[Head("dec-self", 0, i)] for i in range(4)] == [0, 2, 1, 3]
    assert str(method.keep(8, FULL)) == "enc-self:0=1,3;1=1,3 dec-self:0=1,3 enc-dec:0=1,3"
    assert str(method.keep(5, FULL)) == "enc-self:0=1,3;1=3 dec-self:0=3 enc-dec:0=3"
    for target in range(4, 9):
        assert method.keep(target, FULL).count() == target


def test_cosines_are_those_of_the_whole_epoch(model):
    method = attached(model)
    method.score(BATCHES, lambda batch: given(model, batch))
    epoch = torch.tensor(BATCHES).transpose(0, 1).reshape(4, -1)
    wanted = F.cosine_similarity(epoch[:, None], epoch[None], dim=2)
    assert torch.allclose(torch.tensor(method.polled[2].cosines), wanted, atol=1e-4)


def test_outside_the_scope_all_heads_stay(model):
    method = attached(model, scope=["enc-self"])
    method.score(BATCHES, lambda batch: given(model, batch))
    assert str(method.keep(4, FULL)) == "enc-self:0=1,3;1=1,3 dec-self:0=0,1,2,3 enc-dec:0=0,1,2,3"


def ended(model: nn.Module, method: GHA, epoch: int, maps: list[list[float]]) -> bool:
    return method.epoch_ended(epoch, 10 * epoch, [maps, maps, maps], lambda batch: given(model, batch))


def test_a_fixed_epoch_of_the_vote(model):
    method = attached(model, vote_epoch=2)
    assert [ended(model, method, epoch, BATCHES[0]) for epoch in (1, 2, 3)] == [False, True, False]
    assert method.vote_update == 20
    assert method.log()["vote_update"] == 20


def test_the_vote_waits_until_the_centres_stand_still(model):
    method = attached(model, threshold=0.1, vote_epoch=9)
    assert not ended(model, method, 1, [[0.0, 1.0], [0.0, 1.0], [8.0, 0.0], [8.0, 0.0]])
    assert "centre_shift" not in method.log()  # there is nothing to compare the first epoch with
    # the centres swap their numbers, since now heads 0 and 1 are farther out; one moves from 1 to 2: by its length
    swapped = [[0.0, 2.0], [0.0, 2.0], [8.0, 0.0], [8.0, 0.0]]
    assert not ended(model, method, 2, swapped)
    assert method.log()["centre_shift"] == pytest.approx(1.0, abs=1e-5)
    near = [[0.0, 2.0], [0.0, 2.0], [8.4, 0.0], [8.4, 0.0]]  # 0.4 of 8
    assert ended(model, method, 3, near)
    assert method.log()["centre_shift"] == pytest.approx(0.05, abs=1e-5)
    assert method.vote_update == 30


def test_a_latest_epoch_for_centres_that_never_stand_still(model):
    method = attached(model, threshold=1e-6, vote_epoch=3)
    grown = ([[0.0, float(e)], [0.0, float(e)], [8.0 * e, 0.0], [8.0 * e, 0.0]] for e in (1, 2, 3))
    assert [ended(model, method, epoch, maps) for epoch, maps in enumerate(grown, start=1)] == [False, False, True]


def test_heads_that_change_their_group_are_counted(model):
    method = attached(model)
    ended(model, method, 1, [[0.0, 1.0], [0.0, 1.1], [8.0, 0.0], [8.0, 0.1]])
    assert method.log()["group_changes"] == 0
    ended(model, method, 2, [[0.0, 9.0], [0.0, 9.1], [1.0, 0.0], [1.0, 0.1]])  # other numbers, same groups
    assert method.log()["group_changes"] == 0
    ended(model, method, 3, [[8.0, 1.0], [0.0, 1.1], [8.0, 0.0], [8.0, 0.1]])  # head 0 goes over, in all 4 layers
    numbers = method.log()
    assert numbers["group_changes"] == 4
    assert numbers["within_cos/enc-self.1"] > 0.9
    assert {name.partition("/")[2] for name in numbers if name.startswith("silhouette/")} == {
        layer.name for layer in attention_layers(model)
    }
    assert "group_changes" not in method.log()  # said once


def test_every_line_of_the_log_tells_how_the_groups_are_set_apart(model):
    method = attached(model)
    assert method.log() == {}
    forward(model, *inputs())
    method.loss(50)
    numbers = method.log()
    assert {"within_cos", "between_cos", "silhouette"} <= numbers.keys()
    assert all(math.isfinite(value) for value in numbers.values())
    assert numbers["within_cos"] > numbers["between_cos"]


def test_a_resumed_run_compares_with_the_epoch_before(model):
    whole, first = attached(model, threshold=0.1), attached(model, threshold=0.1)
    for method in (whole, first):
        ended(model, method, 1, BATCHES[0])
    second = attached(model, threshold=0.1)
    second.load_state_dict(first.state_dict())
    for method in (whole, second):
        ended(model, method, 2, BATCHES[2])
    numbers = whole.log()
    assert numbers["centre_shift"] > 0
    assert second.log() == numbers
