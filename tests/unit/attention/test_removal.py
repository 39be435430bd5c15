"""Removal: what is cut computes what was masked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import HeadAttention
from headlab.attention.removal import remove_heads

FULL = Layout.full(2, 1, 4)


class Mask(nn.Module):
    """A gate with given factors."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = torch.tensor(factors)

    def forward(self) -> Tensor:
        return self.factors


@pytest.fixture
def model() -> nn.ModuleList:
    torch.manual_seed(1)
    layers = nn.ModuleList()
    for kind in KINDS:
        for number in range(2 if kind == "enc-self" else 1):
            layer = HeadAttention(kind, 16, 4)
            layer.layer = number
            for parameter in layer.parameters():
                nn.init.normal_(parameter, std=0.4)
            layers.append(layer)
    return layers


def outputs(model: nn.ModuleList) -> list[Tensor]:
    torch.manual_seed(2)
    x, memory = torch.randn(5, 3, 16), torch.randn(4, 3, 16)
    return [layer(x, memory if layer.kind == "enc-dec" else None) for layer in model]


def mask(model: nn.ModuleList, factors: dict[Head, float]) -> None:
    for layer in model:
        layer.gate = Mask([factors.get(Head(layer.kind, layer.layer, i), 0.0) for i in layer.heads])


KEPT = [Head("enc-self", 0, 1), Head("enc-self", 0, 3), Head("dec-self", 0, 0), Head("enc-dec", 0, 2)]


def test_removed_is_masked(model):
    mask(model, dict.fromkeys(KEPT, 1.0))
    expected = outputs(model)
    remove_heads(model, FULL.keep(KEPT, KINDS))
    assert [layer.heads for layer in model] == [(1, 3), (), (0,), (2,)]
    assert all(layer.gate is None for layer in model)
    for found, wanted in zip(outputs(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_cut_tensors_have_the_size_of_the_heads_that_stay(model):
    remove_heads(model, FULL.keep(KEPT, KINDS))
    first = model[0]
    assert first.q_proj.weight.shape == first.k_proj.weight.shape == first.v_proj.weight.shape == (2 * 4, 16)
    assert first.q_proj.bias.shape == (2 * 4,)
    assert first.out_proj.weight.shape == (16, 2 * 4)
    assert first.out_proj.bias.shape == (16,)
    assert model[1].q_proj.weight.shape == (0, 16)


def test_folded_factors_are_gates(model):
    factors = dict(zip(KEPT, (0.5, 1.0, 0.125, 0.9), strict=True))
    mask(model, factors)
    expected = outputs(model)
    remove_heads(model, FULL.keep(KEPT, KINDS), factors)
    for found, wanted in zip(outputs(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_kept_head_with_gate_0_is_refused_and_the_model_stays_whole(model):
    before = outputs(model)
    with pytest.raises(ValueError, match=r"head enc-dec\.0\.2 is kept but its gate is 0"):
        remove_heads(model, FULL.keep(KEPT, KINDS), {KEPT[-1]: 0.0})
    for found, wanted in zip(outputs(model), before, strict=True):
        assert torch.equal(found, wanted)


def test_heads_are_removed_bit_by_bit_under_their_first_names(model):
    some = FULL.keep([h for h in FULL if h.index != 0], KINDS)
    remove_heads(model, some)
    fewer = some.keep([h for h in some if h.index == 2], KINDS)
    mask(model, dict.fromkeys(fewer, 1.0))
    expected = outputs(model)
    remove_heads(model, fewer)
    assert {layer.heads for layer in model} == {(2,)}
    for found, wanted in zip(outputs(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match=r"head enc-self\.0\.0 does not exist any more"):
        remove_heads(model, FULL)


def test_what_did_not_train_before_does_not_train_after(model):
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    remove_heads(model, FULL.keep(KEPT, KINDS))
    assert not any(p.requires_grad for p in model[2].parameters())
    assert all(p.requires_grad for p in model[0].parameters())


def test_a_pruned_model_trains_on(model):
    remove_heads(model, FULL.keep(KEPT, KINDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = torch.stack([out.square().mean() for out in outputs(model)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
