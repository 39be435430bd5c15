import gzip
import hashlib

import pytest

from headlab.config import DataConfig, FilesConfig
from headlab.corpora import files
from headlab.errors import UserError


@pytest.fixture
def corpus(tmp_path):
    """Three good sets; a test damages one of them."""
    for split in files.SPLITS:
        for lang in ("aa", "bb"):
            (tmp_path / f"{split}.{lang}").write_text(f"{split} {lang} 1\n{split} {lang} 2\n", encoding="utf-8")
    return tmp_path


def config(folder):
    prefixes = FilesConfig(*(str(folder / split) for split in files.SPLITS))
    return DataConfig(name="own", source="files", source_lang="aa", target_lang="bb", files=prefixes)


def problems_of(folder):
    with pytest.raises(UserError) as caught:
        files.read(config(folder))
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)


def test_sets_are_taken_as_they_are(corpus):
    sets, dropped = files.read(config(corpus))
    assert dropped == 0
    assert sets == {
        split: [(f"{split} aa 1", f"{split} bb 1"), (f"{split} aa 2", f"{split} bb 2")] for split in files.SPLITS
    }


def test_gz_bom_crlf_missing_last_newline_and_odd_spaces(corpus):
    (corpus / "train.aa").unlink()
    with gzip.open(corpus / "train.aa.gz", "wb") as stream:
        stream.write("\ufeffeins\r\nzwei\u2028 drei".encode())
    sets, _ = files.read(config(corpus))
    assert sets["train"] == [("eins", "train bb 1"), ("zwei drei", "train bb 2")]


def test_an_empty_line_is_dropped_from_train_and_an_error_elsewhere(corpus):
    (corpus / "train.aa").write_text("one\n \n", encoding="utf-8")
    sets, dropped = files.read(config(corpus))
    assert (sets["train"], dropped) == ([("one", "train bb 1")], 1)
    (corpus / "test.bb").write_text("one\n\n", encoding="utf-8")
    assert problems_of(corpus) == [f"{corpus}/test.bb: line 2 is empty; take the pair out of both files"]


def test_unequal_counts_name_both_files_and_the_line(corpus):
    (corpus / "valid.bb").write_text("1\n2\n3\n4\n", encoding="utf-8")
    (problem,) = problems_of(corpus)
    assert problem.startswith(f"{corpus}/valid.bb: line 3 has no counterpart: ")
    assert f"{corpus}/valid.aa has 2 lines, {corpus}/valid.bb has 4" in problem


def test_wrong_encoding_names_the_line(corpus):
    (corpus / "test.aa").write_bytes("gut\nfür\n".encode("latin-1"))
    assert problems_of(corpus) == [
        f"{corpus}/test.aa: line 2 is not UTF-8 (byte 0xfc); convert the file, e.g. with iconv"
    ]


def test_every_problem_is_told_at_once(corpus):
    (corpus / "train.aa").write_bytes(b"")
    (corpus / "valid.aa").write_bytes(b"\xff\n")
    packed = gzip.compress(b"one\ntwo\n" * 100)
    (corpus / "test.bb").unlink()
    (corpus / "test.bb.gz").write_bytes(packed[:-9])
    problems = problems_of(corpus)
    assert [problem.split(":")[0] for problem in problems] == [
        f"{corpus}/train.aa",
        f"{corpus}/valid.aa",
        f"{corpus}/test.bb.gz",
    ]
    assert "empty" in problems[0]
    assert "line 1" in problems[1]
    assert "gzip" in problems[2]


def test_a_training_set_of_empty_lines_is_an_empty_set(corpus):
    (corpus / "train.aa").write_text("\nx\n", encoding="utf-8")
    (corpus / "train.bb").write_text("x\n\n", encoding="utf-8")
    assert problems_of(corpus) == [f"{corpus}/train.aa: no pair of the train set has text on both sides"]


def test_missing_files_and_keys_are_told_at_once(corpus):
    (corpus / "train.bb").unlink()
    cfg = config(corpus)
    cfg.files.valid = None
    with pytest.raises(UserError) as caught:
        files.read(cfg)
    missing, unset = caught.value.problems
    assert missing.startswith(f"{corpus}/train.bb: no such file, nor train.bb.gz")
    assert unset.startswith("data.files.valid is not set")


def test_fingerprints_are_the_contents(corpus, tmp_path):
    prints = files.fingerprints(config(corpus))
    assert len(prints) == 6
    assert prints["train.aa"] == hashlib.sha256(b"train aa 1\ntrain aa 2\n").hexdigest()
