"""Rows whose subject is a whole experiment: read from the manifests of a finished folder of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlab.errors import UserError
from headlab.runs import read_json

from .document import Ratio, ratio

#: How many head counts the row is about; an experiment with another number of them is scaled.
COUNTS = 12


@dataclass(frozen=True)
class Recorded:
    """Seconds of the whole machine that one experiment took: base, control, gate run, pruned models and their scoring.

    What ran side by side with its share of the threads counts for that share of its wall time.
    """

    base: float
    control: float
    gates: float
    pruned: list[float]  # of the gate run's targets: removal and fine-tuning
    scoring: list[float | None]  # of the same models: translating and scoring
    total: float  # all runs of the base and their scoring, rivals included


def recorded(base: Path) -> Recorded:
    """What the runs beside the finished base ``runs/base/NAME`` took; UserError where some are missing."""
    runs = base.parent.parent
    select = [run for run in _of(runs, "select", base) if len(_identity(run).get("targets") or []) > 1]
    control = _of(runs, "control", base)
    if not select or not control:
        raise UserError(
            f"{runs}: has no finished gate run to several targets with its control; run make reproduce-en-ru"
        )
    gates = max(select, key=lambda run: len(_identity(run)["targets"]))
    pruned = _of(runs, "pruned", base)
    of_gates = [run for run in pruned if _identity(run).get("selection") == gates.name]
    if len(of_gates) < len(_identity(gates)["targets"]):
        raise UserError(f"{runs}: only {len(of_gates)} models of {gates.name} are finished; run make reproduce-en-ru")
    rivals = [run for run in pruned if _identity(run).get("selection") is None]
    models = [base, *of_gates, *rivals, *(point for run in control for point in sorted(run.glob("at-*")))]
    trained = [base, gates, *control, *of_gates, *rivals]
    seconds = {run: _wall(run) * _threads(run) / _threads(base) for run in trained}
    share = min(_threads(run) for run in trained) / _threads(base)  # scoring is side by side where training was
    return Recorded(
        base=seconds[base],
        control=sum(seconds[run] for run in control),
        gates=seconds[gates],
        pruned=[seconds[run] for run in of_gates],
        scoring=[_scoring(run, share) for run in of_gates],
        total=sum(seconds.values()) + sum(_scoring(model, share) or 0.0 for model in models),
    )


def curve(found: Recorded) -> Ratio:
    """Gate run, twelve pruned models and control against one training of the base."""
    if None in found.scoring:
        return ratio("curve", [], "left out: these runs do not say how long scoring took")
    count = len(found.pruned)
    each = sum(found.pruned) + sum(s for s in found.scoring if s is not None)
    seconds = (found.gates + each) * COUNTS / count + found.control
    note = (
        f"from manifests: base {found.base:.0f} s, gate run {found.gates:.0f} s, {count} models {each:.0f} s with "
        f"scoring, control {found.control:.0f} s"
        + (f"; scaled from {count} to {COUNTS} counts" if count != COUNTS else "")
    )
    return ratio("curve", [seconds / found.base], note)


def reproduce(found: Recorded) -> Ratio:
    """All runs of the experiment and their scoring against 45 minutes."""
    if None in found.scoring:
        return ratio("reproduce", [], "left out: these runs do not say how long scoring took")
    minutes = found.total / 60
    return ratio("reproduce", [minutes / 45], f"{minutes:.1f} min from manifests, without set-up and corpus")


def _of(runs: Path, stage: str, base: Path) -> list[Path]:
    """The finished runs of a stage that start from ``base``."""
    folders: Iterable[Path] = sorted(path.parent for path in (runs / stage).glob("*/DONE"))
    return [run for run in folders if _identity(run).get("base") == base.name]


def _identity(run: Path) -> dict[str, Any]:
    return dict(read_json(run / "identity.json"))


def _wall(run: Path) -> float:
    return float(read_json(run / "manifest.json")["wall_seconds"])


def _threads(run: Path) -> int:
    return int(read_json(run / "manifest.json")["threads"])


def _scoring(model: Path, share: float) -> float | None:
    """Seconds of translating and scoring, and of measuring speed, for which a model has the machine to itself.

    None where it was not recorded.
    """
    weights = {"scores": share, "speed": 1.0}
    found = {name: read_json(path).get("seconds") for name in weights if (path := model / f"{name}.json").exists()}
    if not found or None in found.values():
        return None
    return float(sum(weights[name] * seconds for name, seconds in found.items()))
