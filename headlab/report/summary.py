"""Rows gathered over seeds: what a line of a table and a point of a figure stand for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from headlab.attention.heads import KINDS, Layout
from headlab.errors import UserError
from headlab.report.resamples import Key, Sampled, key_of, read_resamples
from headlab.report.rows import read_ablated, read_rows
from headlab.report.store import natural
from headlab.scoring.seeds import holm, over_seeds

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
    ablated_delta: float | None = None  # BLEU minus the mean over seeds of the model that this is an ablation of
    ablated_sd: float | None = None  # of the seeds of that

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
    def series(self) -> str:
        """What it is in a figure: models that differ in the value of a setting alone are one series."""
        return self.name.partition("=")[0]

    @property
    def resolved(self) -> str:
        """Whether the difference from the control is as large as two standard deviations of the seeds'."""
        return _resolved(self.delta, self.delta_sd)

    @property
    def ablation(self) -> str:
        """The same of the difference from the model that this is an ablation of."""
        return _resolved(self.ablated_delta, self.ablated_sd)

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


def _resolved(delta: float | None, sd: float | None) -> str:
    if delta is None or sd is None:
        return ""
    return "resolved" if abs(delta) >= 2 * sd else "not resolved"


def read_models(folder: Path) -> list[Model]:
    """The models of rows.csv in table order: base, methods (random last), scratch, lite, controls; most heads first.

    Where several scopes were pruned, the models of each stand together.
    Over several seeds the interval comes from resamples.csv, which must have all of them and their controls; without
    it there is none. Their p-values are adjusted for all models of the experiment that have several seeds, those
    that were fine-tuned and those that were not apart.
    Raises UserError when a file is missing, empty or damaged.
    """
    rows = read_rows(folder)
    sampled = read_resamples(folder)
    ablated = read_ablated(folder)
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
                **_differences(seeds, sampled),
                **_from_ablated(seeds, ablated),
            )
        )
    scopes = {model.scope for model in models if model.role == "pruned"}
    return sorted(_adjusted(models), key=lambda model: _order(model, apart=len(scopes) > 1))


def _adjusted(models: list[Model]) -> list[Model]:
    """The models with Holm's p-values where there are several seeds.

    Each experiment is for itself, and in it the models that were not fine-tuned: they are compared with the base.
    """
    adjusted = list(models)
    for family in {(model.experiment, model.untuned) for model in models}:
        together = {
            place: model.p_value
            for place, model in enumerate(models)
            if (model.experiment, model.untuned) == family and model.seeds > 1 and model.p_value is not None
        }
        for place, p_value in zip(together, holm(list(together.values())), strict=True):
            adjusted[place] = replace(models[place], p_value=p_value)
    return adjusted


def _order(model: Model, apart: bool) -> tuple[object, ...]:
    role = ("base", "pruned", "scratch", "lite", "control").index(model.role)
    heads = model.target if model.target is not None else model.mean("heads_kept") or 0
    scope = len(model.scope), model.scope
    first = (model.experiment, scope) if apart else (model.experiment,)
    return *first, role, model.method == "random", model.method, natural(model.variant), scope, -heads


def _differences(seeds: pd.DataFrame, sampled: Mapping[Key, Sampled]) -> dict[str, float | None]:
    """delta, low, high, p_value and delta_sd of the rows of one model."""
    names = {"delta": "delta_bleu", "low": "delta_low", "high": "delta_high", "p_value": "p_value"}
    if len(seeds) == 1:
        row = seeds.iloc[0]
        return {"delta_sd": None, **{name: _number(row[column]) for name, column in names.items()}}
    deltas = seeds["delta_bleu"]
    mean: dict[str, float | None] = {"delta": _number(deltas.mean()), "delta_sd": _number(deltas.std(ddof=1))}
    resampled = [_resampled(row, sampled) for row in seeds.to_dict("records")]
    known = [found for found in resampled if found is not None]
    if len(known) < len(seeds) or len({draws for draws, _ in known}) > 1:
        return {**mean, **dict.fromkeys(("low", "high", "p_value"))}
    joint = over_seeds(list(deltas), [values for _, values in known])
    return {**mean, "low": joint.low, "high": joint.high, "p_value": joint.p_value}


def _resampled(row: Mapping[Hashable, Any], sampled: Mapping[Key, Sampled]) -> tuple[str, NDArray[np.float64]] | None:
    """What is drawn, and the row's difference from what it is compared with on every draw; None where a file lacks it.

    Numbers of an earlier measurement of the row do not count.
    """
    own = sampled.get(key_of(row))
    control = sampled.get(key_of({**row, "method": "none", "variant": row["reference"], "target": None}))
    if own is None or control is None or own.draws != control.draws:
        return None
    recorded = own.bleu == row["bleu"] and abs(own.bleu - control.bleu - row["delta_bleu"]) < 1e-6
    return (own.draws, own.resampled - control.resampled) if recorded else None


def _from_ablated(seeds: pd.DataFrame, ablated: pd.DataFrame | None) -> dict[str, float | None]:
    """ablated_delta and ablated_sd of the rows of one model: from the row of the whole method.

    That is the one of the same method, scope and target whose variant is what the ablation's begins with, and longest.
    """
    if ablated is None or seeds["method"].iloc[0] == "none":
        return {}
    found = ablated.merge(seeds[["method", "scope", "target"]].head(1), on=["method", "scope", "target"])
    variant = seeds["variant"].iloc[0]
    names = [name for name in found["variant"].unique() if name != variant]
    begun = [name for name in names if not name or variant.startswith(f"{name}-")]
    if not begun:
        return {}
    whole = found[found["variant"] == max(begun, key=len)]["bleu"]
    return {"ablated_delta": _number(seeds["bleu"].mean() - whole.mean()), "ablated_sd": _number(whole.std(ddof=1))}


def _paper_delta(seeds: pd.DataFrame, experiment: pd.DataFrame) -> float | None:
    unpruned = experiment[(experiment["method"] == "none") & (experiment["variant"] == "base")]["paper_bleu"].dropna()
    here = seeds["paper_bleu"].dropna()
    if unpruned.empty or here.empty or seeds["variant"].iloc[0] == "base":
        return None
    return float(here.iloc[0] - unpruned.iloc[0])


def signed(value: float) -> str:
    """A difference as a person reads it."""
    return f"{value:+.2f}".replace("-", "−").replace("−0.00", "0.00").replace("+0.00", "0.00")


def _number(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload,arg-type]
