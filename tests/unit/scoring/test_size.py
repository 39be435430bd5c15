"""Sizes against the figures printed by Ni et al. 2023 and against closed forms."""

from dataclasses import replace

import pytest

from headlab.attention.heads import KINDS, Layout
from headlab.scoring.size import ModelShape, flops, parameters

BASE = ModelShape(6, 6, heads=8, dim=512, ffn=2048, source_vocabulary=42_800, target_vocabulary=42_800)
FULL = Layout.full(6, 6, 8)


def per_layer(layout: Layout, kept: int) -> Layout:
    return layout.keep([head for head in layout if head.index < kept], KINDS)


@pytest.mark.parametrize(("kept", "millions"), [(8, 44.14), (4, 34.69), (3, 32.32), (2, 29.96), (1, 27.60)])
def test_parameters_of_base_are_those_of_the_paper(kept, millions):
    assert round(parameters(BASE, per_layer(FULL, kept), embeddings=False) / 1e6, 2) == millions


def test_parameters_of_the_language_model_are_those_of_the_paper():
    shape = ModelShape(0, 16, heads=16, dim=1024, ffn=4096, source_vocabulary=0, target_vocabulary=1)
    full = Layout({"dec-self": (tuple(range(16)),) * 16}, {"dec-self": (16,) * 16})
    half = full.keep([head for head in full if head.index < 8], ["dec-self"])
    assert round(parameters(shape, full, embeddings=False) / 1e6, 1) == 201.5
    assert round(parameters(shape, half, embeddings=False) / 1e6, 2) == 167.96


def test_pre_norm_adds_one_layer_norm_at_the_end_of_either_stack():
    more = parameters(replace(BASE, norm="pre"), FULL, False) - parameters(BASE, FULL, False)
    assert more == 2 * (512 + 512)


def test_a_layer_without_heads_keeps_the_bias_of_its_output_projection():
    shape = ModelShape(1, 0, heads=2, dim=4, ffn=3, source_vocabulary=5, target_vocabulary=0)
    none = Layout({"enc-self": ((),)}, {"enc-self": (2,)})
    output_bias, two_norms, feed_forward = 4, 2 * 8, (4 * 3 + 3) + (3 * 4 + 4)
    assert parameters(shape, none, embeddings=False) == output_bias + two_norms + feed_forward
    assert parameters(shape, none, embeddings=True) == output_bias + two_norms + feed_forward + 5 * 4


def test_embeddings_are_counted_once_where_they_are_shared():
    def embeddings(**changes):
        shape = replace(BASE, **{"source_vocabulary": 10, "target_vocabulary": 20, **changes})
        return (parameters(shape, FULL, True) - parameters(shape, FULL, False)) / 512

    assert embeddings() == 30
    assert embeddings(tied_output=False) == 50
    assert embeddings(shared_embeddings=True, source_vocabulary=20) == 20


@pytest.mark.parametrize(
    ("shape", "layout", "millions"),
    [
        (BASE, FULL, 1995),
        (replace(BASE, encoder_layers=4, decoder_layers=4), Layout.full(4, 4, 8), 1549),
        (replace(BASE, dim=424, ffn=1696), FULL, 1464),
        (BASE, per_layer(FULL, 2), 1558),
        (replace(BASE, ffn=1024), per_layer(FULL, 2), 1181),
    ],
    ids=["Transformer", "Lite1", "Lite2", "GHT-PS", "GHT-PS-LITE"],
)
def test_flops_are_those_of_the_paper(shape, layout, millions):
    assert round(flops(shape, layout) / 1e6) == millions


@pytest.mark.parametrize("vocabulary", [4_000, 42_800])
def test_flops_saved_by_36_of_144_heads_do_not_depend_on_the_vocabulary(vocabulary):
    shape = replace(BASE, target_vocabulary=vocabulary)
    saved = flops(shape, FULL) - flops(shape, per_layer(FULL, 2))
    assert saved / 1e6 == pytest.approx(1996 - 1558, abs=1)  # both printed as whole millions
    assert saved == 18 * 6 * (4 * 30 * 512 * 64 + 2 * 30 * 30 * 64)


def test_flops_with_unequal_lengths_tell_the_kinds_apart():
    shape = ModelShape(1, 1, heads=1, dim=1, ffn=0, source_vocabulary=0, target_vocabulary=0)
    full = Layout.full(1, 1, 1)
    no_heads = full.keep([], KINDS)
    costs = {k: flops(shape, no_heads.keep([], KINDS), 5, 3) for k in KINDS}
    costs = {k: flops(shape, full.keep([h for h in full if h.kind == k], KINDS), 5, 3) - costs[k] for k in KINDS}
    assert costs == {"enc-self": 4 * 5 + 2 * 25, "dec-self": 4 * 3 + 2 * 9, "enc-dec": 2 * 3 + 2 * 5 + 2 * 15}
