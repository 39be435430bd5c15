"""What runs in a process of its own: a cell as its command line would run it, or a stage that cells share."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headlab import cell, cli
from headlab.runs import atomic_write

#: Seconds that a process has to leave its work in order when it is told to end.
GRACE = 10


@dataclass(frozen=True)
class Work:
    """A headlab process for submitit to start; ``follow`` is a file that the sweep has locked as long as it lives."""

    verb: str
    arguments: tuple[str, ...]
    folder: Path
    points: tuple[int, ...] = ()
    follow: Path | None = None

    def __call__(self) -> int:
        """Do the work and return headlab's exit code; ``DONE`` is written after all else."""
        if self.follow is not None:
            threading.Thread(target=_follow, args=(self.follow,), daemon=True).start()
        os.environ[cell.VARIABLE] = str(self.folder)
        sys.argv = ["headlab", self.verb, *self.arguments]
        shared = self.verb in ("base", "control")
        code = cli.main([*self.arguments], self._shared) if shared else cli.main([self.verb, *self.arguments])
        if code == 0:
            atomic_write(self.folder / "DONE", "")
        return code

    def checkpoint(self) -> Any:
        """What submitit puts into SLURM's queue again when the time of a job is over: the same, which then goes on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _shared(self, arguments: list[str]) -> int:
        """Train and score a base, or its control at all the points that cells compare with."""
        from headlab.compose import compose
        from headlab.ght import GroupedStages
        from headlab.machine import decide, divided, jobs
        from headlab.measure import Measure

        cfg = compose(arguments, "prune")
        machine = decide(cfg.machine, Path(cfg.runs_dir))
        stages = GroupedStages(cfg, machine)
        base = stages.base()
        measure = Measure(cfg, machine, stages.data(), base)
        later = replace(stages, machine=divided(machine, jobs(cfg.machine, machine)))
        for folder in [base.path] if self.verb == "base" else later.control(base, self.points).values():
            measure.scores(folder)
        return 0


def _follow(lock: Path) -> None:
    """End this process once the sweep has ended, however that happened."""
    with lock.open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(128 + signal.SIGTERM)
