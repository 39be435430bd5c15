"""Starting the processes of a sweep through submitit, on this machine or on SLURM, and seeing them to their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.config import LauncherConfig
from headlab.errors import UserError
from headlab.fairseq_plugin.setup import Machine
from headlab.sweep.overview import Overview
from headlab.sweep.units import Unit
from headlab.sweep.worker import GRACE, Work

if TYPE_CHECKING:
    from submitit.core.core import Job

#: Minutes after which submitit would end a process on this machine: never, in practice.
FOREVER = 60 * 24 * 365

#: Seconds between two looks at the processes.
LOOK = {"local": 0.2, "slurm": 5.0}


@dataclass(frozen=True)
class Failure:
    """A unit that could not be finished: its last word, and its log where it was started."""

    unit: Unit
    line: str
    log: Path | None


@dataclass(frozen=True)
class Launcher:
    """How processes are started; ``lock`` is what those on this machine watch to end with the sweep."""

    cfg: LauncherConfig
    lock: Path

    @property
    def local(self) -> bool:
        """Whether processes run on this machine."""
        return self.cfg.name == "local"

    def start(self, unit: Unit, place: int) -> Job[int]:
        """Start a unit; on this machine the units in different places at one time have different GPUs."""
        folder = unit.folder / "job"
        for name in [*folder.glob("*_result.pkl"), unit.folder / "progress.json", unit.folder / "DONE"]:
            name.unlink(missing_ok=True)
        work = Work(unit.verb, unit.arguments, unit.folder, tuple(unit.points), self.lock if self.local else None)
        executor = self._executor(unit, folder, place)
        # Ctrl-C reaches every process of a terminal: the sweep alone is to take it, and ends its processes in order
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            job: Job[int] = executor.submit(work)
        finally:
            signal.signal(signal.SIGINT, previous)
        return job

    def end(self, jobs: Sequence[Job[int]]) -> None:
        """End processes, and wait for that a while: one that takes longer ends itself when the sweep is gone."""
        for job in jobs:
            if not self.local:
                job.cancel(check=False)
            elif not job.done():
                os.kill(int(job.job_id), signal.SIGTERM)  # submitit's own process, which hands it on
        limit = time.monotonic() + GRACE
        while any(not job.done() for job in jobs) and time.monotonic() < limit:
            time.sleep(0.1)

    def code(self, job: Job[int]) -> int | None:
        """headlab's exit code of a job that has ended; None where its process was ended from outside."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        if self.local and not job.paths.result_pickle.exists():
            return None
        try:
            return job.result()
        except FailedJobError:  # it could not even begin: its log says why
            return 1
        except UncompletedJobError:
            return None

    def _executor(self, unit: Unit, folder: Path, place: int) -> Any:
        from submitit import LocalExecutor, SlurmExecutor

        if self.local:
            here = LocalExecutor(folder)
            gpus = _gpus(unit.machine, place)
            here.update_parameters(
                timeout_min=FOREVER, stderr_to_stdout=True, gpus_per_node=len(gpus), visible_gpus=gpus
            )
            return here
        try:
            there = SlurmExecutor(folder, max_num_timeout=100)
        except RuntimeError:
            text = "launcher=slurm: SLURM's srun is not here; start the sweep on a node that submits, or launcher=local"
            raise UserError(text) from None
        there.update_parameters(
            job_name=f"headlab {unit.name}"[:60], time=self.cfg.time, partition=self.cfg.partition,
            gpus_per_node=self.cfg.gpus or None, cpus_per_task=self.cfg.cpus, stderr_to_stdout=True,
        )  # fmt: skip
        return there


def launch(units: Sequence[Unit], launcher: Launcher, parallel: int | None, overview: Overview) -> list[Failure]:
    """Run all units that are not finished, each after those it needs, at most ``parallel`` at once.

    A unit that fails takes along only those that need it. Whatever ends this function ends all its processes.
    """
    waiting = {unit.name: unit for unit in units if not unit.finished}
    running: dict[int, tuple[Unit, Job[int]]] = {}
    failures: dict[str, Failure] = {}
    try:
        while waiting or running:
            for unit in list(waiting.values()):
                if lost := [name for name in unit.needs if name in failures]:
                    del waiting[unit.name]
                    failures[unit.name] = Failure(unit, f"not started, since this failed: {lost[0]}", None)
                    overview.failed(unit, failures[unit.name].line)
            busy = {unit.name for unit, _ in running.values()}
            ready = [unit for unit in waiting.values() if not any(n in waiting or n in busy for n in unit.needs)]
            free = [place for place in range(parallel or len(units)) if place not in running]
            for place, unit in zip(free, ready, strict=False):
                running[place] = waiting.pop(unit.name), launcher.start(unit, place)
                overview.started(unit)
            for place, (unit, job) in list(running.items()):
                if job.done():
                    del running[place]
                    code = launcher.code(job)
                    if code == 0:
                        overview.finished(unit)
                    else:
                        log = Path(os.path.relpath(job.paths.stdout))
                        failures[unit.name] = Failure(unit, last_word(log, code), log)
                        overview.failed(unit, failures[unit.name].line)
            overview.look()
            if running:
                time.sleep(LOOK[launcher.cfg.name])
    finally:
        launcher.end([job for _, job in running.values()])
    return list(failures.values())


def last_word(log: Path, code: int | None) -> str:
    """The one line that says why a process failed: headlab's own, or else the last of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    own = [line for line in lines if line.startswith("headlab: ")]
    if code is not None and own:
        return own[-1].removeprefix("headlab: ")
    if code is None:
        return "its process was ended from outside (killed, or out of memory)"
    return next((line for line in reversed(lines) if line.strip()), f"exit code {code}")


def _gpus(machine: Machine, place: int) -> tuple[int, ...]:
    """The GPUs of the unit in a place: as many as it has processes of training, in turn over those that there are."""
    if machine.device != "cuda":
        return ()
    import torch

    named = [int(text) for text in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if text.isdigit()]
    there = named or list(range(torch.cuda.device_count()))
    start = place * machine.devices
    return tuple(there[(start + number) % len(there)] for number in range(machine.devices))
