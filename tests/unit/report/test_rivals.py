"""Where random heads are as good as those of a method: sentences from hand-written rows and resamples."""

from __future__ import annotations

from pathlib import Path

import pytest

from headlab.attention.heads import KINDS
from headlab.report.resamples import Resamples, read_resamples, write_resamples
from headlab.report.rivals import random_text
from headlab.report.rows import Row, write_rows
from headlab.report.summary import read_models
from headlab.report.tables import write_tables

from .fixtures import row

ALL = " ".join(KINDS)


def model(method: str, scope: str, target: int, bleus: list[float], **changes) -> list[Row]:
    """A model with a seed per BLEU."""
    return [
        row(method, changes.get("variant", ""), target, seed=seed, scope=scope, bleu=bleu,
            reference=changes.get("reference", "control-u9"))
        for seed, bleu in enumerate(bleus, start=1)
    ]  # fmt: skip


def resamples(rows: list[Row], *noise: list[float]) -> list[Resamples]:
    """Resamples of the rows, a list of deviations from BLEU for each."""
    return [
        Resamples(one.experiment, one.method, one.variant, one.scope, one.target, one.seed, "two of two", one.bleu,
                  " ".join(str(one.bleu + value) for value in values))
        for one, values in zip(rows, noise, strict=True)
    ]  # fmt: skip


def told(folder: Path) -> str:
    return " ".join(random_text(read_models(folder), read_resamples(folder)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """At 2 of 8 random is as good as l0, at 4 of 24 it is worse than l0 and better than lrp."""
    flat = [0.0, 0.0]
    here, there = model("l0", "enc-self", 2, [20.0, 21.0]), model("random", "enc-self", 2, [20.5, 20.0])
    far, near = model("l0", ALL, 4, [22.0, 24.0]), model("random", ALL, 4, [20.0, 21.0])
    low = model("lrp", ALL, 4, [10.0, 10.0])
    write_rows(tmp_path, [*here, *there, *far, *near, *low])
    # seed 1 -0.5 with -1 and +1 around it, seed 2 +1 with the same: means 0.25 -1 and 0.25 +1
    write_resamples(tmp_path, resamples(here, [-1.0, 1.0], [-1.0, 1.0]) + resamples(there, flat, flat))
    # what one seed loses in a resample the other gains: sentences are drawn jointly, so nothing is left of it
    write_resamples(tmp_path, resamples(far, [-9.0, 9.0], [9.0, -9.0]) + resamples(near, flat, flat))
    write_resamples(tmp_path, resamples(low, flat, flat))
    return tmp_path


def test_every_place_is_named_with_means_deviations_and_intervals(folder):
    text = told(folder)
    as_good, better = text.split(" Better than random heads with fine-tuning: ")
    assert as_good.startswith("Random heads with fine-tuning are as good as a method")
    # percentiles of two values: 2.5 % of the way from the lower to the upper
    assert "at 2 of 8 (enc-self): l0 +0.25 ± 1.06 [−0.70, +1.20]" in as_good
    random_wins = "at 4 of 24 (enc-self, dec-self, enc-dec): lrp −10.50 ± 0.71 [−10.50, −10.50] (random is better)."
    assert as_good.endswith(random_wins)
    assert better == "at 4 of 24 (enc-self, dec-self, enc-dec): l0 +2.50 ± 0.71 [+2.50, +2.50]."
    write_tables(folder)
    assert as_good in (folder / "table.md").read_text()


def test_nowhere_is_said_too_and_seeds_that_differ_much_are_not_resolved(tmp_path):
    rows = [*model("l0", "enc-self", 2, [21.0, 24.0]), *model("random", "enc-self", 2, [20.0, 20.0])]
    write_rows(tmp_path, rows)
    write_resamples(tmp_path, resamples(rows, *[[0.0, 0.0]] * 4))
    text = told(tmp_path)
    assert "nowhere as good" in text
    assert text.endswith("l0 +2.50 ± 2.12 [+2.50, +2.50] (not resolved over seeds).")  # 2.5 is less than 2 · 2.12


def test_only_fine_tuned_models_of_equal_scope_count_and_updates_are_held_against_each_other(tmp_path):
    random = model("random", "enc-self", 2, [20.0])
    others = [
        *model("l0", "enc-self", 4, [20.0]), *model("lrp", ALL, 2, [20.0]),
        *model("dsp", "enc-self", 2, [20.0], reference="control-u5"),
        *model("gha", "enc-self", 2, [20.0], variant="untuned"),
    ]  # fmt: skip
    write_rows(tmp_path, [*random, *others])
    write_resamples(tmp_path, resamples([*random, *others], *[[0.0, 0.0]] * 5))
    assert told(tmp_path) == ""


def test_without_resamples_nothing_is_claimed(tmp_path):
    rows = [*model("l0", "enc-self", 2, [20.0]), *model("random", "enc-self", 2, [20.0])]
    write_rows(tmp_path, rows)
    write_resamples(tmp_path, resamples(rows[:1], [0.0, 0.0]))
    assert told(tmp_path) == "Not held against random, since resamples.csv lacks their rows: at 2 of 8 (enc-self): l0."
    stale = resamples(rows[1:], [0.0, 0.0])
    stale[0].bleu = 3.0  # of a measurement before that of the row
    write_resamples(tmp_path, stale)
    assert told(tmp_path).startswith("Not held against random")
