"""Two programs, each in a process of its own, that work in turn (A B A B ...) while the other one waits.

What is slow for a while (a busy neighbour, a hot processor) is slow for both halves of a pair alike. The first window
of each program is its warm-up and is not counted.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from headlab.errors import RunError

#: What a program found in one window: ``seconds``, ``peak_mb``, ``units`` (what its rate counts), and more of its own;
#: under the profiler also ``operations``: name, seconds in itself, calls.
Window = dict[str, Any]


class Turn:
    """A program's end of the arrangement: :meth:`wait`, do a window of work, :meth:`done`, and so on."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.profiled = False
        self.profiler: Any = None

    def wait(self) -> None:
        """Until it is this program's turn; ends the program when there is nothing left to do."""
        self.connection.send(None)
        try:
            word = self.connection.recv()
        except EOFError:
            word = "stop"
        if word == "stop":
            raise SystemExit
        self.profiled = word == "profile"
        _forget_peak()
        self.start()

    def start(self) -> None:
        """Begin to count the time; ``wait`` has done so already, this leaves out what came since."""
        if self.profiled:
            from torch.profiler import ProfilerActivity, profile

            if self.profiler is not None:
                self.profiler.__exit__(None, None, None)
            self.profiler = profile(activities=[ProfilerActivity.CPU])
            self.profiler.__enter__()
        _synchronize()
        self.began = time.perf_counter()

    def done(self, units: int, **found: Any) -> None:
        """Tell what came of the window."""
        _synchronize()
        window: Window = {"seconds": time.perf_counter() - self.began, "peak_mb": _peak(), "units": units, **found}
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)
            window["operations"] = [
                (event.key, event.self_cpu_time_total / 1e6, event.count)
                for event in self.profiler.key_averages()
                if not event.is_user_annotation  # a name that a program gives to a part of its work
            ]
            self.profiler = None
        self.connection.send(window)


def _synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _forget_peak() -> None:
    """Start the kernel's record of the largest resident size anew, where it can be (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak() -> float:
    """The largest resident size of this process in MB, since :func:`_forget_peak` where that works."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True)
class Program:
    """What to run in a process of its own: ``main(turn, *arguments)``, a function of a module."""

    name: str
    main: Callable[..., None]
    arguments: tuple[Any, ...]


class Started:
    """A program at work, seen from the process that gives out the turns."""

    def __init__(self, program: Program, context: Context, log: Path) -> None:
        self.program, self.log = program, log
        self.connection, end = context.Pipe()
        self.process = context.Process(target=_run, args=(end, str(log), program.main, program.arguments))
        self.process.start()
        end.close()  # so that the program's end is noticed

    def receive(self) -> Any:
        """The next thing it says; RunError when it has ended instead."""
        try:
            return self.connection.recv()
        except EOFError:
            self.process.join()
            said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
            raise RunError(
                f"{self.program.name} ended by itself; it last said: {said[-1]} (all of it: {self.log})"
            ) from None

    def window(self, word: str = "go") -> Window:
        """Let it work for one window; under the profiler where ``word`` is "profile"."""
        self.connection.send(word)
        found: Window = self.receive()
        self.receive()  # it waits again
        return found

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):  # it has ended
            self.connection.send("stop")
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _run(connection: Connection, log: str, main: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """In the new process: everything it prints goes to ``log``."""
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    # processes of its own (fairseq reads batches in one) start as they would without this arrangement
    multiprocessing.set_start_method(None, force=True)
    main(Turn(connection), *arguments)


Context = SpawnContext | ForkServerContext


@dataclass(frozen=True)
class Stage:
    """Where programs are run: their log files' folder, and ``quick`` to fork them from a process that has loaded
    the libraries (toy sizes only: what is loaded counts as memory of both programs)."""

    logs: Path
    quick: bool = False

    @contextmanager
    def at_work(self, *programs: Program) -> Iterator[list[Started]]:
        """The programs, started side by side and ready for their first window."""
        context = multiprocessing.get_context("forkserver") if self.quick else multiprocessing.get_context("spawn")
        if self.quick:
            context.set_forkserver_preload(["fairseq_cli.train", "fairseq_cli.generate", "headlab.pipeline"])
        self.logs.mkdir(parents=True, exist_ok=True)
        started: list[Started] = []
        try:
            for number, program in enumerate(programs):
                started.append(Started(program, context, self.logs / f"{number}.log"))
            for each in started:
                each.receive()
            yield started
        finally:
            for each in started:
                each.stop()

    def once(self, program: Program) -> Window:
        """The first window of a program alone."""
        with self.at_work(program) as (started,):
            return started.window()

    def profile(self, program: Program) -> Window:
        """A window under torch's profiler, after one without."""
        with self.at_work(program) as (started,):
            started.window()
            return started.window("profile")

    def in_turn(self, a: Program, b: Program, pairs: int) -> list[tuple[Window, Window]]:
        """``pairs`` windows of either program, A B A B ..., after a warm-up window of each."""
        with self.at_work(a, b) as both:
            for each in both:
                each.window()
            return [(both[0].window(), both[1].window()) for _ in range(pairs)]
