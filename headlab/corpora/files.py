"""``data.source=files``: the user's own aligned text, plain or .gz, taken as it is split."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from headlab.config import DataConfig
from headlab.corpora.clean import Pair
from headlab.errors import UserError
from headlab.runs import sha256_of

SPLITS = ("train", "valid", "test")


def locate(cfg: DataConfig) -> dict[str, dict[str, Path]]:
    """``{split: {lang: path}}``: ``data.files.train=corpus/train`` is ``corpus/train.<lang>`` or ``….<lang>.gz``.

    Raises UserError with every key that is not set and every file that is not there.
    """
    found: dict[str, dict[str, Path]] = {}
    problems = []
    for split in SPLITS:
        prefix = getattr(cfg.files, split)
        if not prefix:
            problems.append(
                f"data.files.{split} is not set; give the path of your {split} text without its language, "
                f"e.g. data.files.{split}=corpus/{split} for corpus/{split}.{cfg.source_lang}"
            )
            continue
        found[split] = {}
        for lang in (cfg.source_lang, cfg.target_lang):
            plain = Path(f"{prefix}.{lang}").expanduser()
            packed = plain.with_name(plain.name + ".gz")
            path = next((path for path in (plain, packed) if path.is_file()), None)
            if path is None:
                problems.append(f"{plain}: no such file, nor {packed.name} (data.files.{split}={prefix})")
            else:
                found[split][lang] = path
    if problems:
        raise UserError(*problems)
    return found


def fingerprints(cfg: DataConfig) -> dict[str, str]:
    """``{"train.en": sha256, ...}`` of the files, whatever their names and folders."""
    return {f"{split}.{lang}": sha256_of(path) for split, paths in locate(cfg).items() for lang, path in paths.items()}


def read(cfg: DataConfig) -> tuple[dict[str, list[Pair]], int]:
    """The pairs of each split, every run of white space one space, and how many empty training pairs were dropped.

    A training pair with an empty side is dropped; in valid and test an empty line is an error, since dropping it would
    change the set that others measure on, and a model has nothing to say about it.
    Raises UserError with every problem of every file, each on one line that names file and line.
    """
    problems: list[str] = []
    sets: dict[str, list[Pair]] = {}
    dropped = 0
    for split, paths in locate(cfg).items():
        texts = [(path, _lines(path, problems)) for path in (paths[cfg.source_lang], paths[cfg.target_lang])]
        (source_path, source), (target_path, target) = texts
        if source is None or target is None:
            continue
        if len(source) != len(target):
            first = min(len(source), len(target))
            short, long = sorted(texts, key=lambda text: len(text[1] or ()))
            problems.append(
                f"{long[0]}: line {first + 1} has no counterpart: {source_path} has {len(source)} lines, "
                f"{target_path} has {len(target)}; {short[0].name} ends at line {first}, make both equally long"
            )
            continue
        pairs = list(zip(source, target, strict=True))
        full = [pair for pair in pairs if all(pair)]
        if split == "train":
            dropped = len(pairs) - len(full)
        elif full:
            problems += [problem for path, lines in texts if (problem := _empty_line(path, lines or []))]
        if not full:
            problems.append(f"{source_path}: no pair of the {split} set has text on both sides")
        sets[split] = full
    if problems:
        raise UserError(*problems)
    return sets, dropped


def _lines(path: Path, problems: list[str]) -> list[str] | None:
    """The lines of a file, white space normalised; None where it is empty or no UTF-8, which ``problems`` is told."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problems.append(f"{path}: not a complete gzip file ({error}); pack it again")
        return None
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
        return None
    if not data.strip():
        problems.append(f"{path}: the file is empty")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(
            f"{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x}); convert the file, e.g. with iconv"
        )
        return None
    lines = text.split("\n")  # not splitlines(), which also splits at form feeds and U+2028
    if not lines[-1]:
        lines.pop()
    return [" ".join(line.split()) for line in lines]


def _empty_line(path: Path, lines: list[str]) -> str | None:
    empty = [number for number, line in enumerate(lines, 1) if not line]
    if not empty:
        return None
    more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
    return f"{path}: line {empty[0]}{more} is empty; take the pair out of both files"
