"""What a sweep has to start: each shared base and control once, before the cells that need it, then the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from headlab import identities
from headlab.checks import scope_of
from headlab.config import Config
from headlab.fairseq_plugin.setup import Machine
from headlab.machine import decide, divided, jobs
from headlab.plan import Plan
from headlab.report.orders import scored_keys
from headlab.report.resamples import resampled_keys
from headlab.report.rows import row_keys
from headlab.runs import RunDir, read_json
from headlab.sweep.cells import Cell
from headlab.sweep.survey import Stage, Survey


@dataclass
class Unit:
    """One process: a cell, or a stage (``base``, ``control``) that several cells share.

    ``stages`` are those that it makes or finds finished, ``points`` the updates at which a control is measured.
    """

    name: str
    verb: str  # train | prune | base | control
    folder: Path  # what it leaves for the sweep: log, progress.json, rows.json, DONE
    arguments: tuple[str, ...]
    cfg: Config
    machine: Machine
    needs: tuple[str, ...] = ()
    stages: list[Stage] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def updates(self) -> int:
        """Updates that are yet to be trained."""
        return 0 if self.finished else sum(stage.updates for stage in self.stages if not stage.run.done)


@dataclass(frozen=True)
class Share:
    """What every process of a sweep gets of the machine.

    It follows from the configuration and from what was decided for the folder of runs, not from the number of cells:
    threads are part of a run's identity, and a part of a sweep has to find the runs of the whole.
    """

    machine: Machine
    parallel: int | None  # processes at once; None: all

    @classmethod
    def of(cls, cfg: Config) -> Share:
        """The share that ``launcher`` and ``machine`` of a configuration give."""
        launcher = cfg.launcher
        if launcher.name == "slurm":  # another machine than this one: nothing can be found out about it here
            device = ("cuda" if launcher.gpus else "cpu") if cfg.machine.device == "auto" else cfg.machine.device
            automatic = "bf16" if device == "cuda" else "fp32"
            precision = automatic if cfg.machine.precision == "auto" else cfg.machine.precision
            threads = cfg.machine.threads or launcher.cpus
            return cls(Machine(device, precision, threads, cfg.machine.devices), launcher.parallel)
        whole = decide(cfg.machine, Path(cfg.runs_dir))
        parallel = launcher.parallel or jobs(replace(cfg.machine, jobs=None), whole)
        return cls(divided(whole, parallel), parallel)


def units_of(cells: Sequence[Cell]) -> list[Unit]:
    """Bases first, then controls, then the cells; what is finished is marked.

    The corpora have to be there.
    """
    bases: dict[str, Unit] = {}
    controls: dict[str, Unit] = {}
    own: list[Unit] = []
    for cell in cells:
        unit = _cell(cell)
        survey = Survey(cell.cfg, unit.machine)
        if cell.verb == "train":
            survey.of_train()
        elif not unit.finished:
            base = survey.base()
            later = replace(survey, machine=divided(unit.machine, cell.cfg.machine.jobs or 1))
            needs = [_base(bases, unit, base)]
            if (plan := Plan.of(cell.cfg)).control:
                needs.append(_control(controls, unit, later, base, set(plan.updates.values())))
            survey.found.clear()
            later.of_prune(base)
            survey.found.pop(base.path, None)
            unit.needs = tuple(needs)
        unit.stages = [stage for stage in survey.found.values() if stage.updates]
        own.append(unit)
    for unit in controls.values():
        _find_control(unit)
    shared = {**bases, **controls}
    for unit in [*shared.values(), *own]:
        unit.needs = tuple(name for name in unit.needs if not shared[name].finished)
    return [*shared.values(), *own]


def _cell(cell: Cell) -> Unit:
    machine = Share.of(cell.cfg).machine
    cfg = asdict(cell.cfg)
    given = {key: value for key, value in cfg.items() if key not in ("launcher", "machine")}
    identity = {"verb": cell.verb, "config": given, "machine": asdict(machine), "versions": identities.VERSIONS}
    name = f"{cell.cfg.data.name}-{cell.cfg.method.name}-seed{cell.cfg.seed}"
    folder = RunDir(Path(cell.cfg.runs_dir), "cell", name, identity).path
    unit = Unit(cell.label, cell.verb, folder, arguments(cell, machine), cell.cfg, machine)
    unit.finished = is_finished(folder)
    return unit


def arguments(cell: Cell, machine: Machine) -> tuple[str, ...]:
    """The overrides of a cell, with its share of the machine."""
    share = {f"machine.{key}": str(value) for key, value in asdict(machine).items()}
    share["machine.jobs"] = str(cell.cfg.machine.jobs or 1)
    kept = [text for text in cell.overrides if text.partition("=")[0] not in share and not text.startswith("launcher")]
    return (*kept, *(f"{key}={value}" for key, value in share.items()))


def is_finished(folder: Path) -> bool:
    """Whether a cell is done, what it tells of its models is in the results, and the runs of these are complete."""
    if not (folder / "DONE").is_file():
        return False
    record = read_json(folder / "rows.json")
    results = Path(record["folder"])
    written, sampled = ({key[1:] for key in keys(results)} for keys in (row_keys, resampled_keys))
    scored = {key[1:] for key in scored_keys(results)}
    for *values, run in record["rows"]:
        method, variant, scope, target, seed = key = tuple("" if value is None else str(value) for value in values)
        cut = method != "none" and target and "untuned" not in variant.split("-")
        complete = key in written and key in sampled and (not cut or (method, variant, scope, seed) in scored)
        if not (complete and (Path(run) / "DONE").is_file()):
            return False
    return True


def _base(bases: dict[str, Unit], cell: Unit, base: RunDir) -> str:
    name = f"base {base.path.name}"
    if name not in bases:
        folder = cell.folder.with_name(f"base-{base.path.name}")
        unit = Unit(name, "base", folder, cell.arguments, cell.cfg, cell.machine)
        unit.stages = [Stage(base, cell.cfg.optim.updates, 1, True)]
        unit.finished = base.done and (base / "scores.json").exists()
        bases[name] = unit
    return name


def _control(controls: dict[str, Unit], cell: Unit, survey: Survey, base: RunDir, points: set[int]) -> str:
    """Add the points of a cell to the control that it shares with others."""
    cfg = cell.cfg
    same = {"base": base.path.name, "optim": asdict(identities.continuation(cfg, 0)), "scope": scope_of(cfg)}
    run = RunDir(Path(cfg.runs_dir), "cell", f"control-{cfg.data.name}", {**same, "machine": asdict(survey.machine)})
    name = f"control of {base.path.name}, {' '.join(scope_of(cfg))}"
    while name in controls and controls[name].folder != run.path:
        name += "'"
    unit = controls.setdefault(name, Unit(name, "control", run.path, cell.arguments, cfg, cell.machine))
    unit.needs = (f"base {base.path.name}",)
    unit.points = sorted({*unit.points, *points})
    return name


def _find_control(unit: Unit) -> None:
    """Whether a shared control is finished at all its points, and scored."""
    survey = Survey(unit.cfg, unit.machine)
    base = survey.base()
    later = replace(survey, machine=divided(unit.machine, unit.cfg.machine.jobs or 1), found={})
    folders = later.control(base, unit.points)
    unit.stages = [stage for stage in later.found.values() if stage.updates]
    unit.finished = all((folder / "scores.json").exists() for folder in folders.values())
