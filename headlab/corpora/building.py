"""Obtain → clean → split → pieces: from a :class:`DataConfig` to text files that a model can be trained on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headlab.config import DataConfig
from headlab.corpora import files, package
from headlab.corpora.clean import Pair, clean
from headlab.corpora.pieces import Pieces, learn
from headlab.corpora.report import near_duplicates
from headlab.corpora.split import split
from headlab.errors import UserError
from headlab.runs import atomic_write, write_json

RULES = 1  # raised whenever cleaning, splitting or cutting changes what comes out
SAMPLES = 5
OWN_LICENCE = "your own text; whoever owns it decides what may be done with it and with models trained on it"


def identity(cfg: DataConfig) -> dict[str, Any]:
    """Everything that can change the result of :func:`build`, and nothing else (not the name, not where files lie).

    Raises UserError for an unknown source and for files that are missing.
    """
    _check(cfg)
    common = {
        "rules": RULES,
        "source": cfg.source,
        "source_lang": cfg.source_lang,
        "target_lang": cfg.target_lang,
        "pieces": cfg.pieces,
    }
    if cfg.source == "files":
        return common | {"files": files.fingerprints(cfg)}
    wheels = {wheel.project: wheel.sha256 for wheel in package.WHEELS}
    return common | {"wheels": wheels, "valid_size": cfg.valid_size, "test_size": cfg.test_size, "seed": cfg.seed}


def build(cfg: DataConfig, out: Path, cache: Path) -> dict[str, Any]:
    """Make the corpus in ``out`` and return its report, which is also ``out/report.json``, written last.

    ``{train,valid,test}.<lang>`` are raw lines, ``{train,valid,test}.pieces.<lang>`` the same lines cut by
    ``pieces.model`` (learned from the training set alone). ``cache`` is the folder that keeps what was fetched.
    Raises UserError for bad input and RunError where the package's wheels cannot be fetched.
    """
    _check(cfg)
    langs = (cfg.source_lang, cfg.target_lang)
    if cfg.source == "files":
        sets, empty = files.read(cfg)
        read = {name: len(pairs) + (empty if name == "train" else 0) for name, pairs in sets.items()}
        dropped = {"empty line in train": empty}
    else:
        sets, read, dropped = _from_package(cfg, cache)

    for name, pairs in sets.items():
        for side, lang in enumerate(langs):
            atomic_write(out / f"{name}.{lang}", _text(pair[side] for pair in pairs))
    size = learn((pair[side] for side in (0, 1) for pair in sets["train"]), cfg.pieces, out)
    cut = Pieces(out / "pieces.model")
    cut_length = 0
    for name, pairs in sets.items():
        for side, lang in enumerate(langs):
            lines = cut.encode(pair[side] for pair in pairs)
            atomic_write(out / f"{name}.pieces.{lang}", _text(lines))
            if name == "train":
                cut_length += sum(len(line.split()) for line in lines)

    words = {
        name: {lang: sum(len(pair[side].split()) for pair in pairs) for side, lang in enumerate(langs)}
        for name, pairs in sets.items()
    }
    notices = []
    if size < cfg.pieces:
        notices.append(f"data.pieces={cfg.pieces}: the training text is too small for that, {size} pieces were learned")
    samples = random.Random(cfg.seed).sample(sets["train"], min(SAMPLES, len(sets["train"])))
    report: dict[str, Any] = {
        "name": cfg.name,
        "source": cfg.source,
        "source_lang": cfg.source_lang,
        "target_lang": cfg.target_lang,
        "identity": identity(cfg),
        "read": read,
        "dropped": dropped,
        "sets": {name: {"pairs": len(pairs), "words": words[name]} for name, pairs in sets.items()},
        "near_duplicates": near_duplicates([s for s, _ in sets["test"]], [s for s, _ in sets["train"]]),
        "pieces": {
            "requested": cfg.pieces,
            "size": size,
            "per_word": cut_length / sum(words["train"].values()),
        },
        "notices": notices,
        "samples": [list(pair) for pair in samples],
        "licence": OWN_LICENCE if cfg.source == "files" else package.LICENCE,
    }
    write_json(out / "report.json", report)
    return report


def _from_package(cfg: DataConfig, cache: Path) -> tuple[dict[str, list[Pair]], dict[str, int], dict[str, int]]:
    aligned, counts = package.read_pairs(cfg.source_lang, cfg.target_lang, cache)
    counted = 1 if cfg.target_lang == "en" else 0
    cleaned, dropped = clean(aligned, counted)
    sets, shared = split(cleaned, cfg.valid_size, cfg.test_size, cfg.seed, counted)
    read = {f"{lang} texts": count for lang, count in counts.items()} | {"texts in both": len(aligned)}
    return sets, read, dropped | {"shares a sentence with valid or test": shared}


def _check(cfg: DataConfig) -> None:
    problems = []
    if cfg.source not in ("package", "files"):
        problems.append(f"data.source={cfg.source}: unknown; use package or files")
    if cfg.source_lang == cfg.target_lang:
        problems.append(f"data.source_lang and data.target_lang are both {cfg.source_lang}; they have to differ")
    if problems:
        raise UserError(*problems)


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
