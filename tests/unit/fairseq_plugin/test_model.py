"""The whole model: gates, removal, incremental decoding, size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fairseq.models.transformer import TransformerModelBase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import attention_layers
from headlab.attention.removal import remove_heads
from headlab.config import L0Config
from headlab.fairseq_plugin.model import (
    HeadlabTransformer,
    build_model,
    detached_state,
    freeze_decoder,
    load_weights,
    transformer_config,
)
from headlab.methods.l0 import L0
from headlab.scoring.size import ModelShape, flops, parameters

from .conftest import dictionary, random_model, shape_of

FULL = Layout.full(2, 3, 4)
ALL = list(FULL)
PAD, EOS = 1, 2
heads_kept = st.sets(st.sampled_from(ALL)).map(lambda heads: FULL.keep(heads, KINDS))
extremes = [FULL.keep([], KINDS), FULL.keep(ALL[17:18], KINDS), FULL]
some = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


class Mask(nn.Module):
    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = torch.tensor(factors)

    def forward(self) -> Tensor:
        return self.factors


def mask(model: HeadlabTransformer, factors: dict[Head, float]) -> None:
    for layer in attention_layers(model):
        layer.gate = Mask([factors.get(Head(layer.kind, layer.layer, i), 0.0) for i in layer.heads])


def batch(seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Sources padded at the left as fairseq pads them, their lengths, and targets padded at the right."""
    torch.manual_seed(seed)
    source, target = torch.randint(4, 24, (3, 8)), torch.randint(4, 34, (3, 7))
    source[:, -1] = EOS
    source[1, :3] = source[2, :5] = PAD
    target[:, 0] = EOS
    target[0, 5:] = PAD
    return source, torch.tensor([8, 5, 3]), target


def run(model: HeadlabTransformer) -> Tensor:
    source, lengths, target = batch()
    with torch.no_grad():
        return model(source, lengths, target)[0]


def step_by_step(model: HeadlabTransformer, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    """One position at a time; what stands in for padding, which comes last, does not matter to the rest."""
    target = target.masked_fill(target == PAD, EOS)
    with torch.no_grad():
        encoded = model.encoder(source, lengths)
        state: dict = {}
        steps = [model.decoder(target[:, : n + 1], encoded, state)[0] for n in range(target.size(1))]
    assert all(step.size(1) == 1 for step in steps)
    return torch.cat(steps, 1)


def test_ungated_it_is_fairseqs_transformer():
    for norm in ("pre", "post"):
        model = random_model(norm=norm)

        class Task:
            source_dictionary, target_dictionary = dictionary(20), dictionary(30)

        stock = TransformerModelBase.build_model(transformer_config(shape_of(norm=norm)), Task()).eval()
        stock.load_state_dict(model.state_dict())
        source, lengths, target = batch()
        torch.testing.assert_close(run(model), stock(source, lengths, target)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_counts_in_training_in_evaluation_and_while_decoding(kind):
    source, lengths, target = batch()
    model = random_model()
    outputs = []
    for closed in (False, True):
        if closed:
            mask(model, {h: 1.0 for h in ALL if h != Head(kind, 1, 2)})
        outputs.append(
            [
                model.train()(source, lengths, target)[0],
                model.eval()(source, lengths, target)[0],
                step_by_step(model, source, lengths, target),
            ]
        )
    for name, before, after in zip(("training", "evaluation", "decoding"), *outputs, strict=True):
        assert (before - after).abs().max() > 1e-3, name
    real = target != PAD
    torch.testing.assert_close(outputs[1][2][real], outputs[1][1][real], atol=1e-5, rtol=1e-5)


def removed_is_masked(layout: Layout, norm: str = "pre") -> None:
    model = random_model(norm=norm)
    mask(model, dict.fromkeys(layout, 1.0))
    source, lengths, target = batch()
    expected, stepped = run(model), step_by_step(model, source, lengths, target)
    remove_heads(model, layout)
    assert model.layout() == layout
    torch.testing.assert_close(run(model), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(step_by_step(model, source, lengths, target), stepped, atol=1e-5, rtol=1e-5)


@some
@given(heads_kept)
def test_removed_is_masked(layout):
    removed_is_masked(layout)


@pytest.mark.parametrize("layout", extremes, ids=["none", "one", "all"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_removed_is_masked_with_no_one_and_all_heads(layout, norm):
    removed_is_masked(layout, norm)


@some
@given(heads_kept, st.randoms(use_true_random=False))
def test_folded_gates_are_gates(layout, draw):
    model = random_model()
    factors = {head: draw.uniform(0.05, 1) for head in layout}
    mask(model, factors)
    expected = run(model)
    remove_heads(model, layout, factors)
    torch.testing.assert_close(run(model), expected, atol=1e-5, rtol=1e-5)


@some
@given(heads_kept)
def test_decoding_token_by_token_is_decoding_at_once(layout):
    model = random_model(layout)
    source, lengths, target = batch()
    with torch.no_grad():
        expected = model(source, lengths, target)[0]
    found = step_by_step(model, source, lengths, target)
    real = target != PAD
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_open_start_leaves_the_models_evaluation_as_it_is(norm):
    model = random_model(norm=norm)
    source, lengths, target = batch()
    before, stepped = run(model), step_by_step(model, source, lengths, target)
    L0(L0Config(init="open")).attach(model, KINDS)
    assert torch.equal(run(model.eval()), before)
    assert torch.equal(step_by_step(model, source, lengths, target), stepped)
    assert not torch.equal(run(model.train()), before)  # but not training, where gates are drawn


@some
@given(heads_kept, st.sampled_from(["pre", "post"]), st.booleans())
def test_its_number_of_parameters_is_that_of_the_arithmetic(layout, norm, shared):
    torch.manual_seed(1)
    words = dictionary(30)
    model = build_model(
        shape_of(norm=norm, share_all_embeddings=shared), words if shared else dictionary(20), words, layout
    )
    size = ModelShape(2, 3, 4, 32, 40, 34 if shared else 24, 34, norm=norm, shared_embeddings=shared)
    assert sum(p.numel() for p in model.parameters()) == parameters(size, layout, embeddings=True)
    assert sum(t.numel() for t in detached_state(model).values()) == parameters(size, layout, embeddings=True)


@pytest.mark.parametrize("layout", [*extremes, FULL.keep(ALL[::3], KINDS)], ids=["none", "one", "all", "third"])
def test_twice_its_multiply_accumulates_are_torchs_flops(layout):
    model = random_model(layout).requires_grad_(False)
    source = torch.cat([torch.randint(4, 24, (1, 29)), torch.tensor([[EOS]])], 1)
    target = torch.randint(4, 34, (1, 30))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(source, torch.tensor([30]), target)
    size = ModelShape(2, 3, 4, 32, 40, 24, 34, norm="pre")
    assert counter.get_total_flops() == 2 * flops(size, layout, 30, 30)


def test_a_model_is_the_same_for_the_same_seed():
    torch.manual_seed(4)
    first = detached_state(build_model(shape_of(), dictionary(20), dictionary(30)))
    torch.manual_seed(4)
    second = detached_state(build_model(shape_of(), dictionary(20), dictionary(30)))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_zeroed_sublayers_start_as_identities():
    """What comes out is the embedding, normalised and compared with every word: no layer adds anything."""
    torch.manual_seed(4)
    model = build_model(shape_of(residual_init="zero"), dictionary(20), dictionary(30)).eval()
    source, lengths, target = batch()
    decoder = model.decoder
    with torch.no_grad():
        places = decoder.embed_positions(target)
        embedded = decoder.layer_norm(decoder.embed_tokens(target) * 32**0.5 + places)
        expected = embedded @ decoder.embed_tokens.weight.t()
        assert (model(source, lengths, target)[0] - expected).abs().max() < 1e-5
    decoder.layers[2].fc2.weight.data.normal_()
    assert (run(model) - expected).abs().max() > 0.1


def test_states_hold_each_tensor_once_and_are_copies():
    model = random_model()
    state = detached_state(model)
    assert "decoder.output_projection.weight" not in state  # tied to the embedding
    assert torch.equal(state["decoder.embed_tokens.weight"], model.decoder.output_projection.weight)
    assert len({t.data_ptr() for t in state.values() if t.numel()}) == len([t for t in state.values() if t.numel()])
    with torch.no_grad():
        model.encoder.embed_tokens.weight.add_(1)
    assert not torch.equal(state["encoder.embed_tokens.weight"], model.encoder.embed_tokens.weight)


def test_weights_go_into_another_model_and_ties_stay():
    layout = FULL.keep(ALL[::2], KINDS)
    first, second = random_model(layout, seed=1), random_model(layout, seed=2)
    assert not torch.equal(run(first), run(second))
    load_weights(second, detached_state(first))
    assert torch.equal(run(first), run(second))
    assert second.decoder.output_projection.weight is second.decoder.embed_tokens.weight


def test_weights_that_do_not_fit_are_refused_by_name():
    model, state = random_model(), detached_state(random_model())
    name = "encoder.layers.1.fc1.bias"
    with pytest.raises(ValueError, match=rf"{name} is \(3,\), not \(40,\)"):
        load_weights(model, {**state, name: torch.zeros(3)})
    with pytest.raises(ValueError, match=f"tensor {name} is missing"):
        load_weights(model, {n: t for n, t in state.items() if n != name})
    with pytest.raises(ValueError, match="tensor spare is not part of this model"):
        load_weights(model, {**state, "spare": torch.zeros(3)})


def test_a_frozen_decoder_leaves_the_encoder_alone_to_train():
    model = random_model()
    freeze_decoder(model)
    trains = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trains == {name for name, _ in model.named_parameters() if name.startswith("encoder.")}
    assert not model.decoder.output_projection.weight.requires_grad
    assert model.encoder.embed_tokens.weight is not model.decoder.embed_tokens.weight


def test_the_layout_of_a_model_names_heads_by_their_first_index():
    layout = FULL.keep([Head("dec-self", 2, 3), Head("enc-self", 0, 1)], KINDS)
    model = random_model(layout)
    assert model.layout() == layout
    assert model.layout().heads == {kind: (4,) * n for kind, n in zip(KINDS, (2, 3, 3), strict=True)}


@pytest.mark.parametrize("layout", [Layout.full(3, 3, 4), Layout.full(2, 2, 4), Layout.full(2, 3, 5)])
def test_a_layout_of_another_shape_is_refused(layout):
    with pytest.raises(ValueError):
        build_model(shape_of(), dictionary(20), dictionary(30), layout)


def test_dropout_of_the_model_is_that_of_its_shape():
    torch.manual_seed(1)
    quiet = replace(shape_of(), dropout=0.0)
    for changes in ({"dropout": 0.5}, {"attention_dropout": 0.5}, {"activation_dropout": 0.5}):
        loud = build_model(replace(quiet, **changes), dictionary(20), dictionary(30))
        assert (run(loud.train()) - run(loud.eval())).abs().max() > 1e-2, changes
    still = build_model(quiet, dictionary(20), dictionary(30))
    torch.testing.assert_close(run(still.train()), run(still.eval()))


def base_shape(heads: int, **changes: int) -> HeadlabTransformer:
    """Transformer-base of Ni et al. 2023 with that many of 8 heads in every layer."""
    full = Layout.full(6, 6, 8)
    layout = full.keep([head for head in full if head.index < heads], KINDS)
    shape = shape_of(**{"encoder_layers": 6, "decoder_layers": 6, "heads": 8, "dim": 512, "ffn": 2048, **changes})
    shape.norm = "post"
    return build_model(shape, dictionary(4), dictionary(4), layout).requires_grad_(False)


def without_embeddings(model: HeadlabTransformer) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name)


@pytest.mark.parametrize(("heads", "millions"), [(8, 44.14), (4, 34.69), (3, 32.32), (2, 29.96), (1, 27.60)])
def test_models_of_the_papers_shape_have_its_parameters(heads, millions):
    assert round(without_embeddings(base_shape(heads)) / 1e6, 2) == millions


def test_half_the_feed_forward_width_and_36_heads_are_17_million_parameters():
    assert round(without_embeddings(base_shape(2, ffn=1024)) / 1e6, 1) == 17.4


def test_36_of_144_heads_save_438_million_multiply_accumulates():
    source = torch.cat([torch.randint(4, 8, (1, 29)), torch.tensor([[EOS]])], 1)
    target = torch.randint(4, 8, (1, 30))
    counts = []
    for heads in (8, 2):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            base_shape(heads).eval()(source, torch.tensor([30]), target)
        counts.append(counter.get_total_flops() / 2)
    # printed are 1996 and 1558 million, each rounded: 438 less
    assert (counts[0] - counts[1]) / 1e6 == pytest.approx(1996 - 1558, abs=1)
