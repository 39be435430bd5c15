"""What ``headlab prune`` has to train from a base, and what of it waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from headlab.checks import ALONE, targets_of
from headlab.config import Config
from headlab.fairseq_plugin.modelfiles import read_layout
from headlab.ght import GroupedStages
from headlab.parallel import Task
from headlab.runs import RunDir
from headlab.stages import Unfinished


@dataclass(frozen=True)
class Plan:
    """The models of one command.

    ``updates`` after the base by target (None: as many heads as a fixed penalty leaves open), ``wanted`` the pruned
    models (method, target), ``alone`` the models trained from random initialisation beside them (kind, target);
    ``trained_on`` asks for group-constrained models of as many updates as what is cut from them.
    """

    targets: list[int]
    updates: dict[int | None, int]
    wanted: list[tuple[str, int | None]]
    control: bool
    trained_on: bool
    alone: list[tuple[str, int | None]]
    method: str
    base_updates: int
    untuned: bool

    @classmethod
    def of(cls, cfg: Config) -> Plan:
        """The plan of a configuration."""
        targets, method = targets_of(cfg), cfg.method.name
        per_target, finetune = cfg.prune.selection_updates, cfg.prune.finetune_updates
        updates: dict[int | None, int] = {t: per_target * (n + 1) + finetune for n, t in enumerate(targets)}
        if method == "l0" and cfg.method.l0.penalty is not None:
            updates = {None: per_target + finetune}
        own: list[tuple[str, int | None]] = [(method, target) for target in updates]
        beside = [(rival, target) for rival, counts in cfg.prune.rivals.items() for target in counts]
        rivals = [(rival, target) for rival, target in beside if rival not in ALONE]
        kinds = [kind for kind in cfg.prune.controls if kind in ALONE]
        everywhere = [(kind, target) for target in updates for kind in kinds]
        alone = list(dict.fromkeys([*everywhere, *((kind, t) for kind, t in beside if kind in ALONE)]))
        control, on = ("control" in cfg.prune.controls), ("ght" in cfg.prune.controls)
        return cls(targets, updates, [*own, *rivals], control, on, alone, method, cfg.optim.updates, cfg.prune.untuned)

    def left(self, seeds: Sequence[GroupedStages], bases: Sequence[GroupedStages]) -> dict[str, Task]:
        """What of :meth:`training_of` is not finished: for the rest no process has to begin."""
        tasks = self.training_of(seeds, bases)
        looks = self.training_of(*([replace(each, looking=True) for each in group] for group in (seeds, bases)))

        @cache
        def unfinished(name: str) -> bool:
            if any(unfinished(other) for other in tasks[name].needs):
                return True
            try:
                looks[name].function(*looks[name].arguments)
            except Unfinished:
                return True
            return False

        return {
            name: replace(task, needs=tuple(filter(unfinished, task.needs)))
            for name, task in tasks.items()
            if unfinished(name)
        }

    def training_of(self, seeds: Sequence[GroupedStages], bases: Sequence[GroupedStages]) -> dict[str, Task]:
        """Everything to train of all seeds, which wait for nothing of each other: the bases first."""
        tasks = {f"base, seed {each.cfg.seed}": Task(each.base, ()) for each in bases if not each.base_run().done}
        of_each = [self.training(stages, each.base_run()).items() for stages, each in zip(seeds, bases, strict=True)]
        for alike in zip(*of_each, strict=True):  # in turn, so that no seed is left for the end
            for stages, (name, task) in zip(seeds, alike, strict=True):
                seed = f", seed {stages.cfg.seed}"
                first = [f"base{seed}"] if f"base{seed}" in tasks else []
                tasks[name + seed] = replace(task, needs=(*first, *(other + seed for other in task.needs)))
        return tasks

    def on(self, target: int | None) -> list[int]:
        """For how many updates the group-constrained model of ``target`` is trained on."""
        return [self.updates[target]] if self.trained_on else []

    def kinds_alone(self, target: int | None) -> list[str]:
        """The kinds of models that are trained from random initialisation beside the one of ``target``."""
        return [kind for kind, other in self.alone if other == target]

    def trained_alone(self, stages: GroupedStages, base: RunDir, kind: str, target: int | None) -> RunDir:
        """The model of ``kind`` beside the pruned one, trained for as many updates as base and pruning together."""
        pruned = stages.pruned(base, self.method, self.targets, target)
        return stages.alone(kind, read_layout(pruned.path), self.base_updates + self.updates[target])

    def training(self, stages: GroupedStages, base: RunDir) -> dict[str, Task]:
        """Everything to train, what others wait for and what takes longest first."""
        tasks: dict[str, Task] = {}
        before: dict[str, tuple[str, ...]] = {}  # by method: what its next model waits for
        for name in dict.fromkeys(name for name, _ in self.wanted):
            if stages.chains(name):
                tasks[f"select {name}"] = Task(stages.select, (base, name, self.targets))
                before[name] = (f"select {name}",)
            elif stages.looks(name):
                tasks[f"score {name}"] = Task(stages.score, (base, name))
                before[name] = (f"score {name}",)
        if self.control:
            tasks["control"] = Task(stages.control, (base, set(self.updates.values())))
        for kind, target in self.alone:
            arguments = (stages, base, kind, target)
            tasks[f"{kind} {target}"] = Task(self.trained_alone, arguments, (f"{self.method} {target}",))
        for name, target in self.wanted:
            own = f"{name} {target}"
            function = partial(_grouped, points=self.on(target)) if name == "gha" else _pruned
            tasks[own] = Task(function, (stages, base, name, self.targets, target), before.get(name, ()))
            if name == "gha":  # its models share trainings and votes
                before[name] = (own,)
            if self.untuned:
                tasks[f"untuned {own}"] = Task(_untuned, (stages, base, name, self.targets, target), (own,))
        return tasks


def per_seed(cfg: Config) -> list[Config]:
    """The configurations of a command's seeds, one each."""
    return [replace(cfg, seed=seed, seeds=None) for seed in cfg.seeds or [cfg.seed]]


def _pruned(stages: GroupedStages, base: RunDir, method: str, targets: list[int], target: int | None) -> None:
    stages.pruned(base, method, targets, target)


def _untuned(stages: GroupedStages, base: RunDir, method: str, targets: list[int], target: int | None) -> None:
    stages.untuned(base, method, targets, target)


def _grouped(
    stages: GroupedStages, base: RunDir, method: str, targets: list[int], target: int | None, points: list[int]
) -> None:
    stages.pruned(base, method, targets, target)
    if target is not None:
        stages.before(target)
        stages.base_votes(base, target)
    if points:
        stages.trained_on(target, points)
