"""The whole way from a config to files, on the user's own text and on a package that needs no fetching."""

import io
import json
import random
import string

import pytest
from rich.console import Console

from headlab.config import DataConfig, FilesConfig
from headlab.corpora import Pieces, build, identity, package, show
from headlab.corpora.report import near_duplicates
from headlab.errors import UserError


def sentences(count, seed, alphabet):
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices(alphabet, k=5)) for _ in range(4)) for _ in range(count)]


@pytest.fixture
def own(tmp_path):
    """The user's own text, with one empty line in train."""
    folder = tmp_path / "own"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for lang, alphabet in (("aa", string.ascii_lowercase), ("bb", "абвгдежз")):
            lines = sentences(40, f"{split} {lang}", alphabet)
            if (split, lang) == ("train", "bb"):
                lines[3] = ""
            (folder / f"{split}.{lang}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    prefixes = FilesConfig(*(str(folder / split) for split in ("train", "valid", "test")))
    return DataConfig(name="own", source="files", source_lang="aa", target_lang="bb", files=prefixes, pieces=2000)


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_own_text_is_built_aligned_and_reported(own, tmp_path):
    out = tmp_path / "out"
    report = build(own, out, tmp_path / "cache")
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == report
    assert report["dropped"] == {"empty line in train": 1}
    assert {name: numbers["pairs"] for name, numbers in report["sets"].items()} == {
        "train": 39,
        "valid": 40,
        "test": 40,
    }
    assert report["sets"]["train"]["words"] == {"aa": 4 * 39, "bb": 4 * 39}
    (notice,) = report["notices"]
    assert notice.startswith("data.pieces=2000: the training text is too small")
    assert len(lines_of(out / "pieces.vocab")) == report["pieces"]["size"] < 2000
    pieces = Pieces(out / "pieces.model")
    for name in ("train", "valid", "test"):
        for lang in ("aa", "bb"):
            raw = lines_of(out / f"{name}.{lang}")
            assert len(raw) == report["sets"][name]["pairs"]
            assert pieces.decode(lines_of(out / f"{name}.pieces.{lang}")) == raw
    pairs = list(zip(lines_of(out / "train.aa"), lines_of(out / "train.bb"), strict=True))
    assert len(report["samples"]) == 5
    assert all(tuple(sample) in pairs for sample in report["samples"])


def test_the_report_is_shown(own, tmp_path):
    report = build(own, tmp_path / "out", tmp_path / "cache")
    report["samples"][0][0] = "text in [brackets] stays"
    console = Console(file=io.StringIO(), width=120)
    show(report, console)
    text = console.file.getvalue()
    assert "dropped: empty line in train" in text
    assert "0.0% of 40 test sources" in text
    assert "[brackets]" in text
    assert "Licence: your own text" in text
    assert "too small" in text


@pytest.fixture
def packaged(monkeypatch):
    english = sentences(300, 1, string.ascii_lowercase)
    german = sentences(300, 2, "äöüßmnopq")
    aligned = [*zip(english, german, strict=True), ("Only {placeholder} here", "Nur das hier")]
    monkeypatch.setattr(package, "read_pairs", lambda *_: (aligned, {"en": 310, "de": 305}))
    return DataConfig(name="x", source_lang="en", target_lang="de", valid_size=20, test_size=30, pieces=150)


def test_a_package_is_cleaned_and_split(packaged, tmp_path):
    report = build(packaged, tmp_path / "out", tmp_path / "cache")
    assert report["read"] == {"en texts": 310, "de texts": 305, "texts in both": 301}
    assert {reason: count for reason, count in report["dropped"].items() if count} == {"placeholder": 1}
    assert {name: numbers["pairs"] for name, numbers in report["sets"].items()} == {
        "train": 250,
        "valid": 20,
        "test": 30,
    }
    assert report["notices"] == []
    assert "Apache" in report["licence"]


def test_the_same_config_gives_the_same_files(packaged, tmp_path):
    build(packaged, tmp_path / "one", tmp_path / "cache")
    build(packaged, tmp_path / "two", tmp_path / "cache")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 15
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_identity_is_what_changes_the_result(own, packaged):
    assert identity(packaged) != identity(DataConfig(**{**vars(packaged), "seed": 2}))
    assert identity(packaged) == identity(DataConfig(**{**vars(packaged), "name": "y"}))
    before = identity(own)
    assert identity(DataConfig(**{**vars(own), "seed": 2, "test_size": 7})) == before
    with open(f"{own.files.test}.aa", "a", encoding="utf-8") as stream:
        stream.write("one more\n")
    assert identity(own) != before


def test_unknown_source_and_equal_languages_are_told_at_once(tmp_path):
    cfg = DataConfig(name="x", source="web", source_lang="en", target_lang="en")
    with pytest.raises(UserError) as caught:
        build(cfg, tmp_path / "out", tmp_path)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "data.source=web",
        "data.source_lang and data.target_lang are both en; they have to differ",
    ]
    assert not (tmp_path / "out").exists()


def longest_common_subsequence(a, b):
    row = [0] * (len(b) + 1)
    for x in a:
        previous = 0
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], previous + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def test_near_duplicates_against_the_definition():
    rng = random.Random(3)
    train = sentences(60, 4, "abc")
    test = []
    for line in train[:40]:  # each with some characters lost and in capitals: similarities on both sides of 0.9
        lost = set(rng.sample(range(len(line)), rng.randint(0, 6)))
        test.append("".join(c for i, c in enumerate(line) if i not in lost).upper())

    def similar(a, b):
        return 2 * longest_common_subsequence(a, b) >= 0.9 * (len(a) + len(b))

    expected = sum(any(similar(line.lower(), known) for known in train) for line in test)
    assert 0 < expected < 40
    assert near_duplicates(test, train) == {"similarity": 0.9, "of": 40, "found": expected, "share": expected / 40}
