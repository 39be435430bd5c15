"""Baselines that are small from the start, against the paper's."""

from __future__ import annotations

import pytest

from headlab.attention.heads import KINDS, Layout
from headlab.compose import compose
from headlab.lite import as_small_as, model_shape
from headlab.scoring.size import parameters


def two_of_eight(layers: int) -> Layout:
    full = Layout.full(layers, layers, 8)
    return full.keep([head for head in full if head.index < 2], KINDS)


def test_they_are_the_papers_at_its_shape():
    shapes = as_small_as(compose(["model=base_post"], "train").model, two_of_eight(6))
    first, second = shapes["lite1"], shapes["lite2"]
    assert (first.encoder_layers, first.decoder_layers, first.dim, first.ffn) == (4, 4, 512, 2048)
    assert (second.encoder_layers, second.decoder_layers, second.dim, second.ffn) == (6, 6, 424, 1696)


@pytest.mark.parametrize("name", ["lite1", "lite2"])
def test_they_are_about_as_small_at_the_small_shape(name):
    model = compose(["model=small"], "train").model
    wanted = parameters(model_shape(model, 0, 0), two_of_eight(6), embeddings=False)
    shape = as_small_as(model, two_of_eight(6))[name]
    full = Layout.full(shape.encoder_layers, shape.decoder_layers, 8)
    assert parameters(model_shape(shape, 0, 0), full, embeddings=False) == pytest.approx(wanted, rel=0.06)
    assert shape.dim % shape.heads == 0
    assert (shape.heads, shape.norm, shape.dropout) == (model.heads, model.norm, model.dropout)


def test_with_all_heads_they_are_the_model_itself():
    model = compose(["model=small"], "train").model
    assert as_small_as(model, Layout.full(6, 6, 8)) == {"lite1": model, "lite2": model}
