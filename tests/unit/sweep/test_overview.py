from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headlab import cell
from headlab.config import Config
from headlab.fairseq_plugin.setup import Machine
from headlab.progress import Progress
from headlab.runs import RunDir
from headlab.sweep import overview
from headlab.sweep.overview import Overview, progress_of
from headlab.sweep.survey import Stage
from headlab.sweep.units import Unit


def unit(folder: Path, name: str, finished: bool = False) -> Unit:
    stages = [Stage(RunDir(folder, "pruned", name, {}), 10, 1, False)]
    return Unit(name, "prune", folder / name, (), Config(), Machine("cpu", "fp32", 1), (), stages, finished=finished)


def test_a_cell_tells_its_sweep_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = unit(tmp_path, "a")
    assert progress_of(one) == ("starting", "", "")
    monkeypatch.setenv(cell.VARIABLE, str(one.folder))
    with Progress("base x", 10) as progress:
        assert progress_of(one) == ("base x", "0/10", "")
        progress.began -= 100  # 5 of 10 in 100 s: another 100 s
        progress.at(5)
        assert progress_of(one) == ("base x", "5/10", "2 min")
        progress.at(6)  # within a second of the last report: not written
        assert progress_of(one)[1] == "5/10"


def test_on_a_terminal_all_cells_are_in_a_live_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, height=12, color_system=None)
    monkeypatch.setattr(overview, "console", console)
    monkeypatch.setattr("headlab.progress.console", console)
    units = [unit(tmp_path, "a", finished=True), *(unit(tmp_path, name) for name in "bcdefg")]
    with Overview(units) as shown:
        for one in units[1:5]:
            shown.started(one)
        shown.finished(units[1])
        shown.failed(units[2], "the loss is NaN")
        shown.look()
        text = screen.getvalue()
    table = text[text.rindex("cell") :]
    lines = [line for line in table.splitlines() if "│" in line]
    assert [line.split("│")[1].strip() for line in lines] == ["c", "d", "e", "f", "g", "and 2 more"]
    assert "the loss is NaN" in lines[0]
    assert [word.strip() for word in lines[1].split("│")[2:4]] == ["running", "starting"]
    assert "1 failed, 2 running, 2 waiting, 1 finished, 1 skipped, about" in table  # of the time left
    assert "b: finished after 0 s" in text
