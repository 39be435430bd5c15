"""Names of heads, layouts and their written forms."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlab.attention.heads import KINDS, Head, Layout, check_scope

FULL = Layout.full(2, 3, 4)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout of a model with 2+3 layers of 4 heads."""
    return FULL.keep(draw(st.sets(st.sampled_from(list(FULL)))), KINDS)


def test_a_head_is_written_as_kind_layer_index():
    assert str(Head("enc-self", 3, 5)) == "enc-self.3.5"
    assert Head.parse("enc-dec.0.11") == Head("enc-dec", 0, 11)


@pytest.mark.parametrize("text", ["", "enc-self", "enc-self.1", "enc-self.1.x", "self.1.2", "enc-self.-1.2", "a.b.c.d"])
def test_what_is_not_a_head_is_refused(text):
    with pytest.raises(ValueError, match=r"expected KIND\.LAYER\.INDEX"):
        Head.parse(text)


def test_a_scope_comes_back_in_table_order():
    assert check_scope(["enc-dec", "enc-self"]) == ("enc-self", "enc-dec")
    assert check_scope(KINDS) == ("enc-self", "dec-self", "enc-dec")


@pytest.mark.parametrize("scope", [[], ["encoder"], ["enc-self", "cross"]])
def test_an_empty_or_unknown_scope_is_refused(scope):
    with pytest.raises(ValueError, match="choose from enc-self, dec-self, enc-dec"):
        check_scope(scope)


def test_a_transformer_base_has_144_heads_48_of_each_kind():
    base = Layout.full(6, 6, 8)
    assert base.count() == base.total() == len(list(base)) == 144
    assert [base.count([kind]) for kind in KINDS] == [48, 48, 48]
    assert [head.kind for head in base] == ["enc-self"] * 48 + ["dec-self"] * 48 + ["enc-dec"] * 48
    assert list(base)[11] == Head("enc-self", 1, 3)


def test_the_written_form_is_that_of_rows():
    layout = Layout.full(2, 1, 8)
    chosen = [Head("enc-self", 0, 5), Head("enc-self", 0, 1)]
    layout = layout.keep(chosen, ["enc-self"])
    assert str(layout) == "enc-self:0=1,5;1= dec-self:0=0,1,2,3,4,5,6,7 enc-dec:0=0,1,2,3,4,5,6,7"
    assert layout.kept["enc-self"] == ((1, 5), ())


@given(layouts())
def test_every_layout_survives_its_written_form_and_json(layout):
    assert Layout.parse(str(layout), 4) == layout
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@given(st.sets(st.sampled_from(list(FULL))), st.sets(st.sampled_from(KINDS), min_size=1))
def test_keep_leaves_what_is_outside_the_scope_alone(heads, scope):
    within = {head for head in heads if head.kind in scope}
    layout = FULL.keep(within, scope)
    assert set(layout) == within | {head for head in FULL if head.kind not in scope}
    assert layout.count(scope) == len(within)
    assert layout.total(scope) == FULL.total(scope)
    assert list(layout) == sorted(layout, key=lambda h: (KINDS.index(h.kind), h.layer, h.index))


def test_keep_refuses_heads_outside_the_scope_removed_heads_and_unknown_ones():
    for head, scope in [
        (Head("dec-self", 0, 0), ["enc-self"]),
        (Head("enc-self", 0, 4), ["enc-self"]),
        (Head("enc-self", 2, 0), ["enc-self"]),
    ]:
        with pytest.raises(ValueError, match=str(head)):
            FULL.keep([head], scope)
    pruned = FULL.keep([], ["enc-self"])
    with pytest.raises(ValueError, match="not a head of this model"):
        pruned.keep([Head("enc-self", 0, 0)], ["enc-self"])


@pytest.mark.parametrize("indices", [(1, 0), (0, 0), (4,), (-1,)])
def test_a_layout_with_unsorted_repeated_or_unknown_indices_is_refused(indices):
    with pytest.raises(ValueError, match="not a sorted subset"):
        Layout({"enc-self": (indices,)}, {"enc-self": (4,)})


@pytest.mark.parametrize(
    "text",
    ["enc-self", "enc-self:0=1,5;1=2 nonsense", "encoder:0=1", "enc-self:0=9", "enc-self:0=x", "enc-self:1=0;0=1"],
)
def test_what_is_not_the_written_form_of_a_layout_is_refused(text):
    with pytest.raises(ValueError):
        Layout.parse(text, 8)


@pytest.mark.parametrize(
    "value",
    [
        None, [], {}, {"kept": {}}, {"kept": {"enc-self": [[0]]}, "heads": {}}, {"kept": {"enc-self": 3}, "heads": {}},
        {"kept": {"enc-self": [[0], [1]]}, "heads": {"enc-self": [4]}}, {"kept": None, "heads": None},
        {"kept": {"enc-self": [["a"]]}, "heads": {"enc-self": [4]}},
        {"kept": {"encoder": [[0]]}, "heads": {"encoder": [4]}},
    ],
)  # fmt: skip
def test_json_that_is_not_a_layout_is_refused(value):
    with pytest.raises(ValueError):
        Layout.from_json(value)
