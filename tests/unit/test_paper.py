"""The papers' figures stand beside models of their own kind alone."""

from __future__ import annotations

import pytest

from headlab.attention.heads import KINDS, Head, Layout
from headlab.paper import paper_bleu

FULL = Layout.full(6, 6, 8)
SCOPE = ("enc-self",)
TEN = FULL.keep([Head("enc-self", 5, i) for i in range(8)] + [Head("enc-self", 0, i) for i in range(2)], SCOPE)


def test_the_base_and_ten_heads_have_the_bleu_of_figure_7():
    assert paper_bleu("en_ru", ("en", "ru"), SCOPE, "none", "base", FULL) == 29.60
    assert paper_bleu("en_ru", ("en", "ru"), SCOPE, "l0", "", TEN) == 29.45
    assert paper_bleu("en_ru", ("en", "ru"), SCOPE, "l0", "lambda", TEN) == 29.45


@pytest.mark.parametrize(
    ("langs", "scope", "method", "variant", "layout"),
    [
        (("en", "de"), SCOPE, "l0", "", TEN),
        (("ru", "en"), SCOPE, "none", "base", FULL),
        (("en", "ru"), KINDS, "none", "base", FULL),
        (("en", "ru"), SCOPE, "random", "", TEN),
        (("en", "ru"), SCOPE, "none", "control-u660", FULL),
        (("en", "ru"), SCOPE, "none", "scratch", TEN),
        (("en", "ru"), SCOPE, "l0", "lambda-untuned", TEN),
        (("en", "ru"), SCOPE, "none", "base", Layout.full(4, 4, 8)),
        (("en", "ru"), SCOPE, "none", "base", Layout.full(12, 6, 4)),
        (("en", "ru"), SCOPE, "l0", "", FULL.keep([], SCOPE)),
    ],
)
def test_other_models_have_none(langs, scope, method, variant, layout):
    assert paper_bleu("_".join(langs), langs, scope, method, variant, layout) is None


BASE = Layout.full(6, 6, 8)
TWO = BASE.keep([head for head in BASE if head.index in (2, 5)], KINDS)


@pytest.mark.parametrize(
    ("langs", "method", "variant", "layout", "bleu"),
    [
        (("de", "en"), "none", "base", BASE, 34.4),
        (("en", "fr"), "gha", "ght-c2", BASE, 41.5),
        (("de", "en"), "gha", "", TWO, 35.2),
        (("en", "it"), "gha", "constraint-in-both", TWO, 30.6),
        (("it", "en"), "l0", "", TWO, 30.8),
        (("en", "de"), "dsp", "", TWO, 27.5),
        (("en", "de"), "none", "lite1", Layout.full(4, 4, 8), 27.9),
        (("en", "ru"), "gha", "", TWO, None),
        (("de", "en"), "gha", "", BASE, None),
        (("de", "en"), "gha", "from-base", TWO, None),
        (("de", "en"), "gha", "ght-c4", BASE, None),
        (("de", "en"), "random", "", TWO, None),
        (("de", "en"), "none", "base", Layout.full(2, 2, 4), None),
    ],
)
def test_rows_of_nis_models_have_the_bleu_of_its_tables(langs, method, variant, layout, bleu):
    assert paper_bleu("_".join(langs), langs, KINDS, method, variant, layout) == bleu
    assert paper_bleu("_".join(langs), langs, ("dec-self",), method, variant, layout) is None


@pytest.mark.parametrize(
    ("langs", "method", "variant", "layout", "bleu"),
    [
        (("en", "de"), "none", "base", BASE, 27.3),
        (("en", "fr"), "none", "base", BASE, 38.1),
        (("en", "de"), "gha", "ght-c2", BASE, 28.6),
        (("en", "fr"), "gha", "", TWO, 40.5),
        (("en", "de"), "l0", "", TWO, 22.0),
        (("en", "fr"), "dsp", "", TWO, 33.6),
        (("en", "fr"), "none", "lite2", BASE, 37.8),
        (("en", "de"), "gha", "vote-at-start", TWO, None),  # not in its table of ablations
        (("de", "en"), "gha", "", TWO, None),
    ],
)
def test_on_wmt14_they_are_those_of_wmt14(langs, method, variant, layout, bleu):
    assert paper_bleu(f"wmt14.{'-'.join(langs)}", langs, KINDS, method, variant, layout) == bleu
