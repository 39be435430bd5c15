"""How far the units of a sweep are: a live table on a terminal, plain lines otherwise."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table

from headlab.progress import PLAIN_INTERVAL, console, say
from headlab.sweep.units import Unit

#: The order in which units are shown, so that what matters is seen where not all fit.
ORDER = ("failed", "running", "waiting", "finished", "skipped")


@dataclass
class _State:
    unit: Unit
    state: str
    since: float | None = None
    line: str = ""


class Overview:
    """``with Overview(units) as overview``: to be told what happens, and to be asked to ``look`` now and then."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.states = {unit.name: _State(unit, "skipped" if unit.finished else "waiting") for unit in units}
        self.spoke = self.began = time.monotonic()
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Overview:
        for state in self.states.values():
            if state.state == "skipped":
                say(f"{state.unit.name}: finished already")
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, unit: Unit) -> None:
        """A process was started for ``unit``."""
        state = self.states[unit.name]
        state.state, state.since = "running", time.monotonic()
        say(f"{unit.name}: started")

    def finished(self, unit: Unit) -> None:
        """``unit`` is done."""
        state = self.states[unit.name]
        state.state = "finished"
        took = time.monotonic() - state.since if state.since is not None else 0.0
        say(f"{unit.name}: finished after {_span(took)}; {self._counts()}")

    def failed(self, unit: Unit, line: str) -> None:
        """``unit`` could not be finished, for the reason in ``line``."""
        state = self.states[unit.name]
        state.state, state.line = "failed", line
        say(f"{unit.name}: FAILED: {line}")

    def look(self) -> None:
        """Show how far everything is."""
        now = time.monotonic()
        if self.live is not None:
            self.live.update(Group(self._table(), self._counts()), refresh=True)
        elif now - self.spoke >= PLAIN_INTERVAL:
            self.spoke = now
            running = [state.unit for state in self.states.values() if state.state == "running"]
            told = [f"{unit.name}: {' '.join(part for part in progress_of(unit) if part)}" for unit in running]
            say("; ".join([self._counts(), *told]))

    def _counts(self) -> str:
        counts = {name: sum(state.state == name for state in self.states.values()) for name in ORDER}
        left = self._left()
        told = [f"{count} {name}" for name, count in counts.items() if count]
        return ", ".join([*told, f"about {_span(left)} left" if left is not None else ""]).rstrip(", ")

    def _left(self) -> float | None:
        """Seconds until all is done at the pace of the updates so far; None before the first unit is finished."""
        open_states = ("waiting", "running")
        todo = sum(state.unit.updates for state in self.states.values() if state.state in open_states)
        done = sum(_planned(state.unit) for state in self.states.values() if state.state == "finished")
        return (time.monotonic() - self.began) * todo / done if done and todo else None

    def _table(self) -> Table:
        table = Table()
        for column in ("cell", "state", "stage", "progress", "time left"):
            table.add_column(column, no_wrap=column != "cell", overflow="ellipsis")
        states = sorted(self.states.values(), key=lambda state: ORDER.index(state.state))
        room = max(console.height - 7, 3)
        for state in states[:room]:
            rest = progress_of(state.unit) if state.state == "running" else (state.line, "", "")
            table.add_row(state.unit.name, state.state, *rest)
        if len(states) > room:
            table.add_row(f"and {len(states) - room} more", "", "", "", "")
        return table


def progress_of(unit: Unit) -> tuple[str, str, str]:
    """Stage, progress and time left, as the process of a unit tells them in its folder."""
    try:
        told: dict[str, Any] = json.loads((unit.folder / "progress.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it has not said anything yet
        return "starting", "", ""
    left = _span(told["seconds_left"]) if told["seconds_left"] else ""
    return told["stage"], f"{told['done']}/{told['total']}", left


def _planned(unit: Unit) -> int:
    return sum(stage.updates for stage in unit.stages)


def _span(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
