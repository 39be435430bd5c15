"""headlab's command line as processes of their own, forked from one that has loaded the libraries already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["headlab.cli", "headlab.pipeline", "matplotlib.pyplot", "sacrebleu.significance"])


def _main(folder: str, arguments: list[str]) -> None:
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits an ignored one
    for number, name, mode in ((0, ".stdin", os.O_RDONLY), (1, ".stdout", os.O_WRONLY), (2, ".stderr", os.O_WRONLY)):
        os.dup2(os.open(name, mode), number)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    sys.argv = ["headlab", *arguments]
    from headlab.cli import main

    sys.exit(main(arguments))


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """The lines that headlab says an error in."""
        return [line for line in self.stderr.splitlines() if line.startswith("headlab: ")]


@dataclass(frozen=True)
class Headlab:
    """Runs commands in ``folder``, always with the arguments ``always`` before their own."""

    folder: Path
    always: tuple[str, ...] = ()

    def start(self, *arguments: str, stdin: str = "") -> BaseProcess:
        """Begin a command."""
        for name, text in ((".stdin", stdin), (".stdout", ""), (".stderr", "")):
            (self.folder / name).write_text(text, encoding="utf-8")
        process = CONTEXT.Process(target=_main, args=(str(self.folder), list(arguments)))
        process.start()
        return process

    def end(self, process: BaseProcess) -> Done:
        """Wait for a command."""
        process.join(300)
        assert process.exitcode is not None, "hangs"
        texts = [(self.folder / name).read_text(encoding="utf-8") for name in (".stdout", ".stderr")]
        return Done(process.exitcode, *texts)

    def __call__(self, *arguments: str, stdin: str = "") -> Done:
        """Run a command to its end."""
        return self.end(self.start(*self.always, *arguments, stdin=stdin))

    def bare(self, *arguments: str, stdin: str = "") -> Done:
        """Run a command without what is always there."""
        return self.end(self.start(*arguments, stdin=stdin))

    def interrupt(self, number: int, when: Callable[[], bool], *arguments: str) -> Done:
        """Send the signal ``number`` to a command as soon as ``when()``."""
        process = self.start(*self.always, *arguments)
        limit = monotonic() + 120
        while not when() and process.is_alive() and monotonic() < limit:
            sleep(0.002)
        assert process.is_alive(), "ended before it was interrupted"
        assert process.pid is not None
        os.kill(process.pid, number)
        return self.end(process)
