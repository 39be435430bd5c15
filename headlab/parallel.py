"""Pieces of work side by side, each in a process of its own: small models leave most of a machine idle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NoReturn

from headlab import progress
from headlab.errors import RunError, UserError

#: Processes are forked from one that has loaded the libraries and done nothing else, so that starting one is cheap.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = ["headlab.pipeline"]


@dataclass(frozen=True)
class Task:
    """A call of ``function`` (of a module, so that it can be pickled) once the tasks named in ``needs`` are done."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    needs: tuple[str, ...] = ()


def run(tasks: Mapping[str, Task], jobs: int) -> None:
    """Do all ``tasks``, earlier ones first where there is a choice, at most ``jobs`` at once; one job is this process.

    Tasks leave their results in files. The first error of one ends them all and is raised here; so does a signal.
    """
    waiting = dict(tasks)
    if jobs == 1:
        for name in _order(waiting):
            tasks[name].function(*tasks[name].arguments)
        return
    _CONTEXT.set_forkserver_preload(_PRELOAD)
    running: dict[str, tuple[Any, Connection]] = {}
    try:
        while waiting or running:
            ready = [n for n, task in waiting.items() if not any(o in waiting or o in running for o in task.needs)]
            for name in ready[: jobs - len(running)]:
                running[name] = _start(waiting.pop(name))
            wait([process.sentinel for process, _ in running.values()])
            for name in [n for n, (process, _) in running.items() if process.exitcode is not None]:
                _end(name, *running.pop(name))
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _order(tasks: Mapping[str, Task]) -> Sequence[str]:
    done: list[str] = []
    while len(done) < len(tasks):
        done.append(next(n for n, task in tasks.items() if n not in done and all(o in done for o in task.needs)))
    return done


def _start(task: Task) -> tuple[Any, Connection]:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(task, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _end(name: str, process: Any, answer: Connection) -> None:
    error = None
    try:
        error = answer.recv()
    except EOFError:  # killed, by the system for want of memory for example
        error = RunError(f"{name}: its process ended with exit code {process.exitcode}; run the command again to go on")
    process.join()
    answer.close()
    if error is not None:
        raise error


def _work(task: Task, answer: Connection) -> None:
    """In the process: do the task, send None or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_follow_parent, daemon=True).start()
    progress.console = progress.plain_console()
    error: Exception | None = None
    try:
        task.function(*task.arguments)
    except (UserError, RunError) as known:
        error = known
    except Exception:
        traceback.print_exc()
        error = RunError("this is a bug in headlab; please report it with the lines above")
    answer.send(error)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # so that what has to be written at the end of a run is written


def _follow_parent() -> None:
    """A parent that is killed outright cannot end its children: they end themselves."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
