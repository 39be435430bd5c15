"""Tasks side by side in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from headlab import parallel
from headlab.errors import RunError, UserError
from headlab.parallel import Task, run

TIMEOUT = 60.0  # seconds, of waiting for another process


@pytest.fixture(autouse=True)
def _without_preloading(monkeypatch):
    monkeypatch.setattr(parallel, "_PRELOAD", ["headlab.parallel"])


def note(folder: Path, name: str, *before: str) -> None:
    """Leave a file, having found those of the tasks before."""
    assert all((folder / other).exists() for other in before), name
    (folder / name).write_text(str(os.getpid()))


def meet(folder: Path, name: str, other: str) -> None:
    """Leave a file and wait for that of the other task, which must be running now."""
    (folder / name).write_text("")
    end = time.monotonic() + TIMEOUT
    while not (folder / other).exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def refuse(*problems: str) -> None:
    raise UserError(*problems)


def fail() -> None:
    raise ZeroDivisionError


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tidy(folder: Path) -> None:
    (folder / "started").write_text("")
    try:
        time.sleep(TIMEOUT)
    finally:
        (folder / "tidied").write_text("")


def wait_and_refuse(folder: Path) -> None:
    meet(folder, "ready", "started")
    raise UserError("stop")


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_a_task_begins_when_those_it_needs_are_done(tmp_path, jobs):
    tasks = {
        "c": Task(note, (tmp_path, "c", "a", "b"), ("a", "b")),
        "a": Task(note, (tmp_path, "a")),
        "b": Task(note, (tmp_path, "b", "a"), ("a",)),
    }
    run(tasks, jobs)
    processes = {(tmp_path / name).read_text() for name in "abc"}
    assert (str(os.getpid()) in processes) == (jobs == 1)
    assert len(processes) == (1 if jobs == 1 else 3)


def test_two_tasks_run_at_the_same_time(tmp_path):
    run({"a": Task(meet, (tmp_path, "a", "b")), "b": Task(meet, (tmp_path, "b", "a"))}, 2)


def test_the_error_of_a_task_ends_the_others_and_comes_here_whole(tmp_path):
    with pytest.raises(UserError) as found:
        run({"a": Task(tidy, (tmp_path,)), "b": Task(wait_and_refuse, (tmp_path,))}, 2)
    assert found.value.problems == ("stop",)
    assert (tmp_path / "tidied").exists()
    with pytest.raises(UserError) as found:
        run({"a": Task(refuse, ("one", "two"))}, 2)
    assert found.value.problems == ("one", "two")


def test_a_bug_and_a_killed_process_are_told():
    with pytest.raises(RunError, match="bug in headlab"):
        run({"a": Task(fail, ())}, 2)
    with pytest.raises(RunError, match="a: its process ended with exit code -9"):
        run({"a": Task(die, ())}, 2)
