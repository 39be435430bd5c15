"""heads.csv: the group, the votes and the likeness of every head of models whose heads voted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from headlab.attention.heads import KINDS, Head, Layout
from headlab.report.rows import ModelKey, Row
from headlab.report.store import Table, natural


@dataclass
class HeadKey(ModelKey):
    """What tells the heads of measured models apart."""

    kind: str
    layer: int
    head: int


#: The columns of a head's key, in order.
HEAD_KEY = tuple(field.name for field in fields(HeadKey))


@dataclass
class HeadRow(HeadKey):
    """One head in one vote.

    The vote is that of the model of this key, for ``target`` heads; ``method=none`` is the base, whose heads voted
    for comparison and stayed all.
    """

    group: int  # over the whole epoch of votes
    votes: int  # batches in which it was nearest to the centre of a group
    stays: int  # 1 or 0
    cosines: str = ""  # with every head of the layer, space-separated


def head_order(line: Mapping[str, str]) -> tuple[int, int, int]:
    """Where the head of a line stands in tables: kind, layer, head."""
    return KINDS.index(line["kind"]), int(line["layer"]), int(line["head"])


def _order(line: Mapping[str, str]) -> tuple[object, ...]:
    named = line["method"] != "none", line["method"], natural(line["variant"]), line["scope"]
    return line["experiment"], *named, natural(line["target"]), natural(line["seed"]), head_order(line)


_HEADS = Table(
    file="heads.csv",
    record=HeadRow,
    key=HEAD_KEY,
    sort=_order,
    mend="delete it and run the experiment again",
)


def heads_of(row: Row, target: int, votes: Mapping[str, Any]) -> list[HeadRow]:
    """What the ``votes.json`` of a run says about the heads of the model of ``row``."""
    layout = Layout.parse(votes["layout"], heads=10**6) if "layout" in votes else None
    kept = None if layout is None else set(layout)
    return [
        HeadRow(
            row.experiment, row.method, row.variant, row.scope, target, row.seed, layer["kind"], layer["layer"], index,
            group=layer["groups"][place],
            votes=sum(votes[place] for votes in layer["votes"]),
            stays=int(kept is None or Head(layer["kind"], layer["layer"], index) in kept),
            cosines=" ".join(f"{value:.4f}" for value in layer["cosines"][place]),
        )
        for layer in votes["layers"]
        for place, index in enumerate(layer["heads"])
    ]  # fmt: skip


def write_heads(folder: Path, rows: Sequence[HeadRow]) -> None:
    """Put ``rows`` into ``folder``/heads.csv, each in the place of the one of equal key."""
    _HEADS.write(folder, rows)


def read_heads(folder: Path) -> pd.DataFrame | None:
    """heads.csv with its types, or None where no heads voted."""
    return _HEADS.read(folder) if (folder / _HEADS.file).exists() else None


def polls(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every vote of heads.csv, with what to call it."""
    several = frame["seed"].nunique() > 1
    scopes = frame["scope"].nunique() > 1
    for key, rows in frame.groupby(["method", "variant", "scope", "target", "seed"], sort=False):
        method, variant, scope, target, seed = key
        name = str(variant) if method == "none" else f"{method}, {variant}" if variant else str(method)
        within = f" ({scope})" if scopes else ""
        yield f"{name}{within}, vote for {target}" + (f", seed {seed}" if several else ""), rows


def layers(rows: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Kind, layer and heads of every attention layer of one vote, in table order."""
    for kind in KINDS:
        for layer, heads in rows[rows["kind"] == kind].groupby("layer"):
            yield kind, int(layer), heads  # type: ignore[arg-type] # pandas' groups may be named by anything


def _alike(rows: pd.DataFrame) -> dict[str, float | None]:
    """Mean cosine of two heads of a layer within groups and between them; None where there are no such pairs."""
    found: dict[str, list[float]] = {"within groups": [], "between groups": []}
    for _, _, heads in layers(rows):
        alike = [[float(value) for value in row.split()] for row in heads["cosines"]]
        for (i, one), (j, other) in combinations(enumerate(heads["group"]), 2):
            found["within groups" if one == other else "between groups"].append(alike[i][j])
    return {place: mean(values) if values else None for place, values in found.items()}


def votes_text(frame: pd.DataFrame, experiment: str) -> Iterable[str]:
    """Lines of Markdown: per vote and layer the groups with the votes of their heads; those that stay are bold.

    Beside the name of a vote: the mean cosine of two heads of one group and of two groups, over all layers.
    """
    for name, rows in polls(frame[frame["experiment"] == experiment]):
        told = [f"{place} {value:.2f}" for place, value in _alike(rows).items() if value is not None]
        yield f"- {name}" + (f" (mean cosine {', '.join(told)})" if told else "")
        for kind, layer, heads in layers(rows):
            groups = [
                " ".join(
                    f"**{head}**:{votes}" if stays else f"{head}:{votes}"
                    for head, votes, stays in zip(members["head"], members["votes"], members["stays"], strict=True)
                )
                for _, members in heads.groupby("group")
            ]
            yield f"  - {kind}.{layer}: {' | '.join(groups)}"
