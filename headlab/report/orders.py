"""head_scores.csv: what every method says about every head; orderings.csv: how far two of them agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pandas as pd

from headlab.attention.heads import Head
from headlab.report.heads import HEAD_KEY, HeadKey, head_order
from headlab.report.rows import Row
from headlab.report.store import Table, natural


@dataclass
class HeadScore(HeadKey):
    """The score of one head; the larger, the more worth keeping.

    ``target`` is empty for methods that train nothing: they have one order for all targets. ``passes`` is how often
    the valid set was looked at for it.
    """

    score: float
    passes: int = 0


@dataclass
class Agreement:
    """Spearman's rank correlation of the scores of two methods over the heads of one base. All but the last is the key.

    Empty where one of them gives all heads the same score.
    """

    experiment: str
    scope: str
    seed: int
    first: str
    second: str
    heads: int
    spearman: float | None


def _score_order(line: Mapping[str, str]) -> tuple[object, ...]:
    target = -int(line["target"]) if line["target"] else -(10**9)
    named = line["experiment"], line["scope"], natural(line["seed"]), line["method"], natural(line["variant"])
    return *named, target, head_order(line)


_SCORES = Table(
    file="head_scores.csv",
    record=HeadScore,
    key=HEAD_KEY,
    sort=_score_order,
    mend="delete it and run the experiment again",
)
_AGREEMENTS = Table(
    file="orderings.csv",
    record=Agreement,
    key=("experiment", "scope", "seed", "first", "second"),
    sort=lambda line: (line["experiment"], line["scope"], natural(line["seed"]), line["first"], line["second"]),
    mend="delete it and make the report again",
)


def head_scores(row: Row, scores: Mapping[str, float], passes: int, trained: bool) -> list[HeadScore]:
    """The ``scores`` by name of head that the pruned model of ``row`` was cut by."""
    target = row.target if trained else None
    heads = [(Head.parse(name), float(score)) for name, score in scores.items()]
    return [
        HeadScore(
            row.experiment, row.method, row.variant, row.scope, target, row.seed,
            head.kind, head.layer, head.index, score, passes,
        )
        for head, score in heads
    ]  # fmt: skip


def write_scores(folder: Path, scores: Sequence[HeadScore]) -> None:
    """Put ``scores`` into ``folder``/head_scores.csv, each in the place of the one of equal key."""
    _SCORES.write(folder, scores)


def read_scores(folder: Path) -> pd.DataFrame | None:
    """head_scores.csv with its types and a column ``name`` for its ordering, or None where there is none."""
    if not (folder / _SCORES.file).exists():
        return None
    frame = _SCORES.read(folder)
    names = frame["method"].where(frame["variant"] == "", frame["method"] + ", " + frame["variant"])
    targets = frame["target"].map(lambda target: "" if pd.isna(target) else f" ({target})")
    return frame.assign(name=names + targets)


def scored_keys(folder: Path) -> set[tuple[str, ...]]:
    """Experiment, method, variant, scope and seed of all orderings of head_scores.csv; none where there is no file."""
    return {(*key[:4], key[5]) for key in _SCORES.keys(folder)}


def write_agreements(folder: Path) -> Path | None:
    """Make orderings.csv from head_scores.csv; None where fewer than two methods scored the heads of one base."""
    frame = read_scores(folder)
    found = [] if frame is None else list(_agreements(frame))
    if not found:
        return None
    path = folder / _AGREEMENTS.file
    path.unlink(missing_ok=True)  # it has nothing that head_scores.csv does not say
    _AGREEMENTS.write(folder, found)
    return path


def _agreements(frame: pd.DataFrame) -> Iterator[Agreement]:
    for key, rows in frame.groupby(["experiment", "scope", "seed"], sort=False):
        experiment, scope, seed = map(str, key)
        ranks = by_head(rows).rank()
        for first, second in combinations(ranks.columns, 2):
            both = ranks[[first, second]].dropna()
            value = both[first].corr(both[second]) if len(both) == len(ranks) else None
            yield Agreement(experiment, scope, int(seed), first, second, len(both), value)


def by_head(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores of one base, a line per head and a column per ordering, both in the order of the file."""
    wide = rows.pivot_table(index=["kind", "layer", "head"], columns="name", values="score", sort=False)
    return wide[list(dict.fromkeys(rows["name"]))]


def correlations(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Per experiment and scope what to call it and the matrix of rank correlations, a mean over seeds."""
    for (experiment, scope), rows in frame.groupby(["experiment", "scope"], sort=False):
        seeds = [by_head(one).rank().corr() for _, one in rows.groupby("seed")]
        mean = pd.concat(seeds).groupby(level=0, sort=False).mean()
        mean = mean[list(mean.index)]
        if len(mean) > 1:
            yield f"{experiment} ({scope})", mean


def passes_text(frame: pd.DataFrame) -> str:
    """One sentence: how often each method looked at the valid set; empty where none did."""
    looked = frame[frame["passes"] > 0].groupby("name", sort=False)["passes"].max()
    told = ", ".join(f"{name} {count}" for name, count in looked.items())
    return f"Passes over the valid set to score heads: {told}." if told else ""
