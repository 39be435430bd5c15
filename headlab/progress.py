"""Telling a person how far the work is: a bar with rate and time left on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from headlab import cell
from headlab.runs import write_json


def plain_console() -> Console:
    """One that writes lines, as to a file, also where there is a terminal."""
    return Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=False)


#: Everything a command says about its work goes to stderr; stdout is for results.
console = Console(stderr=True, highlight=False, soft_wrap=True)

#: Seconds between two plain lines.
PLAIN_INTERVAL = 30.0

#: Seconds between two reports of a cell to its sweep, in ``progress.json``.
REPORT_INTERVAL = 1.0


def say(text: str) -> None:
    """One line about the work."""
    console.print(text, markup=False)


class Progress:
    """``with Progress("base", 2000) as progress: progress.at(17, "loss 3.2")``."""

    def __init__(self, title: str, total: int, start: int = 0) -> None:
        self.title, self.total, self.start = title, total, start
        self.began = self.spoke = time.monotonic()
        self.reported = 0.0
        self.bar: Bar | None = None

    def __enter__(self) -> Progress:
        if console.is_terminal:
            self.bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.fields[text]}"),
                console=console, transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task(self.title, total=self.total, completed=self.start, text="", rate="")
            self.bar.start()
        self._report(self.start, 0.0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def at(self, done: int, text: str = "") -> None:
        """``done`` of ``total`` are done."""
        now = time.monotonic()
        rate = (done - self.start) / max(now - self.began, 1e-9)
        left = (self.total - done) / max(rate, 1e-9)
        if now - self.reported >= REPORT_INTERVAL:
            self.reported = now
            self._report(done, left)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, text=text, rate=f"{rate:.1f}/s")
        elif now - self.spoke >= PLAIN_INTERVAL or done >= self.total:
            self.spoke = now
            say(f"{self.title}: {done}/{self.total}, {rate:.2f}/s, {left / 60:.1f} min left; {text}")

    def _report(self, done: int, left: float) -> None:
        """Tell the sweep, if this is a cell of one, how far the work is; ``left`` in seconds, 0 where not known."""
        if (folder := cell.folder()) is not None:
            state = {"stage": self.title, "done": done, "total": self.total, "seconds_left": round(left)}
            write_json(folder / "progress.json", state)
