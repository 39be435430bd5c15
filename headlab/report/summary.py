"""Rows gathered over seeds: what a line of a table and a point of a figure stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from headlab.attention.heads import KINDS, Layout
from headlab.errors import UserError
from headlab.report.rows import read_intervals, read_rows
from headlab.report.store import natural

#: The difference in BLEU that verdicts speak of.
MARGIN = 0.5

_GROUP = ["experiment", "method", "variant", "scope", "target"]


@dataclass(frozen=True)
class Model:
    """One kind of model over all its seeds: numbers are means over them (never the best of them)."""

    experiment: str
    method: str
    variant: str
    scope: tuple[str, ...]
    target: int | None
    rows: pd.DataFrame  # one per seed
    delta: float | None  # BLEU minus the control's
    low: float | None  # 95 % interval of delta
    high: float | None
    p_value: float | None  # Holm-adjusted where there are several seeds
    delta_sd: float | None  # over seeds
    paper_delta: float | None  # the paper's BLEU at this count minus the paper's BLEU unpruned

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.rows)

    @property
    def role(self) -> str:
        """``base``, ``scratch``, ``lite``, ``control`` or ``pruned``."""
        return self.variant.partition("-")[0].rstrip("12") if self.method == "none" else "pruned"

    @property
    def whole(self) -> bool:
        """Whether it was trained for a method and has all its heads still."""
        return self.target is None and bool((self.rows["heads_kept"] == self.rows["heads_total"]).all())

    @property
    def untuned(self) -> bool:
        """Whether it was pruned and not fine-tuned."""
        return self.role == "pruned" and "untuned" in self.variant.split("-")

    @property
    def against_control(self) -> bool:
        """Whether its difference is from a control of equal updates."""
        return self.delta is not None and not self.untuned

    @property
    def name(self) -> str:
        """What tables and legends call it."""
        if self.method != "none":
            return f"{self.method}, {self.variant}" if self.variant else self.method
        return f"control, {self.variant[9:]} updates" if self.variant.startswith("control-u") else self.variant

    @property
    def verdict(self) -> str:
        """Whether the model is within 0.5 BLEU of its control, as far as the interval can tell."""
        if self.low is None or self.high is None:
            return ""
        if self.low > -MARGIN:
            return f"within {MARGIN}"
        return "worse" if self.high < -MARGIN else "undecided"

    def mean(self, column: str) -> float | None:
        """Mean of a column over the seeds, None where it is empty."""
        value = self.rows[column].astype("float64").mean()
        return None if pd.isna(value) else float(value)

    def sd(self, column: str) -> float | None:
        """Standard deviation of a column over the seeds, None for fewer than two."""
        value = self.rows[column].astype("float64").std(ddof=1)
        return None if pd.isna(value) else float(value)

    def layouts(self, folder: Path) -> dict[int, Layout]:
        """The layout of every seed that has one; the heads that a layer once had are those of its largest index.

        Raises UserError, naming the file, when one cannot be read.
        """
        layouts = {}
        for seed, text in zip(self.rows["seed"], self.rows["layout"], strict=True):
            if text:
                try:
                    layouts[int(seed)] = Layout.parse(text, heads=10**6)
                except ValueError as error:
                    raise UserError(
                        f"{folder / 'rows.csv'}: layout of {self.name}, seed {seed}: {error}: run the experiment again"
                    ) from error
        return layouts


def read_models(folder: Path) -> list[Model]:
    """The models of rows.csv in table order: base, methods (random last), scratch, lite, controls; most heads first.

    Over several seeds the interval comes from intervals.csv, which must be of as many seeds; without it there is none.
    Raises UserError when a file is missing, empty or damaged.
    """
    rows = read_rows(folder)
    intervals = read_intervals(folder)
    models = []
    for _, seeds in rows.groupby(_GROUP, sort=False, dropna=False):
        first = seeds.iloc[0]
        models.append(
            Model(
                experiment=first["experiment"],
                method=first["method"],
                variant=first["variant"],
                scope=tuple(kind for kind in KINDS if kind in first["scope"]),
                target=None if pd.isna(first["target"]) else int(first["target"]),
                rows=seeds.reset_index(drop=True),
                paper_delta=_paper_delta(seeds, rows[rows["experiment"] == first["experiment"]]),
                **_differences(seeds, intervals),
            )
        )
    return sorted(models, key=_order)


def _order(model: Model) -> tuple[object, ...]:
    role = ("base", "pruned", "scratch", "lite", "control").index(model.role)
    heads = model.target if model.target is not None else model.mean("heads_kept") or 0
    return model.experiment, role, model.method == "random", model.method, natural(model.variant), model.scope, -heads


def _differences(seeds: pd.DataFrame, intervals: pd.DataFrame | None) -> dict[str, float | None]:
    """delta, low, high, p_value and delta_sd of the rows of one model."""
    names = {"delta": "delta_bleu", "low": "delta_low", "high": "delta_high", "p_value": "p_value"}
    if len(seeds) == 1:
        row = seeds.iloc[0]
        return {"delta_sd": None, **{name: _number(row[column]) for name, column in names.items()}}
    if intervals is not None:
        key = ["method", "variant", "scope", "target"]  # merge takes two missing targets for equal
        same = intervals[intervals["n"] == len(seeds)].merge(seeds[key].head(1), on=key)
        if len(same):
            found = same.iloc[0]
            columns = {
                "delta": "delta",
                "low": "delta_low",
                "high": "delta_high",
                "p_value": "p_holm",
                "delta_sd": "sd",
            }
            return {name: _number(found[column]) for name, column in columns.items()}
    nothing = dict.fromkeys(("low", "high", "p_value"))
    deltas = seeds["delta_bleu"]
    return {**nothing, "delta": _number(deltas.mean()), "delta_sd": _number(deltas.std(ddof=1))}


def _paper_delta(seeds: pd.DataFrame, experiment: pd.DataFrame) -> float | None:
    unpruned = experiment[(experiment["method"] == "none") & (experiment["variant"] == "base")]["paper_bleu"].dropna()
    here = seeds["paper_bleu"].dropna()
    if unpruned.empty or here.empty or seeds["variant"].iloc[0] == "base":
        return None
    return float(here.iloc[0] - unpruned.iloc[0])


def _number(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload,arg-type]
