"""Beam search against fairseq's own generator over fairseq's own model."""

from __future__ import annotations

import pytest
import torch
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import attention_layers
from headlab.attention.removal import remove_heads
from headlab.fairseq_plugin.model import HeadlabTransformer, transformer_config
from headlab.fairseq_plugin.search import Search

from .conftest import dictionary, random_model, shape_of

FULL = Layout.full(2, 3, 4)
ALL = list(FULL)
LAYOUTS = {
    "all": FULL, "half": FULL.keep(ALL[::2], KINDS), "none": FULL.keep([], KINDS), "one": FULL.keep(ALL[17:18], KINDS)
}  # fmt: skip
PAD, EOS = 1, 2


class Dictionaries:
    source_dictionary, target_dictionary = dictionary(20), dictionary(30)


def sources() -> tuple[Tensor, Tensor]:
    """Sentences of different lengths, the short ones padded at the left, and the lengths."""
    torch.manual_seed(1)
    source = torch.randint(4, 24, (12, 9))
    source[:, -1] = EOS
    for row, padding in enumerate((0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 7)):
        source[row, :padding] = PAD
    return source, source.ne(PAD).sum(1)


def talkative(seed: int = 2) -> HeadlabTransformer:
    """A random model that ends its sentences sooner here and later there."""
    model = random_model(seed=seed)
    with torch.no_grad():
        model.decoder.embed_tokens.weight.mul_(0.3)[EOS].mul_(-3.5)
    return model


def fairseqs(model: HeadlabTransformer, layout: Layout) -> TransformerModelBase:
    """fairseq's model with the same weights; heads that ``layout`` lacks reach nothing."""
    twin = TransformerModelBase.build_model(transformer_config(shape_of()), Dictionaries())
    twin.load_state_dict(model.state_dict())
    kept = set(layout)
    for own in attention_layers(model):
        half = twin.encoder if own.kind == "enc-self" else twin.decoder
        layer = half.layers[own.layer]
        attention = layer.encoder_attn if own.kind == "enc-dec" else layer.self_attn
        for head in range(4):
            if Head(own.kind, own.layer, head) not in kept:
                attention.out_proj.weight.data[:, head * 8 : head * 8 + 8] = 0
    return twin.eval()


@pytest.mark.parametrize("lenpen", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_finds_what_fairseqs_generator_finds(name, beam, lenpen):
    layout = LAYOUTS[name]
    model = talkative()
    twin = fairseqs(model, layout)
    remove_heads(model, layout)
    source, lengths = sources()
    with torch.inference_mode():
        found = Search(model, beam, lenpen, EOS, PAD)(source, lengths, 2 * lengths + 5)
    theirs = SequenceGenerator(
        [twin], dictionary(30), beam_size=beam, max_len_a=2, max_len_b=5, len_penalty=lenpen, max_len=200
    )
    for row, own in enumerate(found):  # one by one: fairseq's limit is that of the longest sentence of a batch
        alone = source[row : row + 1, source.size(1) - int(lengths[row]) :]
        sample = {"net_input": {"src_tokens": alone, "src_lengths": lengths[row : row + 1]}}
        expected = theirs.generate([twin], sample)[0][0]["tokens"]
        assert own.tolist() == expected[:-1].tolist(), row
    if name == "half":  # sentences of this model are done at different times
        assert len({len(own) for own in found}) > 2


def test_no_translation_is_longer_than_its_own_limit():
    model = talkative()
    with torch.no_grad():
        model.decoder.embed_tokens.weight[EOS].mul_(-1)  # never ends of itself
    source, lengths = sources()
    limit = torch.arange(1, 13)
    with torch.inference_mode():
        found = Search(model, 3, 1.0, EOS, PAD)(source, lengths, limit)
    assert [len(own) for own in found] == limit.tolist()
