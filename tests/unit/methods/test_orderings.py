"""Orderings without training on layers alone: cases worked out by hand."""

from __future__ import annotations

import pytest
import torch

from headlab.attention.heads import KINDS, Head
from headlab.attention.layer import HeadAttention
from headlab.config import GradientConfig
from headlab.methods.base import Looked
from headlab.methods.confidence import Confidence
from headlab.methods.gradient import Gradient
from headlab.methods.magnitude import Magnitude
from headlab.methods.ordering import Ordering, recorded, without


def one_layer(kind: str = "enc-self", heads: int = 2) -> HeadAttention:
    """A layer of heads of width 1 that copies: V and the output projection are the identity, no biases."""
    layer = HeadAttention(kind, heads, heads)
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
            projection.weight.copy_(torch.eye(heads))
            projection.bias.zero_()
    return layer


def test_the_absolute_value_is_taken_per_sentence_or_per_batch():
    """Two sentences of one token: each head's output is its input x, and the loss is the sum of all outputs.

    So dL/dmask of head 0 is 3 and -1, of head 1 it is 2 and 2: per sentence 4 and 4, per batch 2 and 4, of 2 tokens.
    """
    layer = one_layer()
    x = torch.tensor([[[3.0, 2.0], [-1.0, 2.0]]])  # (position, sentences, heads)

    def loss_fn(batch: torch.Tensor) -> Looked:
        return Looked(layer(batch).sum(), 2)

    found = {}
    for per in ("example", "batch"):
        method = Gradient(GradientConfig(per=per, normalise=False))
        method.attach(layer, ["enc-self"])
        method.score([x], loss_fn)
        found[per] = list(method.scores().values())
        method.score([x[:, :1], x[:, 1:]], lambda batch: Looked(layer(batch).sum(), 1))
        assert list(method.scores().values()) == [2.0, 2.0]  # batches of one sentence: no difference
    assert found == {"example": [2.0, 2.0], "batch": [1.0, 2.0]}


def test_ties_in_rounds_go_as_when_heads_are_kept():
    layer = one_layer(heads=4)
    method = Gradient(GradientConfig(normalise=False, rounds=4))
    method.attach(layer, ["enc-self"])
    method.score([torch.ones(1, 1, 4)], lambda batch: Looked(layer(batch).sum(), 1))
    assert list(method.scores().values()) == [3.0, 2.0, 1.0, 0.0]


def given(layer: HeadAttention, weights: list[list[list[float]]], padding: list[list[bool]] | None = None) -> None:
    """As if the attention ``weights`` (head, query, key) of one sentence came from a forward pass."""
    layer.features = {"A": torch.tensor([weights])}
    if padding is not None:
        layer.features["padding"] = torch.tensor(padding)


def confidence(layer: HeadAttention, *arguments) -> list[float]:
    method = Confidence()
    method.attach(layer, [layer.kind])
    method.score([0], lambda batch: given(layer, *arguments))
    return list(method.scores().values())


def test_confidence_without_the_eos_that_ends_the_source():
    first = [[0.1, 0.3, 0.6], [0.8, 0.1, 0.1], [0.0, 0.5, 0.5]]  # without the last key: 0.3, 0.8, 0.5
    second = [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.3, 0.7]]  # 0, 0, 0.3
    assert confidence(one_layer(), [first, second]) == pytest.approx([1.6 / 3, 0.1])


def test_confidence_leaves_padding_out():
    first = [[0.5, 0.5, 0.0], [0.0, 0.9, 0.1], [0.0, 0.2, 0.8]]  # key and query 0 are padding: 0.9, 0.2
    assert confidence(one_layer(heads=1), [first], [[True, False, False]]) == pytest.approx([0.55])


def test_confidence_without_the_eos_that_starts_the_target():
    """The first query sees nothing but EOS and does not count."""
    first = [[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.7, 0.1, 0.2]]  # without the first key: -, 0.6, 0.2
    assert confidence(one_layer("dec-self", heads=1), [first]) == pytest.approx([0.4])


def test_magnitude_is_the_norm_of_the_columns_a_head_writes_with(model):
    method = Magnitude()
    method.attach(model, KINDS)
    (layer,) = [m for m in model if (m.kind, m.layer) == ("enc-self", 1)]
    with torch.no_grad():
        layer.out_proj.weight.zero_()
        layer.out_proj.weight[2, 4:6] = torch.tensor([3.0, 4.0])  # head 1
        layer.out_proj.weight[:, 15] = 2.0  # head 3: 16 twos
    scores = method.scores()
    assert [scores[Head("enc-self", 1, i)] for i in range(4)] == pytest.approx([0, 5, 0, 8])
    assert len(scores) == 16
    assert not method.looks
    assert method.passes == 0


def test_heads_left_out_are_back_afterwards(model):
    x = torch.randn(3, 2, 16)
    layer = next(m for m in model if (m.kind, m.layer) == ("enc-self", 0))
    whole = layer(x)
    with pytest.raises(ZeroDivisionError), without([layer], [Head("enc-self", 0, 2)]), recorded([layer], "O"):
        heads = layer.features if layer.features else layer(x)
        assert not torch.allclose(heads, whole)
        assert layer.features["O"].shape == (2, 4, 3, 4)
        raise ZeroDivisionError
    assert layer.gate is None
    assert layer.features == {}
    torch.testing.assert_close(layer(x), whole)


def test_saved_scores_are_taken_up_again(model):
    first, second = Ordering(), Ordering()
    for method in (first, second):
        method.attach(model, ["enc-self"])
    first.take([torch.tensor([1.0, 2.0, 0.5, 0.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])])
    second.load_state_dict(first.state_dict())
    assert second.scores() == first.scores()
    assert second.scores()[Head("enc-self", 0, 1)] == 2.0
