"""Rows read from a folder of runs that never ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarking.recorded import curve, recorded, reproduce

from headlab.errors import UserError
from headlab.runs import write_json


def make(runs: Path, name: str, wall: float, scoring: dict[str, float] | None = None, **identity: Any) -> Path:
    folder = runs / name
    threads = 2 if name.startswith("base") else 1  # all but the base ran side by side
    write_json(folder / "manifest.json", {"wall_seconds": wall, "threads": threads})
    write_json(folder / "identity.json", identity)
    for file, seconds in (scoring or {}).items():
        write_json(folder / f"{file}.json", {"seconds": seconds})
    (folder / "DONE").touch()
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base of 100 s, two targets and one rival; beside them runs of another base and of a fixed penalty."""
    found = make(tmp_path, "base/b", 100, {"scores": 4})
    make(tmp_path, "select/gates", 20, base="b", targets=[4, 2])
    make(tmp_path, "select/lambda", 70, base="b", targets=[])
    make(tmp_path, "select/other", 500, base="c", targets=[4, 2])
    control = make(tmp_path, "control/c", 10, base="b")
    write_json(control / "at-5" / "scores.json", {"seconds": 2})
    make(tmp_path, "pruned/four", 5, {"scores": 2, "speed": 1}, base="b", selection="gates")
    make(tmp_path, "pruned/two", 7, {"scores": 3}, base="b", selection="gates")
    make(tmp_path, "pruned/lambda", 900, {"scores": 9}, base="b", selection="lambda")
    make(tmp_path, "pruned/rival", 6, {"scores": 8}, base="b", selection=None)
    return found


def test_the_curve_is_scaled_to_twelve_head_counts(base: Path) -> None:
    line = curve(recorded(base))
    # half of gates 20 and models 5 + 2 + 7 + 3, and 1 of speed, for two counts; six times that for twelve models, and
    # half of the control's 10
    assert line.ratio == pytest.approx((6 * (10 + 8.5 + 1) + 5) / 100)
    assert "scaled from 2 to 12" in line.note


def test_the_whole_experiment_counts_all_runs_of_the_base_and_their_scoring(base: Path) -> None:
    trained, scored = 100 + (20 + 10 + 5 + 7 + 6) / 2, (4 + 2 + 2 + 3 + 8) / 2 + 1
    assert reproduce(recorded(base)).ratio == pytest.approx((trained + scored) / (45 * 60))


def test_runs_that_do_not_say_how_long_scoring_took_are_left_out(base: Path) -> None:
    write_json(base.parents[1] / "pruned" / "two" / "scores.json", {"value": {}})
    for line in (curve(recorded(base)), reproduce(recorded(base))):
        assert line.ratio is None
        assert line.note.startswith("left out")


@pytest.mark.parametrize("missing", ["select/gates", "control/c", "pruned/two"])
def test_an_unfinished_experiment_is_refused(base: Path, missing: str) -> None:
    (base.parents[1] / missing / "DONE").unlink()
    with pytest.raises(UserError, match="run make reproduce-en-ru"):
        recorded(base)
