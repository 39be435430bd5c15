"""Which stages a command has, how long each trains and what is finished of them: found out without making any."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headlab.checks import scope_of, targets_of
from headlab.config import OptimConfig
from headlab.errors import UserError
from headlab.fairseq_plugin.training import Job, Span, fit
from headlab.ght import GroupedStages
from headlab.plan import Plan
from headlab.runs import RunDir

#: Updates that one update is timed over, and those before them.
TIMED, BEFORE = 20, 2


@dataclass(frozen=True)
class Stage:
    """A run directory that there is or will be: updates of its training, models it holds."""

    run: RunDir
    updates: int
    models: int
    base: bool  # trained from random initialisation, with the batches of the base

    @property
    def name(self) -> str:
        """``stage/name-hash``."""
        return f"{self.run.path.parent.name}/{self.run.path.name}"


@dataclass(frozen=True)
class Survey(GroupedStages):
    """Stages of which none is made: what they would be is collected in ``found``.

    Before its base is trained, the name of what follows is made up: it depends on the weights of the base.
    """

    found: dict[Path, Stage] = field(default_factory=dict)

    def of_prune(self, base: RunDir) -> None:
        """Find the models that ``headlab prune`` makes of ``base``, without the control."""
        plan = Plan.of(self.cfg)
        for name, target in plan.wanted:
            try:
                self.pruned(base, name, plan.targets, target)
            except (UserError, OSError):  # needs the file of a stage before it, which is yet to be made
                updates = self.cfg.prune.finetune_updates if self.trains(name) else plan.updates[target]
                self._guess("pruned", f"{name}-{target}", updates, base=False)
            if name == "gha" and plan.trained_on:
                self.trained_on(target, plan.on(target))
        for kind, target in plan.alone:
            try:
                run = self.pruned(base, plan.method, plan.targets, target)
                if run.done:
                    plan.trained_alone(self, base, kind, target)
                    continue
            except (UserError, OSError):
                pass
            self._guess("scratch", f"{kind}-{target}", plan.base_updates + plan.updates[target], base=True)

    def of_train(self) -> None:
        """Find the model that ``headlab train`` makes."""
        targets = targets_of(self.cfg)
        if self.cfg.method.name != "gha" or self.ght(targets[0] if targets else None) is None:
            self.base()

    def seconds_per_update(self, optim: OptimConfig) -> float:
        """What an update of ``optim`` takes here: a training of 22 updates against one of 2, both from nothing.

        One more before them has what only the first training of a process takes time for.
        """
        quiet = replace(optim, validate_every=10**9, checkpoint_every=10**9, log_every=10**9)
        spent = []
        for updates in (BEFORE, BEFORE, BEFORE + TIMED):
            model, task, _ = self._fresh(None)
            with tempfile.TemporaryDirectory() as folder:
                span = Span(0, updates)
                began = time.monotonic()
                fit(Job("timing", model, task, quiet, self.cfg.seed, self.machine, Path(folder), span))
                spent.append(time.monotonic() - began)
        return max(spent[2] - spent[1], 0.0) / TIMED

    @contextmanager
    def _making(self, run: RunDir, identity: dict[str, Any]) -> Iterator[float | None]:
        updates, models, base = _size(identity, self.trains)
        self.found.setdefault(run.path, Stage(run, updates, models, base))
        yield None

    def _continuation(self, stage: str, base: RunDir, optim: OptimConfig, **parts: Any) -> dict[str, Any]:
        if base.done:
            return super()._continuation(stage, base, optim, **parts)
        made_up = {"base": base.path.name, "optim": asdict(optim), "scope": list(scope_of(self.cfg)), "made_up": True}
        return {"stage": "select" if stage == "select" else "continue", "name": stage, **made_up, **parts}

    def _guess(self, stage: str, label: str, updates: int, base: bool) -> None:
        identity = {"stages": sorted(str(path) for path in self.found), "label": label, "made_up": True}
        run = RunDir(Path(self.cfg.runs_dir), stage, f"{self.cfg.data.name}-{label}", identity)
        self.found[run.path] = Stage(run, updates, 1, base)


def _size(identity: dict[str, Any], trains: Callable[[str], bool]) -> tuple[int, int, bool]:
    """Updates of a stage, models in its folder, and whether it is trained from random initialisation.

    What a method that does not train spends on no selection it spends on fine-tuning.
    """
    stage, name = identity.get("stage"), identity.get("name")
    if stage == "base":
        return identity["optim"]["updates"], 1, True
    if stage == "select":
        branches = max(len(identity["targets"]), 1)
        return identity["per_target"] * branches, branches, False
    if name == "control":
        return max(identity["points"]), len(identity["points"]), False
    if name == "pruned":
        begins = identity["start"] if "start" in identity else identity["branch"] * trains(identity["method"])
        return identity["stop"] - begins, 1, False
    if name == "untuned":
        return 0, 1, False
    return 0, 0, False
