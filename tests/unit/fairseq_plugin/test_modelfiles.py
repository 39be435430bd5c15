"""A saved model: whole, small, and refused in one line where damaged; binarising and translating with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headlab.attention.heads import KINDS, Head, Layout
from headlab.config import ScoreConfig
from headlab.corpora import Pieces
from headlab.errors import UserError
from headlab.fairseq_plugin.binarize import binarize
from headlab.fairseq_plugin.checkpoints import write_tensors
from headlab.fairseq_plugin.generation import Translator
from headlab.fairseq_plugin.model import detached_state
from headlab.fairseq_plugin.modelfiles import load_model, read_layout, save_model

from .conftest import MACHINE, shape_of

SHAPE = shape_of(decoder_layers=2)
LAYOUT = Layout.full(2, 2, 4).keep([Head("enc-self", 1, 2), Head("dec-self", 0, 0), Head("enc-dec", 1, 3)], KINDS)


@pytest.fixture
def saved(tmp_path, new_model, corpus):
    """A run directory's model folder, and the model in it."""
    model = new_model(LAYOUT, dropout=0.0, attention_dropout=0.0)
    folder = tmp_path / "run"
    folder.mkdir()
    save_model(model, detached_state(model), corpus, folder)
    return folder, model.eval()


def load(folder: Path):
    return load_model(folder, SHAPE, "xx", "yy", MACHINE)


def test_a_saved_model_loads_with_its_layout_and_vocabulary_alone(saved, digits, tmp_path):
    folder, model = saved
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)  # nothing points back
    found, task, pieces = load(moved)
    assert found.layout() == model.layout() == LAYOUT == read_layout(moved)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))
    source = torch.tensor([[4, 5, 6, 2]])
    inputs = (source, torch.tensor([4]), torch.tensor([[2, 7, 8]]))
    assert torch.equal(found.eval()(*inputs)[0], model(*inputs)[0])
    assert pieces.decode(pieces.encode(["1 2 3"])) == ["1 2 3"]
    assert len(task.source_dictionary) == model.encoder.embed_tokens.num_embeddings


def test_each_tensor_is_saved_once_and_ties_are_recorded(saved):
    folder, model = saved
    tensors = load_file(folder / "model.safetensors")
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in model.parameters())
    record = json.loads((folder / "heads.json").read_text())
    assert record["tied"] == [["decoder.embed_tokens.weight", "decoder.output_projection.weight"]]
    assert record["kept"]["enc-self"] == [[], [2]]
    assert record["heads"]["enc-self"] == [4, 4]
    found, _, _ = load(folder)
    assert found.decoder.output_projection.weight is found.decoder.embed_tokens.weight


def edit(change):
    def damage(folder: Path) -> None:
        record = json.loads((folder / "heads.json").read_text())
        change(record)
        (folder / "heads.json").write_text(json.dumps(record))

    return damage


DAMAGE = {
    "no heads.json": lambda folder: (folder / "heads.json").unlink(),
    "cut heads.json": lambda folder: (folder / "heads.json").write_text('{"kept": {'),
    "heads.json is a list": lambda folder: (folder / "heads.json").write_text("[]"),
    "binary heads.json": lambda folder: (folder / "heads.json").write_bytes(b"\xff\xfe\x00"),
    "a kind is missing": edit(lambda r: (r["kept"].pop("enc-dec"), r["heads"].pop("enc-dec"))),
    "a layer is missing": edit(lambda r: (r["kept"]["dec-self"].pop(), r["heads"]["dec-self"].pop())),
    "a layer too many": edit(lambda r: (r["kept"]["dec-self"].append([0]), r["heads"]["dec-self"].append(4))),
    "an index too large": edit(lambda r: r["kept"]["enc-self"].__setitem__(0, [9])),
    "more heads than the model": edit(
        lambda r: (r["kept"]["enc-self"].__setitem__(1, [6]), r["heads"].__setitem__("enc-self", [8, 8]))
    ),
    "other heads": edit(lambda r: r["kept"]["enc-self"].__setitem__(0, [0])),
    "no model.safetensors": lambda folder: (folder / "model.safetensors").unlink(),
    "cut model.safetensors": lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 100),
    "a tensor is missing": lambda folder: write_tensors({"x": torch.zeros(1)}, folder / "model.safetensors"),
    "no dictionary": lambda folder: (folder / "vocabulary" / "dict.xx.txt").unlink(),
    "short dictionary": lambda folder: (folder / "vocabulary" / "dict.xx.txt").write_text("a 1\n"),
    "broken dictionary": lambda folder: (folder / "vocabulary" / "dict.xx.txt").write_text("a b c\n"),
    "binary dictionary": lambda folder: (folder / "vocabulary" / "dict.yy.txt").write_bytes(b"\xff\xfe"),
    "no pieces": lambda folder: (folder / "vocabulary" / "pieces.model").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_folder_is_told_in_one_line_that_names_the_file(saved, damage):
    folder, _ = saved
    DAMAGE[damage](folder)
    with pytest.raises(UserError) as caught:
        load(folder)
    (line,) = caught.value.problems
    assert str(folder) in line


def test_dictionaries_hold_the_words_of_their_own_language(tmp_path):
    for split, (source, target) in {
        "train": ("a b a\n", "c c d\n"),
        "valid": ("a z\n", "d\n"),
        "test": ("b\n", "c\n"),
    }.items():
        (tmp_path / f"{split}.pieces.xx").write_text(source)
        (tmp_path / f"{split}.pieces.yy").write_text(target)
    bin_folder = binarize(tmp_path, "xx", "yy")
    words = {lang: _words(bin_folder / f"dict.{lang}.txt") for lang in ("xx", "yy")}
    assert words == {"xx": ["a", "b"], "yy": ["c", "d"]}  # the most frequent first
    binarize(tmp_path, "xx", "yy", joint=True)
    assert _words(bin_folder / "dict.xx.txt") == _words(bin_folder / "dict.yy.txt") == ["a", "c", "b", "d"]


def _words(path: Path) -> list[str]:
    return [w for w in (line.split()[0] for line in path.read_text().splitlines()) if not w.startswith("madeup")]


def test_the_binary_corpus_is_the_text(task, digits):
    for split in ("train", "valid", "test"):
        task.load_dataset(split)
        data = task.dataset(split)
        lines = (digits / f"{split}.pieces.xx").read_text().splitlines()
        assert len(data) == len(lines)
        for index in (0, len(data) - 1):
            assert task.source_dictionary.string(data[index]["source"]) == lines[index]
            assert data[index]["source"][-1] == task.source_dictionary.eos()


@pytest.fixture
def translator(task, new_model, digits):
    model = new_model(dropout=0.0, attention_dropout=0.0)
    with torch.no_grad():  # translations that differ from source to source, and end only where they have to
        for layer in model.decoder.layers:
            layer.encoder_attn.out_proj.weight.mul_(60)
        model.encoder.embed_tokens.weight.mul_(4)
        model.decoder.embed_tokens.weight.mul_(3)[task.target_dictionary.eos()].zero_()
    return lambda **score: Translator(model, task, Pieces(digits / "pieces.model"), ScoreConfig(**score))


def test_translations_come_in_the_order_of_the_lines_whatever_the_batch(translator):
    lines = ["1 2 3 4 5 6 7", "", "9", "4 4", "1 2 3 4 5 6 7", "   ", "3 5 7 9"]
    together, alone = translator(beam=1)(lines), [translator(beam=1)([line])[0] for line in lines]
    assert len(set(together)) > 2
    assert together[0] == together[4]
    assert together[1] == together[5] == ""
    for size in (2, 3):
        assert translator(beam=1, batch_sentences=size)(lines) == alone


def test_no_lines_and_only_empty_lines_are_translated_too(translator):
    assert translator()([]) == []
    assert translator()(["", " "]) == ["", ""]


def test_words_that_were_never_seen_and_very_long_lines_are_translated(translator):
    seen = []
    found = translator(beam=1)(["žluťoučký кот", "1 " * 3000], lambda done: seen.append(done))
    assert len(found) == 2
    assert seen[-1] == 2
