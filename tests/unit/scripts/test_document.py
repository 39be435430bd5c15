"""ratios.csv and the README made of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from benchmarking.document import RATIOS, ROWS, most_time, ratio, reached, write_profile, write_readme

from headlab.runs import write_json

RECORD = {
    "hardware": {"cpu": "abacus", "cores": 2},
    "versions": {"torch": "2.13.0", "python": "3.11.7"},
    "threads": 2,
    "checks": ["training: alike"],
    "config": {
        "data": {"name": "en_ru"},
        "model": {"name": "small"},
        "optim": {"batch_tokens": 512},
        "machine": {"device": "cpu", "precision": "fp32"},
    },
}


def test_a_line_has_the_median_and_the_range_of_its_pairs() -> None:
    line = ratio("translate", [3.0, 1.5, 2.5, 2.0, 2.25], "note")
    assert (line.ratio, line.ratio_min, line.ratio_max, line.runs) == (2.25, 1.5, 3.0, 5)
    assert (line.goal, line.sense, line.against) == (2.0, ">=", "fairseq-generate")


@pytest.mark.parametrize(
    ("value", "sense", "expected"),
    [(2.0, ">=", True), (1.99, ">=", False), (2.0, "<=", True), (2.01, "<=", False), (None, ">=", None)],
)
def test_a_goal_is_reached_on_the_side_that_its_sense_says(value, sense, expected) -> None:
    assert reached(SimpleNamespace(ratio=value, goal=2.0, sense=sense)) is expected


def test_rows_stand_in_the_order_of_the_table_and_replace_only_themselves(tmp_path: Path) -> None:
    RATIOS.write(tmp_path, [ratio("memory", [0.9], ""), ratio("train", [2.1], "")])
    RATIOS.write(tmp_path, [ratio("train", [2.2], "again"), ratio("batching", [], "not built")])
    frame = RATIOS.read(tmp_path)
    assert frame.what.tolist() == [ROWS[name][0] for name in ("train", "batching", "memory")]
    assert frame.note.tolist() == ["again", "not built", ""]
    assert frame.ratio.tolist()[::2] == [2.2, 0.9]
    assert pd.isna(frame.ratio[1])
    assert frame.runs.tolist() == [1, 0, 1]


def test_a_profile_says_what_a_window_went_into(tmp_path: Path) -> None:
    window = {"seconds": 2.0, "operations": [("mm", 0.5, 10), ("add", 0.1, 4), ("exp", 0.4, 2)]}
    write_profile(tmp_path, {"headlab train": window}, most=3)
    frame = pd.read_csv(tmp_path / "profile.csv")
    assert frame.operation.tolist() == ["(between operations)", "mm", "exp"]
    assert frame.share.tolist() == [0.5, 0.25, 0.2]
    assert frame.milliseconds.tolist() == [1000.0, 500.0, 400.0]
    assert most_time(tmp_path, "headlab train") == "(between operations) 50%, mm 25%, exp 20%"
    assert most_time(tmp_path, "fairseq-train") == ""


def test_the_readme_is_made_of_the_files_beside_it(tmp_path: Path) -> None:
    RATIOS.write(
        tmp_path,
        [
            ratio("train", [1.5, 1.9, 1.7], "slow"),
            ratio("gha-v", [0.84, 0.85, 0.86], ""),
            ratio("gha-a", [0.5], ""),
            ratio("memory", [0.9], ""),
            ratio("curve", [], "-"),
        ],
    )
    write_json(tmp_path / "manifest.json", RECORD)
    text = write_readme(tmp_path).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [each[3:] for each in cells[1:]] == [
        ["1.70 [1.50, 1.90]", "≥ 2", "**no**", "3"],
        ["0.85 [0.84, 0.86]", "≥ 0.85", "yes", "3"],
        ["0.50 [0.50, 0.50]", "none", "", "1"],  # measured for information: there is nothing to reach
        ["0.90 [0.90, 0.90]", "≤ 1", "yes", "1"],
        ["", "≤ 1.5", "", "0"],
    ]
    assert "slow" in text
    assert "- training: alike" in text
    assert "measured on a GPU" in text
    assert "Where the time goes" not in text
    assert "## Findings" not in text
    (tmp_path / "findings.md").write_text("Softmax waits for nobody.\n", encoding="utf-8")
    write_profile(tmp_path, {"headlab train": {"seconds": 1.0, "operations": [("mm", 0.75, 3)]}})
    text = write_readme(tmp_path).read_text(encoding="utf-8")
    assert "## Findings\n\nSoftmax waits for nobody." in text
    assert "75.0%" in text
