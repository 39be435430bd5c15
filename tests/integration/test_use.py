"""Finished models in use, and damaged ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from .runner import Headlab

pytestmark = pytest.mark.integration


@pytest.fixture
def run(first: pd.DataFrame) -> str:
    """The model with one encoder head left, as a path from the folder of the commands."""
    return str(first[(first.method == "l0") & (first.target == 1)].run.item())


@pytest.fixture
def copy(headlab: Headlab, run: str) -> Iterator[Path]:
    """A copy of that run to be damaged."""
    folder = headlab.folder / "runs" / "pruned" / "damaged"
    shutil.copytree(headlab.folder / run, folder)
    yield folder
    shutil.rmtree(folder)  # other files' tests look at all runs


def test_translate_gives_a_line_for_a_line(headlab, run):
    lines = (headlab.folder / "test.xx").read_text()
    done = headlab.bare("translate", run, "--beam", "2", "--threads", "1", stdin=lines + "\n")
    assert done.code == 0, done.stderr
    assert done.stdout == (headlab.folder / run / "hypotheses.txt").read_text() + "\n"


def test_translate_works_from_another_folder(headlab, run, tmp_path):
    elsewhere = Headlab(tmp_path)
    done = elsewhere.bare("translate", str(headlab.folder / run), stdin="1 2 3\n")
    assert done.code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_evaluate_in_another_folder_asks_for_the_corpus_in_one_line(headlab, run, tmp_path):
    done = Headlab(tmp_path).bare("evaluate", str(headlab.folder / run))
    assert done.code == 2
    assert len(done.stderr.splitlines()) == len(done.errors) == 1
    assert "train.xx: no such file" in done.errors[0]


def test_a_control_is_a_model_like_any_other(headlab, first):
    row = first[first.variant == "control-u11"].iloc[0]
    done = headlab.bare("evaluate", row.run)
    assert done.code == 0, done.stderr
    assert f"BLEU     {row.bleu:.2f}" in done.stdout
    done = headlab.bare("translate", row.run, stdin="1 2 3\n")
    assert (done.code, len(done.stdout.splitlines())) == (0, 1), done.stderr


def test_evaluate_prints_the_scores_of_the_row(headlab, run, first):
    row = first[first.run == run].iloc[0]
    done = headlab.bare("evaluate", run)
    assert done.code == 0, done.stderr
    assert f"BLEU     {row.bleu:.2f}  {row.bleu_signature}" in done.stdout
    assert "17 of 24" in done.stdout  # one of 8 encoder heads, and the decoder's 16


def without_a_head(folder: Path) -> None:
    record = json.loads((folder / "heads.json").read_text())
    record["kept"]["dec-self"][0].remove(0)
    (folder / "heads.json").write_text(json.dumps(record))


DAMAGE = {
    "model.safetensors is cut": lambda f: (f / "model.safetensors").write_bytes(b"\x10" * 50),
    "model.safetensors is a pickle": lambda f: torch.save({"a": torch.ones(1)}, f / "model.safetensors"),
    "model.safetensors is missing": lambda f: (f / "model.safetensors").unlink(),
    "heads.json is cut": lambda f: (f / "heads.json").write_text('{"kept": {"enc-self": [['),
    "heads.json lacks a kind": lambda f: (f / "heads.json").write_text('{"kept": {}, "heads": {}}'),
    "heads.json has other heads": without_a_head,
    "config.yaml is cut": lambda f: (f / "config.yaml").write_text((f / "config.yaml").read_text()[:300] + "  x: ["),
    "config.yaml is empty": lambda f: (f / "config.yaml").write_text(""),
    "config.yaml is binary": lambda f: (f / "config.yaml").write_bytes(b"\xff\xfe\x00\x01"),
    "config.yaml is of another shape": lambda f: (f / "config.yaml").write_text(
        (f / "config.yaml").read_text().replace("dim: 16", "dim: 32")
    ),
    "config.yaml interpolates": lambda f: (f / "config.yaml").write_text(
        (f / "config.yaml").read_text().replace("dim: 16", "dim: ${oc.env:HOME}")
    ),
    "pieces.model is cut": lambda f: (f / "vocabulary" / "pieces.model").write_bytes(b"\x00"),
    "a dictionary is missing": lambda f: (f / "vocabulary" / "dict.yy.txt").unlink(),
    "a dictionary is cut": lambda f: (f / "vocabulary" / "dict.yy.txt").write_text("a"),
    "DONE is missing": lambda f: (f / "DONE").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_told_in_one_line(headlab, copy, damage):
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    DAMAGE[damage](copy)
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} != before
    done = headlab.bare("translate", str(copy.relative_to(headlab.folder)), stdin="1 2 3\n")
    assert "Traceback" not in done.stderr
    assert len(done.errors) == len(done.stderr.splitlines()) == 1
    assert done.code == 2
    assert "runs/pruned/damaged" in done.errors[0]
    assert done.stdout == ""


def test_an_interrupted_measurement_is_made_again(headlab, copy):
    (copy / "scores.json").write_text('{"key": "x"')
    done = headlab.bare("evaluate", str(copy.relative_to(headlab.folder)))
    assert "Traceback" not in done.stderr
    assert done.code in (0, 2)
