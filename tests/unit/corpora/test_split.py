from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headlab.corpora.split import split
from headlab.errors import UserError

# Few different sentences, so that many pairs share one; case varies, since it must not matter.
sentence = st.sampled_from([f"{a} {b} {c}" for a in "aAbB" for b in "cd" for c in "eEf"] + ["short one", "Short One"])


def sentences(pairs, side):
    return {pair[side].lower() for pair in pairs}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=60, unique=True), st.integers(0, 99))
def test_no_sentence_is_in_two_sets_and_every_pair_is_accounted_for(pairs, seed):
    try:
        sets, given_up = split(pairs, 1, 2, seed, counted=0)
    except UserError:
        return
    assert len(sets["valid"]) == 1
    assert len(sets["test"]) == 2
    for one, other in combinations(sets.values(), 2):
        for side in (0, 1):
            assert not sentences(one, side) & sentences(other, side)
    assert all(len(pair[0].split()) >= 3 for name in ("valid", "test") for pair in sets[name])
    kept = [pair for members in sets.values() for pair in members]
    assert len(set(kept)) == len(kept)
    assert set(kept) <= set(pairs)
    assert len(kept) + given_up == len(pairs)
    held_out = sets["valid"] + sets["test"]
    free = [p for p in pairs if all(p[side].lower() not in sentences(held_out, side) for side in (0, 1))]
    assert sets["train"] == free  # in order, and nothing given up without need


PAIRS = [(f"source sentence {i}", f"target sentence {i}") for i in range(200)]


def test_the_seed_decides():
    assert split(PAIRS, 20, 30, 1, 0) == split(PAIRS, 20, 30, 1, 0)
    assert split(PAIRS, 20, 30, 1, 0)[0]["test"] != split(PAIRS, 20, 30, 2, 0)[0]["test"]


def test_the_valid_size_leaves_the_test_set_as_it_is():
    assert split(PAIRS, 20, 30, 1, 0)[0]["test"] == split(PAIRS, 5, 30, 1, 0)[0]["test"]


def test_both_directions_hold_out_the_same_pairs():
    backward, _ = split([(target, source) for source, target in PAIRS], 20, 30, 1, counted=1)
    forward, _ = split(PAIRS, 20, 30, 1, counted=0)
    assert [(source, target) for target, source in backward["test"]] == forward["test"]


@pytest.mark.parametrize(("valid", "test"), [(150, 51), (100, 100), (0, 10), (10, 0)])
def test_too_few_pairs_or_empty_sets_are_refused(valid, test):
    with pytest.raises(UserError, match=rf"^data\.valid_size={valid} data\.test_size={test}: ") as caught:
        split(PAIRS, valid, test, 1, 0)
    assert len(caught.value.problems) == 1
