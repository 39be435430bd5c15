"""The verbs: which stages a command needs, in order, and the rows that come of them."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from headlab import cell, corpora, parallel
from headlab.checks import label_of, scope_of, targets_of
from headlab.config import Config
from headlab.errors import UserError
from headlab.fairseq_plugin.generation import Translator
from headlab.fairseq_plugin.modelfiles import load_model, read_layout
from headlab.fairseq_plugin.setup import Machine
from headlab.ght import GroupedStages
from headlab.machine import decide, divided, jobs
from headlab.measure import Measure, Spent, run_of
from headlab.parallel import Task
from headlab.plan import Plan, per_seed
from headlab.progress import Progress, console, say
from headlab.report import make_report
from headlab.report.heads import HeadRow, heads_of, write_heads
from headlab.report.orders import HeadScore, head_scores, write_scores
from headlab.report.resamples import write_resamples
from headlab.report.rows import Row, copy_ablated, write_rows
from headlab.runs import RunDir, manifest, read_json, write_json
from headlab.stages import Stages


def data(cfg: Config) -> RunDir:
    """Build the corpus, or find it built, and show what is in it."""
    run = Stages(cfg, _machine(cfg)).data()
    corpora.show(read_json(run / "report.json"), Console())
    return run


def train(cfg: Config) -> RunDir:
    """Train a base (with method gha a group-constrained one) and score it."""
    stages = GroupedStages(cfg, _machine(cfg))
    targets = targets_of(cfg)
    found = stages.ght(targets[0] if targets else None) if cfg.method.name == "gha" else None
    run = found or stages.base()
    measure = Measure(cfg, stages.machine, stages.data(), None)
    label = "none", f"base-{cfg.variant}" if cfg.variant else "base"
    if found is not None:
        label = "gha", stages.variant("gha", targets[0] if targets else None, unpruned=True)
    _record(cfg, [(measure, [measure.row(run.path, *label, None, Spent(seconds=stages.seconds(run.path)))])])
    return run


def prune(cfg: Config) -> None:
    """Base, control, the method's pruned models, its rivals, and the table of them all; of every seed."""
    started = time.time()
    machine = _machine(cfg)
    side_by_side = jobs(cfg.machine, machine)
    shared = divided(machine, side_by_side)
    plan = Plan.of(cfg)
    first = GroupedStages(cfg, shared)
    first.data()
    seeds = [replace(first, cfg=one) for one in per_seed(cfg)]
    bases = seeds
    if len(seeds) == 1:
        bases = [replace(seeds[0], machine=machine)]
        bases[0].base()  # with all threads, since nothing else is to be done
    if cfg.base is not None:
        _check_base(cfg, bases[0].base())
    parallel.run(plan.left(seeds, bases), side_by_side)

    found = [_measured(stages, machine, each.base(), plan) for stages, each in zip(seeds, bases, strict=True)]
    models = {f"base{_of_seed(each.cfg)}": each.base() / "model.safetensors" for each in bases}
    _record(cfg, found, started, machine, models)


def _measured(stages: GroupedStages, machine: Machine, base: RunDir, plan: Plan) -> tuple[Measure, list[Row]]:
    """Score and time the models of one seed, which are trained: their rows."""
    cfg, side_by_side = stages.cfg, jobs(stages.cfg.machine, machine)
    control = stages.control(base, set(plan.updates.values())) if plan.control else {}
    runs = {(name, target): stages.pruned(base, name, plan.targets, target) for name, target in plan.wanted}
    untuned = {key: stages.untuned(base, key[0], plan.targets, key[1]) for key in runs} if plan.untuned else {}
    grouped = {key: ght for key in runs if key[0] == "gha" and (ght := stages.before(key[1])) is not None}
    on = {key: stages.trained_on(key[1], plan.on(key[1])) for key in grouped if plan.trained_on}
    alone = {key: plan.trained_alone(stages, base, *key) for key in plan.alone}
    models = [base, *runs.values(), *grouped.values(), *alone.values()]
    controls = [*control.values(), *(folder for found in on.values() for folder in found.values())]
    folders = list(dict.fromkeys([*(run.path for run in models), *controls]))
    measure = Measure(cfg, machine, stages.data(), base)
    scoring = replace(measure, machine=stages.machine)
    translated = [*folders, *(run.path for run in untuned.values())]  # whose speed is that of the tuned ones
    unscored = [folder for folder in translated if scoring.known_scores(folder) is None]
    parallel.run({f"scoring {folder}": Task(scoring.scores, (folder,)) for folder in unscored}, side_by_side)
    measure.speeds(folders)

    base_seconds = stages.seconds(base.path)
    rows = [measure.row(base.path, "none", "base", None, Spent(seconds=base_seconds))]
    votes: list[HeadRow] = []
    orders: list[HeadScore] = []
    for updates, folder in sorted(control.items()):
        whole = max(read_json(folder.parent / "identity.json")["points"])  # of a control that other cells share too
        seconds = base_seconds + stages.seconds(folder.parent) * updates / whole
        rows.append(measure.row(folder, "none", f"control-u{updates}", None, Spent(finetune=updates, seconds=seconds)))
    for (name, target), run in runs.items():
        updates = plan.updates[target]
        against = control.get(updates), f"control-u{updates}"
        if (name, target) in grouped:
            ght, label = grouped[name, target], stages.variant(name, target, unpruned=True)
            spent = Spent(seconds=stages.seconds(ght.path))
            rows.append(measure.row(ght.path, name, label, None, spent, base.path, "base"))
            for stop, folder in on.get((name, target), {}).items():
                label = stages.variant(name, target, unpruned=True, updates=stop)
                spent = Spent(finetune=stop, seconds=stages.seconds(ght.path) + stages.seconds(folder.parent))
                rows.append(measure.row(folder, name, label, None, spent, *against))
        spent = stages.spent(base, name, plan.targets, target, run)
        tuned = measure.row(run.path, name, stages.variant(name, target), target, spent, *against)
        rows.append(tuned)
        orders += head_scores(tuned, stages.scores(name, run), stages.passes(run), stages.trains(name))
        if (name, target) in untuned:
            cut, label = untuned[name, target], stages.variant(name, target, tuned=False)
            spent = stages.spent(base, name, plan.targets, target, cut, tuned=False)
            rows.append(measure.row(cut.path, name, label, target, spent, base.path, "base"))
        if name == "gha" and target is not None:
            votes += heads_of(tuned, target, read_json(run / "votes.json"))
            votes += heads_of(rows[0], target, read_json(stages.base_votes(base, target) / "votes.json"))
        kept = read_layout(run.path).count(scope_of(cfg))
        for kind in plan.kinds_alone(target) if name == cfg.method.name else ():
            other = alone[kind, target].path
            spent = Spent(0, updates, stages.seconds(other))
            rows.append(measure.row(other, "none", kind, kept, spent, *against))
    write_scores(_folder(cfg), orders)
    if votes:
        write_heads(_folder(cfg), votes)
    return measure, rows


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


def _folder(cfg: Config) -> Path:
    """Where rows go; without an experiment those of different corpora, shapes and named bases are kept apart."""
    folder = Path(cfg.results_dir) / cfg.results
    return folder / "-".join([cfg.data.name, cfg.model.name, *_base_name(cfg)]) if cfg.results == "adhoc" else folder


def _made(run: Path) -> dict[str, Any]:
    """Commit, wall time and memory of the run that a model folder belongs to."""
    record = read_json(run_of(run) / "manifest.json")
    return {key: record[key] for key in ("git", "wall_seconds", "peak_memory_mb", "threads")}


def _of_seed(cfg: Config) -> str:
    """What the names of files of another seed than 1, or of several, end in."""
    seeds = cfg.seeds or [cfg.seed]
    return "" if seeds == [1] else "-seed" + "-".join(map(str, seeds))


def _record(
    cfg: Config, measured: list[tuple[Measure, list[Row]]], started: float | None = None,
    machine: Machine | None = None, inputs: dict[str, Path] | None = None,
) -> None:  # fmt: skip
    """Write the rows of every seed, the table and figures made of them, and where they come from."""
    folder, own = _folder(cfg), cell.folder()
    rows = [row for _, of_seed in measured for row in of_seed]
    write_rows(folder, rows)
    write_resamples(folder, [measure.resamples(row) for measure, of_seed in measured for row in of_seed])
    if own is not None:
        keys = [[row.method, row.variant, row.scope, row.target, row.seed, row.run] for row in rows]
        write_json(own / "rows.json", {"folder": str(folder), "rows": keys})
    if cfg.ablation_of is not None:
        copy_ablated(Path(cfg.results_dir) / cfg.ablation_of, folder)
    if started is not None and machine is not None:
        record = asdict(cfg)
        record["machine"] |= asdict(machine)
        repo = Path(__file__).parents[1]
        label = label_of(cfg)
        name = f"manifest{f'-{label}' if label else ''}{_of_seed(cfg)}.json"
        result = manifest(sys.argv[1:], record, inputs or {}, started, repo if (repo / ".git").exists() else None)
        # This command may have found its runs finished: each says for itself which code made it, and how long it took.
        result["runs"] = {row.run: _made(Path(row.run)) for row in rows}
        write_json(own / "manifest.json" if own is not None else folder / name, result)
    if own is None:
        report(folder)


def report(folder: Path) -> None:
    """Make table and figures of the rows in ``folder`` and show the table."""
    for path in make_report(folder):
        say(str(path))
    console.print((folder / "table.md").read_text(encoding="utf-8"), markup=False)
