"""How long headlab's own commands take, each a process of its own, started in the current folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headlab.errors import RunError


class NotFinished(Exception):
    """An experiment that was to be found finished is not."""


def finished(arguments: list[str]) -> float:
    """Seconds that ``headlab`` with these arguments takes; RunError where it fails."""
    begun = time.perf_counter()
    process = _start(arguments)
    _, said = process.communicate()
    if process.returncode:
        raise RunError(f"headlab {' '.join(arguments)}: ended with {process.returncode}: {said.strip()[-200:]}")
    return time.perf_counter() - begun


def first_update(arguments: list[str], data: Path, runs: Path) -> float:
    """Seconds from the start of a new ``headlab train`` to the line about its first update.

    Its corpus is there (the run directory ``data``), and so is what was decided about the machine in ``runs``.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "runs"
        (own / "data").mkdir(parents=True)
        (own / "data" / data.name).symlink_to(data.resolve())
        if (runs / "machine.json").exists():
            shutil.copyfile(runs / "machine.json", own / "machine.json")
        begun = time.perf_counter()
        process = _start([*arguments, f"runs_dir={own}", f"results_dir={folder}", "optim.log_every=1"])
        try:
            while not any(path.stat().st_size for path in (own / "base").glob("*/metrics.jsonl")):
                if process.poll() is not None:
                    raise RunError(f"headlab {' '.join(arguments)}: ended before its first update")
                time.sleep(0.02)
            return time.perf_counter() - begun
        finally:
            process.kill()
            process.communicate()


def run_again(arguments: list[str]) -> float:
    """Seconds of the second run of a finished experiment.

    NotFinished, and the command stopped, where it begins to train or to translate.
    """
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        process = _start([*arguments, f"results_dir={folder}"])
        assert process.stderr is not None
        for line in process.stderr:
            if line.rstrip().endswith((": starting", ": going on")) or line.startswith("translating "):
                process.terminate()
                break
        process.communicate()
        if process.returncode:
            raise NotFinished
        return time.perf_counter() - begun


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-m", "headlab.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
