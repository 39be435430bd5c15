"""HeadAttention against fairseq's MultiheadAttention, and against one head at a time written out."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from headlab.attention.heads import KINDS
from headlab.attention.layer import HeadAttention, attention_layers
from headlab.attention.past import BEAM
from headlab.attention.removal import cut_layer

DIM, HEADS, KEY_DIM = 24, 4, 20
WIDTH = DIM // HEADS
SENTENCES, QUERIES, KEYS = 3, 5, 7


class Constant(nn.Module):
    """A gate with given factors."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.factors = nn.Parameter(factors)

    def forward(self) -> Tensor:
        return self.factors


def layer_of(kind: str, seed: int = 1, dropout: float = 0.0, heads: int = HEADS) -> HeadAttention:
    torch.manual_seed(seed)
    key_dim = KEY_DIM if kind == "enc-dec" else None
    layer = HeadAttention(kind, DIM, heads, key_dim, dropout)
    for parameter in layer.parameters():  # biases too
        nn.init.normal_(parameter, std=0.3)
    return layer


def fairseq_twin(layer: HeadAttention) -> MultiheadAttention:
    cross = layer.kind == "enc-dec"
    twin = MultiheadAttention(
        DIM, HEADS, kdim=KEY_DIM if cross else None, vdim=KEY_DIM if cross else None, dropout=layer.dropout,
        self_attention=not cross, encoder_decoder_attention=cross,
    )  # fmt: skip
    twin.load_state_dict(layer.state_dict())
    return twin


def inputs(kind: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Query, memory, key padding with a sentence that has none, causal mask."""
    torch.manual_seed(7)
    query = torch.randn(QUERIES, SENTENCES, DIM)
    memory = torch.randn(KEYS, SENTENCES, KEY_DIM) if kind == "enc-dec" else None
    keys = KEYS if kind == "enc-dec" else QUERIES
    lengths = torch.tensor([keys, keys - 1, 2])
    padding = torch.arange(keys)[None] >= lengths[:, None]
    mask = torch.full((QUERIES, QUERIES), float("-inf")).triu(1) if kind == "dec-self" else None
    return query, memory, padding, mask


def by_hand(
    layer: HeadAttention, query: Tensor, memory: Tensor | None, padding: Tensor | None, mask: Tensor | None,
    factors: list[float] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """softmax(Q K^T / sqrt(d_h)) V per head, projected and summed; in float64."""
    with torch.no_grad():
        weights = {name: p.double() for name, p in layer.named_parameters() if not name.startswith("gate")}
        source = query if memory is None else memory

        def projected(x: Tensor, name: str) -> Tensor:
            return x.double() @ weights[f"{name}.weight"].t() + weights[f"{name}.bias"]

        q, k, v = projected(query, "q_proj"), projected(source, "k_proj"), projected(source, "v_proj")
        out = weights["out_proj.bias"].expand(query.size(0), query.size(1), DIM).clone()
        features: dict[str, list[Tensor]] = {"V": [], "A": [], "O": []}
        for place in range(layer.num_heads):
            part = slice(place * WIDTH, (place + 1) * WIDTH)
            scores = torch.einsum("qsd,ksd->sqk", q[..., part], k[..., part]) / WIDTH**0.5
            if mask is not None:
                scores = scores + mask.double()
            if padding is not None:
                scores = scores.masked_fill(padding[:, None], float("-inf"))
            attention = scores.softmax(-1)
            head = torch.einsum("sqk,ksd->qsd", attention, v[..., part])
            factor = 1.0 if factors is None else factors[place]
            out += factor * head @ weights["out_proj.weight"][:, part].t()
            features["V"].append(v[..., part].transpose(0, 1))
            features["A"].append(attention)
            features["O"].append(head.transpose(0, 1))
        return out.float(), {name: torch.stack(found, 1).float() for name, found in features.items()}


@pytest.fixture(params=["by hand", "fused"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products written out, as on a CPU, and in one kernel, as on a GPU."""
    monkeypatch.setattr(HeadAttention, "_fuses", lambda layer, q: request.param == "fused")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_ungated_it_is_fairseqs_attention(kind, padded, training, kernels):
    layer = layer_of(kind).train(training)
    twin = fairseq_twin(layer).train(training)
    query, memory, padding, mask = inputs(kind)
    if not padded:
        padding = None
    source = query if memory is None else memory
    expected, _ = twin(query, source, source, key_padding_mask=padding, attn_mask=mask, static_kv=kind == "enc-dec")
    found = layer(query, memory, padding, mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)

    direction = torch.randn_like(found)
    found.backward(direction)
    expected.backward(direction)
    for (name, own), (_, other) in zip(
        sorted(layer.named_parameters()), sorted(twin.named_parameters()), strict=True
    ):  # fmt: skip
        torch.testing.assert_close(own.grad, other.grad, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["dec-self", "enc-dec"])
def test_token_by_token_it_is_fairseqs_attention(kind, kernels):
    layer = layer_of(kind).eval()
    twin = fairseq_twin(layer).eval()
    query, memory, padding, _ = inputs(kind)
    state: dict = {}
    other_state: dict = {}
    for position in range(QUERIES):
        step = query[position : position + 1]
        source = step if memory is None else memory
        keys = padding if kind == "enc-dec" else None
        expected, _ = twin(
            step, source, source, key_padding_mask=keys, incremental_state=other_state, static_kv=kind == "enc-dec"
        )
        torch.testing.assert_close(layer(step, memory, keys, None, state), expected, atol=1e-6, rtol=1e-6)


def test_it_starts_from_the_same_distribution_as_fairseqs():
    torch.manual_seed(1)
    own = HeadAttention("enc-self", 256, 8)
    twin = MultiheadAttention(256, 8, self_attention=True)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        ours, theirs = getattr(own, name).weight, getattr(twin, name).weight
        assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.02), name
        assert float(ours.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.02), name
    assert not own.out_proj.bias.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_scales_its_heads_output_alone(kind):
    layer = layer_of(kind)
    factors = [0.0, 0.25, 1.0, 0.6]
    layer.gate = Constant(torch.tensor(factors))
    query, memory, padding, mask = inputs(kind)
    expected, _ = by_hand(layer, query, memory, padding, mask, factors)
    for training in (True, False):
        found = layer.train(training)(query, memory, padding, mask)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if kind != "enc-self":
        keys = padding if kind == "enc-dec" else None
        expected, _ = by_hand(layer, query, memory, keys, mask, factors)
        state: dict = {}
        for position in range(QUERIES):
            found = layer(query[position : position + 1], memory, keys, None, state)
            torch.testing.assert_close(found, expected[position : position + 1], atol=1e-5, rtol=1e-5)


def test_the_gradient_of_a_gate_is_its_heads_share_of_the_output():
    layer = layer_of("enc-self")
    query, memory, padding, mask = inputs("enc-self")
    gate = Constant(torch.tensor([0.3, 1.0, 0.0, 0.7]))
    layer.gate = gate
    found = layer(query, memory, padding, mask)
    direction = torch.randn_like(found)
    found.backward(direction)
    none = [0.0] * HEADS
    bias, _ = by_hand(layer, query, memory, padding, mask, none)
    for head in range(HEADS):
        only = [*none[:head], 1.0, *none[head + 1 :]]
        share = by_hand(layer, query, memory, padding, mask, only)[0] - bias
        assert float(gate.factors.grad[head]) == pytest.approx(float((share * direction).sum()), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_features_are_those_before_dropout_and_gate(kind):
    layer = layer_of(kind, dropout=0.5).train()
    layer.gate = Constant(torch.zeros(HEADS))
    query, memory, padding, mask = inputs(kind)
    _, expected = by_hand(layer, query, memory, padding, mask)
    layer.record = frozenset("VA")
    layer(query, memory, padding, mask)
    assert set(layer.features) == {"V", "A"}
    torch.testing.assert_close(layer.features["A"], expected["A"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.features["V"], expected["V"], atol=1e-5, rtol=1e-5)
    layer.dropout = 0.0
    layer.record = frozenset("O")
    layer(query, memory, padding, mask)
    torch.testing.assert_close(layer.features["O"], expected["O"], atol=1e-5, rtol=1e-5)


def test_attention_dropout_works_in_training_only():
    layer = layer_of("enc-self", dropout=0.5)
    query, memory, padding, mask = inputs("enc-self")
    expected, _ = by_hand(layer, query, memory, padding, mask)
    torch.testing.assert_close(layer.eval()(query, memory, padding, mask), expected, atol=1e-5, rtol=1e-5)
    torch.manual_seed(1)
    times = 2000
    many = layer.train()(query.repeat(1, times, 1), None, padding.repeat(times, 1), mask)
    outputs = many.detach().view(QUERIES, times, SENTENCES, DIM)
    assert (outputs[:, 0] - expected).abs().max() > 0.1
    bound = 6 * outputs.std(1) / times**0.5 + 1e-4
    assert ((outputs.mean(1) - expected).abs() < bound).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_without_heads_outputs_the_bias_and_trains_it(kind):
    layer = layer_of(kind)
    layer.record = frozenset("VAO")
    query, memory, padding, mask = inputs(kind)
    layer(query, memory, padding, mask)
    assert layer.features
    cut_layer(layer, [], torch.empty(0))
    for state in ({}, None):
        found = layer(query, memory, padding, mask, state)
        assert torch.equal(found, layer.out_proj.bias.expand(QUERIES, SENTENCES, DIM))
    assert layer.features == {}
    found.sum().backward()
    assert torch.equal(layer.out_proj.bias.grad, torch.full((DIM,), float(QUERIES * SENTENCES)))


def test_padding_among_tokens_decoded_one_by_one_is_refused():
    layer = layer_of("dec-self").eval()
    query, _, padding, _ = inputs("dec-self")
    with pytest.raises(ValueError, match=r"dec-self\.0: no padding"):
        layer(query[:1], None, padding[:, :1], None, {})


def test_hypotheses_branch_and_sentences_leave(kernels):
    """Two hypotheses a sentence: the second drops its past for that of the first; then sentence 1 is done."""
    layer = layer_of("dec-self").eval()
    torch.manual_seed(8)
    steps = torch.randn(3, SENTENCES, 2, DIM)
    none = float("-inf")
    own = torch.tensor([[0.0, none], [none, 0.0]])
    state: dict = {BEAM: own.expand(SENTENCES, 2, 2)}
    layer(steps[0].flatten(0, 1)[None], None, None, None, state)
    first = torch.tensor([[0.0, none], [0.0, none]])
    state[BEAM] = torch.cat([first, own], 1).expand(SENTENCES, 2, 4)
    layer(steps[1].flatten(0, 1)[None], None, None, None, state)
    staying = torch.tensor([0, 2])
    state[layer.name].keep(staying)
    state[BEAM] = torch.cat([first, own, own], 1).expand(2, 2, 6)
    found = layer(steps[2][staying].flatten(0, 1)[None], None, None, None, state).view(2, 2, DIM)
    for hypothesis in (0, 1):
        mask = torch.full((3, 3), none).triu(1)
        past = torch.stack([steps[0, staying, 0], steps[1, staying, hypothesis], steps[2, staying, hypothesis]])
        expected, _ = by_hand(layer, past, None, None, mask)
        torch.testing.assert_close(found[:, hypothesis], expected[2], atol=1e-5, rtol=1e-5)


def test_the_hypotheses_of_a_sentence_share_its_memory(kernels):
    layer = layer_of("enc-dec").eval()
    _, memory, padding, _ = inputs("enc-dec")
    torch.manual_seed(8)
    steps = torch.randn(2, SENTENCES, 2, DIM)
    state: dict = {}
    staying = torch.tensor([0, 2])
    for step, sentences in ((0, torch.arange(SENTENCES)), (1, staying)):
        found = layer(steps[step][sentences].flatten(0, 1)[None], memory, padding, None, state).view(-1, 2, DIM)
        for hypothesis in (0, 1):
            query = steps[step, sentences, hypothesis][None]
            expected, _ = by_hand(layer, query, memory[:, sentences], padding[sentences], None)
            torch.testing.assert_close(found[:, hypothesis], expected[0], atol=1e-5, rtol=1e-5)
        if step == 0:
            state[layer.name].keep(staying)


def test_layers_are_found_in_table_order():
    model = nn.ModuleList()
    for kind, number in [("enc-dec", 0), ("dec-self", 1), ("enc-self", 1), ("dec-self", 0), ("enc-self", 0)]:
        layer = layer_of(kind)
        layer.layer = number
        model.append(layer)
    names = ["enc-self.0", "enc-self.1", "dec-self.0", "dec-self.1", "enc-dec.0"]
    assert [layer.name for layer in attention_layers(model)] == names
    assert [layer.name for layer in attention_layers(model, ["enc-dec", "enc-self"])] == [names[0], names[1], names[4]]


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="5 heads do not divide a width of 24"):
        HeadAttention("enc-self", 24, 5)
