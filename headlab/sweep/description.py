"""What ``headlab sweep --dry-run`` prints: cells, stages, and what they will take."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from headlab import parallel
from headlab.attention.heads import Layout
from headlab.config import Config, OptimConfig
from headlab.fairseq_plugin.setup import Machine
from headlab.identities import continuation
from headlab.lite import model_shape
from headlab.parallel import Task
from headlab.runs import read_json, write_json
from headlab.scoring.size import parameters
from headlab.sweep.survey import Stage, Survey
from headlab.sweep.units import Share, Unit

#: Bytes of a parameter on disk.
BYTES = 4

#: A checkpoint holds the weights and two moments of the optimiser, and there are two of each training.
CHECKPOINTS = 2 * 3


def describe(units: Sequence[Unit]) -> list[str]:
    """The plan, after measuring what an update takes on this machine."""
    share = Share.of(units[0].cfg)
    at_once = share.parallel or len(units)
    machine = share.machine
    each = f"{machine.device}, {machine.precision}, threads: {machine.threads}"
    lines = [f"{len(units)} processes, {at_once} at once; each: {each}"]
    for unit in units:
        state = "finished" if unit.finished else f"after {' and '.join(unit.needs)}" if unit.needs else "to do"
        lines += [f"{unit.name}: {state}", *(_line(stage) for stage in unit.stages)]
    todo = {stage.run.path: stage for unit in units if not unit.finished for stage in unit.stages if not stage.run.done}
    if not todo:
        return [*lines, "nothing is left to train"]
    stages = list(todo.values())
    return [*lines, _time(units, stages, at_once), _disk(units[0].cfg, machine, stages, at_once)]


def measure(cfg: Config, machine: Machine, optim: OptimConfig, out: Path) -> None:
    """Time an update of ``optim`` and leave the seconds in ``out``; several processes do so side by side."""
    write_json(out, Survey(cfg, machine).seconds_per_update(optim))


def _line(stage: Stage) -> str:
    return f"    {stage.name}: {stage.updates} updates{', finished' if stage.run.done else ''}"


def _time(units: Sequence[Unit], stages: Sequence[Stage], at_once: int) -> str:
    cfg = next(unit.cfg for unit in units if not unit.finished)
    share = Share.of(cfg)
    here = share.parallel or 1  # what runs on other machines is timed alone
    settings = {True: cfg.optim, False: continuation(cfg, cfg.optim.updates)}
    with tempfile.TemporaryDirectory() as folder:
        seconds = {}
        for base in sorted({stage.base for stage in stages}):
            out = {number: Path(folder) / f"{base}-{number}.json" for number in range(here)}
            tasks = {str(n): Task(measure, (cfg, share.machine, settings[base], path)) for n, path in out.items()}
            parallel.run(tasks, here)
            seconds[base] = sum(read_json(path) for path in out.values()) / here
    updates = {base: sum(stage.updates for stage in stages if stage.base == base) for base in seconds}
    hours = sum(updates[base] * seconds[base] for base in seconds) / at_once / 3600
    names = {True: "from random initialisation", False: "from a base"}
    each = " and ".join(f"{updates[base]} updates {names[base]} at {seconds[base]:.3f} s" for base in seconds)
    return f"to train: {each}, {at_once} at once: about {hours:.2f} h, translating not counted"


def _disk(cfg: Config, machine: Machine, stages: Sequence[Stage], at_once: int) -> str:
    data = Survey(cfg, machine).data()
    langs = (cfg.data.source_lang, cfg.data.target_lang)
    sizes = [
        4 + len((data / "bin" / f"dict.{lang}.txt").read_text(encoding="utf-8").splitlines()) for lang in langs
    ]  # fairseq adds four signs
    model = cfg.model
    full = Layout.full(model.encoder_layers, model.decoder_layers, model.heads)
    size = parameters(model_shape(model, *sizes), full, embeddings=True) * BYTES / 1e6
    models = sum(stage.models for stage in stages)
    work = size * CHECKPOINTS * at_once
    return f"disk: {models} models of {size:.1f} MB, {models * size:.0f} MB; {work:.0f} MB of checkpoints meanwhile"
