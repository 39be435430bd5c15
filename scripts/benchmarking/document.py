"""What is written: ratios.csv, profile.csv, manifest.json, and a README made of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from tabulate import tabulate

from headlab.report.store import Table
from headlab.runs import atomic_write, read_json

#: The rows of ratios.csv, in their order: the name on the command line, what is measured, against what, the goal
#: (None: there is none).
ROWS: dict[str, tuple[str, str, float | None, str]] = {
    "train": ("training, target tokens/s, default precision", "fairseq-train (fp32)", 2.0, ">="),
    "train-fp32": ("training, target tokens/s, fp32 and Adam on both sides", "fairseq-train (fp32)", 1.4, ">="),
    "batching": ("own batching, same tokens per update", "stock batching", 1.05, ">="),
    "gates-enc": ("training with L0 gates on the encoder's heads", "headlab without gates", 0.95, ">="),
    "gates-all": ("training with L0 gates on all heads", "headlab without gates", 0.9, ">="),
    "gha-v": ("training with the group constraint on V in all layers", "headlab without constraint", 0.85, ">="),
    "gha-o": ("training with the group constraint on O in all layers", "headlab without constraint", 0.85, ">="),
    "gha-a": ("training with the group constraint on A in all layers", "headlab without constraint", None, ">="),
    "frozen": ("selection update, decoder frozen", "headlab's full update", 1.15, ">="),
    "translate": ("beam-5 translation of the test set, unpruned", "fairseq-generate", 2.0, ">="),
    "pruned": ("beam-5 translation of the test set, a quarter of all heads kept", "headlab unpruned", 1.1, ">="),
    "paper-speed": (
        "paper's speed set-up: base shape, random weights, 2 heads a layer, beam 5, batch 256, length 10",
        "headlab unpruned", 1.11, ">=",
    ),
    "memory": ("peak memory of a training update", "fairseq-train", 1.0, "<="),
    "curve": ("gate run + 12 x (removal, fine-tuning, scoring) + control", "training the base once", 1.5, "<="),
    "reproduce": ("make reproduce-en-ru, one seed", "45 minutes", 25 / 45, "<="),
    "help": ("headlab --help", "0.3 s", 1.0, "<="),
    "start": ("headlab train, start to first update", "10 s", 1.0, "<="),
    "again": ("re-run of a finished experiment", "15 s", 1.0, "<="),
}  # fmt: skip


@dataclass
class Ratio:
    """One line of ratios.csv: how many times ``against`` it is, as the median of ``runs`` pairs, with their range."""

    what: str
    against: str
    ratio: float | None
    ratio_min: float | None
    ratio_max: float | None
    goal: float | None
    sense: str  # >= or <=
    runs: int
    note: str


_PLACES = {what: place for place, (what, *_) in enumerate(ROWS.values())}

RATIOS = Table(
    file="ratios.csv",
    record=Ratio,
    key=("what", "against"),
    sort=lambda line: _PLACES.get(line["what"], len(_PLACES)),
    mend="run make benchmark",
)

PROFILE = "profile.csv"

NO_GPU = (
    "Nothing here was measured on a GPU: neither the rates there, nor whether an update waits for the device, nor "
    "which attention kernels run."
)

METHOD = """\
A ratio is the median over pairs of windows in which the two programs worked in turn (A B A B ...), each in a process of
its own, after a warm-up; the range over the pairs is in brackets. A rate counts everything that a program does between
two updates, or between a loaded model and translations in pieces. Batches of training are identical within a row: the
numbers of their sentences are compared. `fairseq-train` and `fairseq-generate` run from their own command lines with
defaults for all but shape, optimiser, batch size, beam and length limit, without validation and checkpoints, and with
batches that need not be multiples of 8 sentences (fairseq leaves out what is over). Translation batches are each
program's own. Where the thing compared with is a time, the ratio is the time taken divided by it."""


def ratio(row: str, ratios: Sequence[float], note: str) -> Ratio:
    """The line of ``row`` from one ratio of each pair; none at all where it could not be measured."""
    what, against, goal, sense = ROWS[row]
    if not ratios:
        return Ratio(what, against, None, None, None, goal, sense, 0, note)
    return Ratio(what, against, median(ratios), min(ratios), max(ratios), goal, sense, len(ratios), note)


def reached(line: Any) -> bool | None:
    """Whether a line's median is on the right side of its goal; None where nothing was measured or there is no goal."""
    if pd.isna(line.ratio) or pd.isna(line.goal):
        return None
    return bool(line.ratio >= line.goal if line.sense == ">=" else line.ratio <= line.goal)


def write_profile(folder: Path, programs: dict[str, dict[str, Any]], most: int = 12) -> None:
    """Write profile.csv: what each program's window went into, the ``most`` expensive operations by their own time.

    What is left of the window is time between operations: Python, and the profiler itself.
    """
    lines = []
    for program, window in programs.items():
        outside = window["seconds"] - sum(seconds for _, seconds, _ in window["operations"])
        found = [*window["operations"], ("(between operations)", max(outside, 0.0), 0)]
        for name, seconds, calls in sorted(found, key=lambda each: -each[1])[:most]:
            share = seconds / window["seconds"]
            lines.append([program, name, round(share, 4), round(1000 * seconds, 2), calls])
    frame = pd.DataFrame(lines, columns=["program", "operation", "share", "milliseconds", "calls"])
    atomic_write(folder / PROFILE, frame.to_csv(index=False))


def most_time(folder: Path, program: str) -> str:
    """The three operations in which ``program`` spends most time, for a note; empty where it was not profiled."""
    if not (folder / PROFILE).exists():
        return ""
    lines = pd.read_csv(folder / PROFILE).query("program == @program").head(3)
    return ", ".join(f"{line.operation} {line.share:.0%}" for line in lines.itertuples())


def write_readme(folder: Path) -> Path:
    """Make README.md of the files beside it; ``findings.md``, where a person has written one, is taken in."""
    record = read_json(folder / "manifest.json")
    hardware, versions = record["hardware"], record["versions"]
    data, model, optim, machine = (record["config"][group] for group in ("data", "model", "optim", "machine"))
    ratios = RATIOS.read(folder)
    text = [
        "# headlab beside stock fairseq",
        "",
        "Made by `make benchmark` from the files beside it.",
        "",
        f"{hardware['cpu']}, {hardware['cores']} cores, {record['threads']} threads, device {machine['device']}, "
        f"default precision {machine['precision']}; torch {versions['torch']}, Python {versions['python']}; "
        f"corpus {data['name']}, model {model['name']}, batches of {optim['batch_tokens']} tokens.",
        *([NO_GPU] if machine["device"] == "cpu" else []),
        "",
        _table(ratios),
        "",
        *(
            f"{place}. {what}: {note}"
            for place, (what, note) in enumerate(zip(ratios.what, ratios.note, strict=True), 1)
        ),
        "",
        METHOD,
        "",
        "## The same thing is computed",
        "",
        *(f"- {line}" for line in record["checks"]),
        "- translations: see the note of their row",
        "",
    ]
    if (folder / PROFILE).exists():
        text += ["## Where the time goes", "", "Time in an operation itself, without what it calls.", ""]
        text += _profile(pd.read_csv(folder / PROFILE))
    if (folder / "findings.md").exists():
        text += ["## Findings", "", (folder / "findings.md").read_text(encoding="utf-8").strip(), ""]
    atomic_write(folder / "README.md", "\n".join(text))
    return folder / "README.md"


def _table(ratios: pd.DataFrame) -> str:
    body = []
    for place, line in enumerate(ratios.itertuples(), start=1):
        verdict = {True: "yes", False: "**no**", None: ""}[reached(line)]
        shown = f"{line.ratio:.2f} [{line.ratio_min:.2f}, {line.ratio_max:.2f}]" if line.runs else ""
        body.append([place, line.what, line.against, shown, _goal(line), verdict, line.runs])
    header = ["", "what", "against", "ratio [range]", "goal", "reached", "runs"]
    return tabulate(body, header, tablefmt="pipe", disable_numparse=True)


def _goal(line: Any) -> str:
    if pd.isna(line.goal):
        return "none"
    return f"{'≥' if line.sense == '>=' else '≤'} {line.goal:.3g}"


def _profile(frame: pd.DataFrame) -> list[str]:
    text = []
    for program, lines in frame.groupby("program", sort=False):
        body = [
            [f"`{each.operation}`", f"{each.share:.1%}", each.milliseconds, each.calls] for each in lines.itertuples()
        ]
        text += [f"**{program}**", "", tabulate(body, ["operation", "share", "ms", "calls"], tablefmt="pipe"), ""]
    return text
