"""The verbs: which stages a command needs, in order, and the rows that come of them."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from headlab import corpora, parallel
from headlab.checks import scope_of, targets_of
from headlab.config import Config
from headlab.errors import UserError
from headlab.fairseq_plugin.generation import Translator
from headlab.fairseq_plugin.modelfiles import load_model, read_layout
from headlab.fairseq_plugin.setup import Machine
from headlab.machine import decide, jobs
from headlab.measure import Measure, Spent
from headlab.parallel import Task
from headlab.progress import Progress, console, say
from headlab.report import make_report
from headlab.report.rows import Row, write_rows
from headlab.runs import RunDir, manifest, read_json, write_json
from headlab.stages import Stages


def data(cfg: Config) -> RunDir:
    """Build the corpus, or find it built, and show what is in it."""
    run = Stages(cfg, _machine(cfg)).data()
    corpora.show(read_json(run / "report.json"), Console())
    return run


def train(cfg: Config) -> RunDir:
    """Train a base and score it."""
    stages = Stages(cfg, _machine(cfg))
    base = stages.base()
    measure = Measure(cfg, stages.machine, stages.data(), base)
    _record(cfg, [measure.row(base.path, "none", "base", None, Spent(seconds=stages.seconds(base.path)))])
    return base


def prune(cfg: Config) -> None:
    """Base, control, the method's pruned models, its rivals, and the table of them all."""
    started = time.time()
    machine = _machine(cfg)
    base = Stages(cfg, machine).base()
    _check_base(cfg, base)
    side_by_side = jobs(cfg.machine, machine)
    stages = Stages(cfg, replace(machine, threads=max(machine.threads // side_by_side, 1)))
    plan = Plan.of(cfg)
    parallel.run(plan.stages(stages, base), side_by_side)

    measure = Measure(cfg, machine, stages.data(), base)
    control = stages.control(base, set(plan.updates.values())) if plan.control else {}
    runs = {(name, target): stages.pruned(base, name, plan.targets, target) for name, target in plan.wanted}
    scratch = {key: _scratch(stages, plan, runs[key], key[1]).path for key in plan.scratch}
    folders = [base.path, *control.values(), *(run.path for run in runs.values()), *scratch.values()]
    scoring = replace(measure, machine=stages.machine)
    parallel.run({f"scoring {folder}": Task(scoring.scores, (folder,)) for folder in folders}, side_by_side)
    measure.speeds(folders)

    base_seconds = stages.seconds(base.path)
    rows = [measure.row(base.path, "none", "base", None, Spent(seconds=base_seconds))]
    for updates, folder in sorted(control.items()):
        seconds = base_seconds + stages.seconds(folder.parent) * updates / max(control)
        rows.append(measure.row(folder, "none", f"control-u{updates}", None, Spent(finetune=updates, seconds=seconds)))
    for (name, target), run in runs.items():
        updates = plan.updates[target]
        seconds = base_seconds + stages.seconds(run.path)
        spent = Spent(0, updates, seconds)
        if stages.trains(name):
            selection = updates - cfg.prune.finetune_updates
            share = selection / (cfg.prune.selection_updates * max(len(plan.targets), 1))
            seconds += stages.seconds(stages.select(base, name, plan.targets).path) * share
            spent = Spent(selection, cfg.prune.finetune_updates, seconds)
        against = control.get(updates), f"control-u{updates}"
        rows.append(measure.row(run.path, name, cfg.variant, target, spent, *against))
        if (name, target) in scratch:
            folder = scratch[name, target]
            spent = Spent(0, updates, stages.seconds(folder))
            kept = read_layout(folder).count(scope_of(cfg))
            rows.append(measure.row(folder, "none", "scratch", kept, spent, *against))
    _record(cfg, rows, started, machine, {"base": base / "model.safetensors"})


@dataclass(frozen=True)
class Plan:
    """What ``headlab prune`` has to make from a base.

    ``updates`` after the base by target (None: as many heads as a fixed penalty leaves open), ``wanted`` the models
    (method, target), ``scratch`` those of them whose layout is also trained from random initialisation.
    """

    targets: list[int]
    updates: dict[int | None, int]
    wanted: list[tuple[str, int | None]]
    control: bool
    scratch: list[tuple[str, int | None]]

    @classmethod
    def of(cls, cfg: Config) -> Plan:
        """The plan of a configuration."""
        targets, method = targets_of(cfg), cfg.method.name
        per_target, finetune = cfg.prune.selection_updates, cfg.prune.finetune_updates
        updates: dict[int | None, int] = {t: per_target * (n + 1) + finetune for n, t in enumerate(targets)}
        if method == "l0" and cfg.method.l0.penalty is not None:
            updates = {None: per_target + finetune}
        own: list[tuple[str, int | None]] = [(method, target) for target in updates]
        rivals = [(rival, target) for rival, counts in cfg.prune.rivals.items() for target in counts]
        scratch = own if "scratch" in cfg.prune.controls else []
        return cls(targets, updates, [*own, *rivals], "control" in cfg.prune.controls, scratch)

    def stages(self, stages: Stages, base: RunDir) -> dict[str, Task]:
        """Everything to train; the longest that nothing waits for come first."""
        tasks: dict[str, Task] = {}
        for name in {name: None for name, _ in self.wanted if stages.trains(name)}:
            tasks[f"select {name}"] = Task(stages.select, (base, name, self.targets))
        if self.control:
            tasks["control"] = Task(stages.control, (base, set(self.updates.values())))
        for name, target in self.wanted:
            needs = (f"select {name}",) if stages.trains(name) else ()
            tasks[f"pruned {name} {target}"] = Task(stages.pruned, (base, name, self.targets, target), needs)
        for name, target in self.scratch:
            tasks[f"scratch {target}"] = Task(
                _scratch_of, (stages, self, base, name, target), (f"pruned {name} {target}",)
            )
        return tasks


def _scratch_of(stages: Stages, plan: Plan, base: RunDir, method: str, target: int | None) -> None:
    _scratch(stages, plan, stages.pruned(base, method, plan.targets, target), target)


def _scratch(stages: Stages, plan: Plan, run: RunDir, target: int | None) -> RunDir:
    """The layout of ``run`` trained from random initialisation, for as many updates as base and pruning together."""
    return stages.scratch(read_layout(run.path), stages.cfg.optim.updates + plan.updates[target])


def _check_base(cfg: Config, base: RunDir) -> None:
    """A base that was pruned itself may have fewer heads than its shape."""
    scope = scope_of(cfg)
    count = read_layout(base.path).count(scope)
    if too_many := [target for target in targets_of(cfg) if target > count]:
        numbers = ", ".join(map(str, too_many))
        raise UserError(f"target {numbers}: the base {base} has {count} heads within {', '.join(scope)}; choose fewer")


def evaluate(run: Path, cfg: Config) -> None:
    """Translate the test set with the model of a finished run and print its scores."""
    stages = Stages(cfg, _machine(cfg))
    measure = Measure(cfg, stages.machine, stages.data(), None)
    row = measure.row(run, "", "", None, Spent())
    layout = read_layout(run)
    print(f"run      {run}")
    print(f"heads    {layout.count()} of {layout.total()}: {layout}")
    print(f"BLEU     {row.bleu:.2f}  {row.bleu_signature}")
    print(f"chrF     {row.chrf:.2f}  {row.chrf_signature}")


def translate(run: Path, lines: list[str], cfg: Config) -> list[str]:
    """Translate ``lines`` with the model of a finished run."""
    model, task, pieces = load_model(run, cfg.model, cfg.data.source_lang, cfg.data.target_lang, _machine(cfg))
    with Progress("translating", len(lines)) as progress:
        return Translator(model, task, pieces, cfg.score)(lines, progress.at)


def _machine(cfg: Config) -> Machine:
    return decide(cfg.machine, Path(cfg.runs_dir))


def _base_name(cfg: Config) -> list[str]:
    """What tells results of the base that ``base=`` names from those of other bases."""
    if cfg.base is None:
        return []
    path = Path(cfg.base).resolve()
    return [path.parent.name, path.name] if path.name.startswith("at-") else [path.name]


def _made(run: Path) -> dict[str, Any]:
    """Commit, wall time and memory of the run that a model folder belongs to."""
    record = read_json((run if (run / "manifest.json").exists() else run.parent) / "manifest.json")
    return {key: record[key] for key in ("git", "wall_seconds", "peak_memory_mb", "threads")}


def _record(
    cfg: Config, rows: list[Row], started: float | None = None, machine: Machine | None = None,
    inputs: dict[str, Path] | None = None,
) -> None:  # fmt: skip
    """Write the rows, the table and figures made of them, and where they come from."""
    folder = Path(cfg.results_dir) / cfg.results
    if cfg.results == "adhoc":  # rows of different corpora, shapes and named bases are kept apart
        folder = folder / "-".join([cfg.data.name, cfg.model.name, *_base_name(cfg)])
    write_rows(folder, rows)
    if started is not None and machine is not None:
        record = asdict(cfg)
        record["machine"] |= asdict(machine)
        repo = Path(__file__).parents[1]
        name = f"manifest{f'-{cfg.variant}' if cfg.variant else ''}.json"
        result = manifest(sys.argv[1:], record, inputs or {}, started, repo if (repo / ".git").exists() else None)
        # This command may have found its runs finished: each says for itself which code made it, and how long it took.
        result["runs"] = {row.run: _made(Path(row.run)) for row in rows}
        write_json(folder / name, result)
    for path in make_report(folder):
        say(str(path))
    console.print((folder / "table.md").read_text(encoding="utf-8"), markup=False)
