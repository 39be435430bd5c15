"""What ``headlab data`` says about a corpus."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rapidfuzz import fuzz, process
from rich.console import Console
from rich.markup import escape
from rich.table import Table

SIMILARITY = 0.9
_COMPARISONS = 100_000_000  # of sentences with each other; about five seconds on one core
_MATRIX = 10_000_000  # similarities in memory at a time: 40 MB


def near_duplicates(test: list[str], train: list[str]) -> dict[str, float | int]:
    """``{"similarity", "of", "found", "share"}``: how many test sources have a training source that is nearly the same.

    Similarity is 2·LCS / (length + length) in characters regardless of case (LCS: the longest common subsequence),
    rapidfuzz's ratio. With a large training set only evenly spaced test sources are looked up: ``of`` says how many.
    """
    known = list(dict.fromkeys(line.casefold() for line in train))
    step = max(1, math.ceil(len(test) * len(known) / _COMPARISONS))
    asked = [line.casefold() for line in test[::step]]
    rows = max(1, _MATRIX // len(known))
    found = 0
    for start in range(0, len(asked), rows):
        ratios = process.cdist(
            asked[start : start + rows], known, scorer=fuzz.ratio, score_cutoff=100 * SIMILARITY, dtype=np.float32
        )
        found += int((ratios.max(axis=1) > 0).sum())  # below the cutoff rapidfuzz answers 0
    return {"similarity": SIMILARITY, "of": len(asked), "found": found, "share": found / len(asked)}


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report of a corpus: what was read, what was dropped and why, the sets, 5 pairs, the licence."""
    source, target = report["source_lang"], report["target_lang"]
    table = Table(
        title=escape(f"{report['name']}: {source} → {target}, source={report['source']}"), title_justify="left"
    )
    table.add_column("")
    table.add_column("pairs", justify="right")
    table.add_column(f"{source} words", justify="right")
    table.add_column(f"{target} words", justify="right")
    for label, count in report["read"].items():
        table.add_row(escape(label), f"{count:,}")
    table.add_section()
    for reason, count in report["dropped"].items():
        table.add_row(f"dropped: {reason}", f"{count:,}")
    table.add_section()
    for name, numbers in report["sets"].items():
        means = [f"{numbers['words'][lang] / numbers['pairs']:.1f} each" for lang in (source, target)]
        table.add_row(name, f"{numbers['pairs']:,}", *means)
    console.print(table)
    near = report["near_duplicates"]
    console.print(
        f"Near-duplicates: {near['share']:.1%} of {near['of']:,} test sources have a training source at character "
        f"similarity ≥ {near['similarity']}."
    )
    pieces = report["pieces"]
    console.print(f"SentencePiece: {pieces['size']:,} pieces, {pieces['per_word']:.2f} per word of the training text.")
    for notice in report["notices"]:
        console.print(f"[yellow]{escape(notice)}[/yellow]")
    samples = Table(title="5 training pairs" if len(report["samples"]) == 5 else "training pairs", title_justify="left")
    samples.add_column(source)
    samples.add_column(target)
    for pair in report["samples"]:
        samples.add_row(*(escape(text) for text in pair))
    console.print(samples)
    console.print(f"Licence: {escape(report['licence'])}")
