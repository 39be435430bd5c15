from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headlab.config import Config, LauncherConfig
from headlab.fairseq_plugin.setup import Machine
from headlab.sweep import launching
from headlab.sweep.launching import Launcher, last_word, launch
from headlab.sweep.overview import Overview
from headlab.sweep.units import Unit


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(launching.LOOK, "local", 0.0)


def unit(name: str, *needs: str, finished: bool = False) -> Unit:
    return Unit(name, "prune", Path("none"), (), Config(), Machine("cpu", "fp32", 1), needs, finished=finished)


@dataclass
class Job:
    """A process that is seen running once."""

    name: str
    paths: Any
    looks: int = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1


@dataclass
class Paths:
    stdout: Path


@dataclass
class Starts:
    """Stands for a launcher: says what was started beside what, and gives the codes that it was told."""

    folder: Path
    codes: dict[str, int | None] = field(default_factory=dict)
    cfg: LauncherConfig = field(default_factory=LauncherConfig)
    running: list[str] = field(default_factory=list)
    seen: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def start(self, unit: Unit, place: int) -> Job:
        self.seen.append((unit.name, tuple(self.running), place))
        self.running.append(unit.name)
        return Job(unit.name, Paths(self.folder / f"{unit.name}.out"))

    def code(self, job: Job) -> int | None:
        self.running.remove(job.name)
        return self.codes.get(job.name, 0)

    def end(self, jobs: list[Job]) -> None:
        self.ended += [job.name for job in jobs]


UNITS = [unit("base 1"), unit("base 2"), unit("a1", "base 1"), unit("b1", "base 1"), unit("a2", "base 2"), unit("c")]


def run(units: list[Unit], launcher: Starts, parallel: int | None) -> list[tuple[str, str]]:
    with Overview(units) as overview:
        failures = launch(units, launcher, parallel, overview)  # type: ignore[arg-type]
    assert launcher.ended == []
    return [(failure.unit.name, failure.line) for failure in failures]


def test_what_others_need_comes_first_and_no_more_run_than_may(tmp_path: Path) -> None:
    one, two, all_at_once = Starts(tmp_path), Starts(tmp_path), Starts(tmp_path)
    assert run(UNITS, one, 1) == run(UNITS, two, 2) == run(UNITS, all_at_once, None) == []
    assert [name for name, _, _ in one.seen] == ["base 1", "base 2", "a1", "b1", "a2", "c"]
    for launcher, most in ((one, 1), (two, 2), (all_at_once, 6)):
        assert sorted(name for name, _, _ in launcher.seen) == sorted(unit.name for unit in UNITS)
        assert all(len(beside) < most and place < most for _, beside, place in launcher.seen)
        needs = {unit.name: unit.needs for unit in UNITS}
        assert not any(need in beside for name, beside, _ in launcher.seen for need in needs[name])
    assert [name for name, _, _ in all_at_once.seen][:3] == ["base 1", "base 2", "c"]


def test_what_is_finished_is_skipped_and_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = Starts(tmp_path)
    assert run([unit("a", finished=True), unit("b")], launcher, 2) == []
    assert [name for name, _, _ in launcher.seen] == ["b"]
    assert "a: finished already" in capsys.readouterr().err.splitlines()


def test_a_failure_is_shown_and_takes_along_only_what_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base 1.out").write_text("base: 1/2\nheadlab: update 7: the loss is NaN; set optim.lr lower\n")
    launcher = Starts(tmp_path, {"base 1": 1, "c": None})
    found = run(UNITS, launcher, 2)
    killed = "its process was ended from outside (killed, or out of memory)"
    lost = "not started, since this failed: base 1"
    reason = "update 7: the loss is NaN; set optim.lr lower"
    assert sorted(found) == [("a1", lost), ("b1", lost), ("base 1", reason), ("c", killed)]
    assert sorted(name for name, _, _ in launcher.seen) == ["a2", "base 1", "base 2", "c"]
    said = capsys.readouterr().err.splitlines()
    assert f"base 1: FAILED: {reason}" in said
    assert said.index(f"base 1: FAILED: {reason}") < said.index("a2: started")  # as it happens


def test_whatever_ends_a_sweep_ends_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Starts(tmp_path)

    def stop(overview: Overview) -> None:
        raise SystemExit(128 + signal.SIGINT)

    monkeypatch.setattr(Overview, "look", stop)
    with pytest.raises(SystemExit), Overview(UNITS) as overview:
        launch(UNITS, launcher, 2, overview)  # type: ignore[arg-type]
    assert launcher.ended == ["base 1", "base 2"]


def test_the_last_word_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.out"
    assert last_word(log, 1) == "exit code 1"
    log.write_text("Traceback\n  File x\nValueError: odd\n\n")
    assert last_word(log, 1) == "ValueError: odd"
    log.write_text("headlab: first\nheadlab: second\nsubmitit INFO: done\n")
    assert last_word(log, 2) == "second"


def test_slurm_that_is_not_there_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headlab.errors import UserError

    monkeypatch.setenv("PATH", str(tmp_path))
    one = unit("a")
    one.folder = tmp_path / "a"
    with pytest.raises(UserError, match="SLURM's srun is not here"):
        Launcher(LauncherConfig(name="slurm"), tmp_path / "lock").start(one, 0)


def test_the_job_that_slurm_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch and srun that do nothing: what would be submitted is in the file that sbatch is given."""
    for name in ("srun", "sbatch"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ncp $1 {tmp_path}/given\necho Submitted batch job 12\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    one = unit("method=l0 seed=1")
    one.folder = tmp_path / "cell"
    cfg = LauncherConfig(name="slurm", partition="gpu", time=90, gpus=2, cpus=8)
    job = Launcher(cfg, tmp_path / "lock").start(one, 0)
    assert job.job_id == "12"
    text = (tmp_path / "given").read_text()
    for line in ("--partition=gpu", "--time=90", "--gpus-per-node=2", "--cpus-per-task=8"):
        assert f"#SBATCH {line}" in text, text
    assert job.submission().function.checkpoint().function == job.submission().function  # queued again, it goes on
