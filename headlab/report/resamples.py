"""resamples.csv: BLEU of every measured model on common resamples of the test set, for differences over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from headlab.errors import UserError
from headlab.report.rows import KEY, ModelKey, order
from headlab.report.store import Table

#: What tells rows apart; a target that is missing is None.
Key = tuple[str, str, str, str, int | None, int]


@dataclass
class Resamples(ModelKey):
    """What rows.csv does not have of a model.

    The k-th resample is the same sentences for all models of equal ``draws``, whatever their seed: differences of
    two models, and means of them over seeds, can be resampled from these numbers alone.
    """

    draws: str  # which resamples, of which references
    bleu: float  # as in rows.csv
    resampled: str  # BLEU on every resample, space-separated


@dataclass(frozen=True)
class Sampled:
    """BLEU of a model, and on every resample, [samples]."""

    draws: str
    bleu: float
    resampled: NDArray[np.float64]


_RESAMPLES = Table(
    file="resamples.csv",
    record=Resamples,
    key=KEY,
    sort=order,
    mend="delete it and run the experiment again",
)


def write_resamples(folder: Path, records: Sequence[Resamples]) -> None:
    """Put ``records`` into ``folder``/resamples.csv, each in the place of the one of equal key."""
    _RESAMPLES.write(folder, records)


def read_resamples(folder: Path) -> dict[Key, Sampled]:
    """resamples.csv by the key of the row; empty where there is no such file.

    Raises UserError, one line, when it is damaged.
    """
    if not (folder / _RESAMPLES.file).exists():
        return {}
    found = {}
    for number, row in enumerate(_RESAMPLES.read(folder).to_dict("records"), start=2):
        try:
            values = np.array(row["resampled"].split(), dtype=np.float64)
        except ValueError:
            text = f"row {number}: resampled has something else than numbers"
            raise UserError(f"{folder / _RESAMPLES.file}: {text}: {_RESAMPLES.mend}") from None
        found[key_of(row)] = Sampled(row["draws"], row["bleu"], values)
    return found


def resampled_keys(folder: Path) -> set[tuple[str, ...]]:
    """The keys of resamples.csv as they are written; none where there is no such file."""
    return _RESAMPLES.keys(folder)


def key_of(row: Mapping[Any, Any]) -> Key:
    """The key of a row of rows.csv or resamples.csv."""
    target = None if pd.isna(row["target"]) else int(row["target"])
    return row["experiment"], row["method"], row["variant"], row["scope"], target, int(row["seed"])
