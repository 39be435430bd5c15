"""Programs that take turns: real processes, each a few lines long."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarking.turns import Program, Stage, Turn

from headlab.errors import RunError


def counting(turn: Turn, name: str, order: Path) -> None:
    """Count windows; write down whose turn it was."""
    number = 0
    while True:
        turn.wait()
        number += 1
        with order.open("a") as stream:
            stream.write(name)
        turn.done(number, said=f"{name}{number}")


def ending(turn: Turn) -> None:
    turn.wait()
    print("there is no such corpus", flush=True)
    raise SystemExit(3)


def holding(turn: Turn, first: int, later: int) -> None:
    """Have ``first`` MB in use in the first window and ``later`` in all others."""
    size = first
    while True:
        turn.wait()
        held = b"x" * (size << 20)
        turn.done(len(held))
        del held
        size = later


def test_programs_take_turns_and_the_warm_up_does_not_count(tmp_path: Path) -> None:
    order = tmp_path / "order"
    a, b = (Program(name, counting, (name, order)) for name in "AB")
    pairs = Stage(tmp_path).in_turn(a, b, 3)
    assert order.read_text() == "ABABABAB"
    assert [(one["said"], other["said"]) for one, other in pairs] == [("A2", "B2"), ("A3", "B3"), ("A4", "B4")]
    assert all(window["seconds"] > 0 and window["peak_mb"] > 1 for pair in pairs for window in pair)


def test_programs_end_with_their_stage(tmp_path: Path) -> None:
    with Stage(tmp_path).at_work(Program("A", counting, ("A", tmp_path / "order"))) as (started,):
        assert started.process.is_alive()
    assert started.process.exitcode == 0


def test_a_program_that_ends_by_itself_is_named_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="A ended by itself; it last said: there is no such corpus"):
        Stage(tmp_path).once(Program("A", ending, ()))


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the kernel keeps one peak for the whole process"
)
def test_the_peak_of_a_window_is_its_own(tmp_path: Path) -> None:
    with Stage(tmp_path).at_work(Program("A", holding, (200, 20))) as (started,):
        first, second = started.window(), started.window()
    assert first["peak_mb"] - second["peak_mb"] > 100
