"""rows.csv: one row for every model that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pandas as pd

from headlab.report.store import Table, natural
from headlab.runs import atomic_write


@dataclass
class ModelKey:
    """What tells measured models apart; a record in every file that speaks of models begins with it."""

    experiment: str
    method: str
    variant: str
    scope: str  # kinds, space-separated
    target: int | None
    seed: int


#: The columns of a model's key, in order.
KEY = tuple(field.name for field in fields(ModelKey))


@dataclass
class Row(ModelKey):
    """One measured model. What was not measured is None or empty.

    ``method=none`` are models that were not pruned: ``variant`` base, ``control-u<updates>``, scratch (which
    has a pruned layout from the start), lite1 or lite2 (which are small from the start). A ``variant`` that ends
    in untuned was pruned and not fine-tuned, and is compared with the base.
    """

    heads_total: int | None = None  # within the scope, before pruning
    heads_kept: int | None = None  # within the scope
    kept_enc_self: int | None = None
    kept_dec_self: int | None = None
    kept_enc_dec: int | None = None
    layout: str = ""  # str(Layout)
    bleu: float | None = None  # 0 to 100, on test
    bleu_signature: str = ""
    chrf: float | None = None
    chrf_signature: str = ""
    valid_bleu: float | None = None
    reference: str = ""  # what the model is compared with: the control of equal updates
    delta_bleu: float | None = None
    delta_low: float | None = None  # 95 % interval of delta_bleu
    delta_high: float | None = None
    p_value: float | None = None
    loss: float | None = None  # valid, nats per token
    metric: str = ""  # another metric's name (ROUGE, perplexity) ...
    metric_value: float | None = None  # ... and its value
    params: int | None = None
    params_no_embeddings: int | None = None
    flops: int | None = None  # multiply-accumulates of one forward, 30 + 30 tokens
    sentences_per_s: float | None = None
    speedup: float | None = None  # over the base, measured in turn with it
    updates_base: int | None = None
    updates_selection: int | None = None
    updates_finetune: int | None = None
    train_seconds: float | None = None
    precision: str = ""
    threads: int | None = None
    run: str = ""  # the run directory
    paper_bleu: float | None = None  # the paper's BLEU at the same count of heads; of the base: unpruned
    paper_metric: float | None = None  # the paper's value of ``metric``


def order(line: Mapping[str, str]) -> tuple[object, ...]:
    """Models that were not pruned first, then by method; many heads before few."""
    target = -int(line["target"]) if line["target"].isdigit() else -(10**9)
    named = line["method"] != "none", line["method"], natural(line["variant"]), line["scope"]
    return line["experiment"], *named, target, natural(line["seed"])


_ROWS = Table(
    file="rows.csv",
    record=Row,
    key=KEY,
    sort=order,
    mend="run the experiment to measure its models again",
)

_ABLATED = replace(_ROWS, file="ablated.csv")

#: The columns of rows.csv, in order.
COLUMNS = _ROWS.columns


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Put ``rows`` into ``folder``/rows.csv: each replaces the row of equal key and no other.

    Several processes may do so at once. Raises UserError when the file that is there is damaged.
    """
    _ROWS.write(folder, rows)


def read_rows(folder: Path) -> pd.DataFrame:
    """rows.csv with its types: str (empty where there is none), Int64, float64.

    Raises UserError, one line, when the file is missing, empty or damaged.
    """
    return _ROWS.read(folder)


def row_keys(folder: Path) -> set[tuple[str, ...]]:
    """The keys of rows.csv as they are written; none where there is no such file."""
    return _ROWS.keys(folder)


def copy_ablated(whole: Path, folder: Path) -> None:
    """Put the rows of the results ``whole`` beside those of its ablations in ``folder``, as ablated.csv.

    Raises UserError, one line, when there are none.
    """
    read_rows(whole)  # which says what is wrong with it
    atomic_write(folder / _ABLATED.file, (whole / _ROWS.file).read_bytes())


def read_ablated(folder: Path) -> pd.DataFrame | None:
    """ablated.csv with its types, or None where the rows of ``folder`` are no ablations."""
    return _ABLATED.read(folder) if (folder / _ABLATED.file).exists() else None
