import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlab.corpora.pieces import Pieces, learn
from headlab.errors import UserError


def corpus():
    rng = random.Random(5)
    words = ["".join(rng.choice("abcdeабвгд-,.") for _ in range(rng.randint(1, 8))) for _ in range(300)]
    return [" ".join(rng.choices(words, k=6)) for _ in range(500)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    assert learn(corpus(), 200, folder) == 200
    return folder


@pytest.fixture(scope="module")
def pieces(model):
    return Pieces(model / "pieces.model")


# U+2581 stands for a space in pieces; surrogates are no text.
characters = st.characters(exclude_characters="\u2581\x00", exclude_categories=["Cs"])


@given(st.text(characters))
def test_text_comes_back_whatever_its_characters(pieces, text):
    line = " ".join(text.split())
    assert pieces.decode(pieces.encode([line])) == [line]


def test_control_symbols_and_unseen_characters_come_back(pieces):
    lines = ["<s> a </s> <unk> <pad>", "日本語 ⛄ ﬁ ① Å", ""]
    assert pieces.decode(pieces.encode(lines)) == lines
    assert not {"<s>", "</s>", "<unk>", "<pad>"} & set(pieces.encode(lines)[0].split())


def test_words_are_cut_at_spaces_only_and_lines_stay_lines(pieces):
    lines = corpus()[:50]
    encoded = pieces.encode(lines)
    assert len(encoded) == 50
    for line, cut in zip(lines, encoded, strict=True):
        assert sum(piece.startswith("▁") for piece in cut.split(" ")) == len(line.split())


def test_pieces_are_learned_the_same_every_time(model, tmp_path):
    learn(corpus(), 200, tmp_path)
    for name in ("pieces.model", "pieces.vocab"):
        assert (tmp_path / name).read_bytes() == (model / name).read_bytes()
    assert len((tmp_path / "pieces.vocab").read_text(encoding="utf-8").splitlines()) == 200


def test_a_tiny_text_gets_the_pieces_that_it_has(tmp_path):
    # ▁ a b ▁a ab ▁ab <unk>: every merge of one word, and nothing to fill 4000 with
    size = learn(["ab"] * 10, 4000, tmp_path)
    assert 4 <= size <= 7
    assert Pieces(tmp_path / "pieces.model").encode(["ab"]) == ["▁ab"]


def test_fewer_pieces_than_characters_are_refused_with_the_number_needed(tmp_path):
    # a b c d e f g ▁ and <unk>
    with pytest.raises(UserError, match=r"^data\.pieces=5: .* need 9; set more$"):
        learn(["abc defg"], 5, tmp_path)


def test_a_missing_and_a_damaged_model(tmp_path):
    with pytest.raises(UserError, match=r"pieces\.model"):
        Pieces(tmp_path / "pieces.model")
    (tmp_path / "pieces.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match=r"pieces\.model: damaged"):
        Pieces(tmp_path / "pieces.model")
