"""What a sweep has to start, on corpora and bases that are not made: paths follow from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from headlab.report.orders import HeadScore, write_scores
from headlab.report.resamples import Resamples, write_resamples
from headlab.report.rows import Row, write_rows
from headlab.runs import write_json
from headlab.sweep.cells import cells_of
from headlab.sweep.survey import _size
from headlab.sweep.units import Share, Unit, is_finished, units_of

COMMON = """
    data=files data.source_lang=xx data.target_lang=yy
    data.files.train=train data.files.valid=valid data.files.test=test
    model=tiny optim=tiny prune.selection_updates=4 prune.finetune_updates=3
    machine.device=cpu machine.precision=fp32
    """.split()  # noqa: SIM905 - as on a command line


@pytest.fixture(autouse=True)
def _corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "valid", "test"):
        for lang in ("xx", "yy"):
            Path(f"{split}.{lang}").write_text("1 2 3\n")
    write_json(Path("runs/machine.json"), {"device": "cpu", "precision": "fp32", "threads": 8})


def units(*overrides: str, verb: str = "prune") -> list[Unit]:
    return units_of(cells_of(verb, [*COMMON, *overrides]))


def test_a_base_and_a_control_are_trained_once_for_all_that_share_them() -> None:
    found = units("method=l0,random", "seed=1,2", "prune.targets=[4,2],[1]")
    assert [unit.verb for unit in found] == ["base"] * 2 + ["control"] * 2 + ["prune"] * 8
    for seed, (base, control) in enumerate(zip(found[:2], found[2:4], strict=True), start=1):
        assert (base.cfg.seed, control.cfg.seed) == (seed, seed)
        assert control.needs == (base.name,)
        assert control.points == [7, 11]  # 4 + 3 and 2 · 4 + 3 updates: after one target and after two
        own = [unit for unit in found[4:] if unit.cfg.seed == seed]
        assert [unit.needs for unit in own] == [(base.name, control.name)] * 4
    # the base and the control of a seed; each cell: gates over all its targets and fine-tuning, or fine-tuning alone
    counts = {unit.name: unit.updates for unit in found if unit.cfg.seed == 1}
    assert list(counts.values())[:2] == [100, 11]
    assert counts["method=l0 seed=1 targets=[4,2]"] == 2 * 4 + 2 * 3
    assert counts["method=l0 seed=1 targets=[1]"] == 4 + 3
    assert counts["method=random seed=1 targets=[4,2]"] == (4 + 3) + (2 * 4 + 3)
    assert counts["method=random seed=1 targets=[1]"] == 4 + 3


def test_a_group_constrained_model_that_is_trained_on_is_counted() -> None:
    counts = [
        next(unit.updates for unit in units("method=gha", "prune.target=12", controls) if unit.verb == "prune")
        for controls in ("prune.controls=[control]", "prune.controls=[control,ght]")
    ]
    assert counts[1] - counts[0] == 4 + 3  # as many as what is cut from it


def test_controls_of_other_scopes_or_rates_are_others_and_trainings_share_nothing() -> None:
    found = units("method=random", "prune.target=2", "prune.scope=[enc-self],[enc-dec]", "prune.lr=0.1,0.2")
    assert [unit.verb for unit in found] == ["base", *["control"] * 4, *["prune"] * 4]
    assert [unit.needs[1] for unit in found[5:]] == [unit.name for unit in found[1:5]]
    assert not any("control" in unit.verb for unit in units("prune.target=2,1", "prune.controls=[]"))
    found = units("seed=1,2", "method=l0,gha", verb="train")
    assert [(unit.verb, unit.needs, unit.updates) for unit in found] == [("train", (), 100)] * 4


def test_threads_do_not_depend_on_how_many_cells_there_are() -> None:
    many, one = units("seed=1,2,3", "prune.target=2"), units("seed=2", "prune.target=2")
    cell = next(unit for unit in many if unit.verb == "prune" and unit.cfg.seed == 2)
    assert cell.folder == one[-1].folder
    assert cell.arguments == one[-1].arguments
    assert cell.machine.threads == 2  # 8 threads, 4 at once
    assert {"machine.threads=2", "machine.jobs=1"} <= set(cell.arguments)
    of = lambda *more: Share.of(cells_of("prune", [*COMMON, "prune.target=2", *more])[0].cfg)  # noqa: E731
    assert (of("launcher.parallel=2").machine.threads, of("launcher.parallel=2").parallel) == (4, 2)
    assert (of("machine.threads=2").machine.threads, of("machine.threads=2").parallel) == (1, 2)
    slurm = of("launcher=slurm", "machine.device=auto", "machine.precision=auto", "launcher.cpus=6")
    machine = slurm.machine
    assert (machine.device, machine.precision, machine.threads, slurm.parallel) == ("cuda", "bf16", 6, None)


def test_a_cell_is_finished_when_its_rows_and_their_runs_are_there() -> None:
    (*_, unit) = units("method=random", "prune.target=2")
    run = Path("runs/pruned/x")
    assert not is_finished(unit.folder)
    rows = [["random", "", "enc-self", 2, 1, str(run)], ["none", "base", "enc-self", None, 1, str(run)]]
    write_json(unit.folder / "rows.json", {"folder": "results/x", "rows": rows})
    write_rows(
        Path("results/x"), [Row("x", "random", "", "enc-self", 2, 1), Row("x", "none", "base", "enc-self", None, 1)]
    )
    for path in (unit.folder / "DONE", run / "DONE"):
        assert not is_finished(unit.folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    results = Path("results/x")
    told = ["random", "", "enc-self", 2, 1], ["none", "base", "enc-self", None, 1]
    sampled = [Resamples("x", *key, draws="", bleu=1.0, resampled="1.0") for key in told]
    scored = [HeadScore("x", "random", "", "enc-self", None, 1, "enc-self", 0, 0, 0.5)]
    assert not is_finished(unit.folder)  # what is missing beside the rows has to be made again
    write_resamples(results, sampled)
    assert not is_finished(unit.folder)
    write_scores(results, scored)
    assert is_finished(unit.folder)
    (results / "resamples.csv").unlink()
    assert not is_finished(unit.folder)
    write_resamples(results, sampled)
    assert [(one.name, one.finished, one.updates) for one in units("method=random", "prune.target=2")] == [
        ("prune", True, 0)
    ]
    rows[0][3] = 1
    write_json(unit.folder / "rows.json", {"folder": "results/x", "rows": rows})
    assert not is_finished(unit.folder)


@pytest.mark.parametrize(("method", "updates"), [("l0", 100), ("gradient", 400)])
def test_what_is_not_spent_on_selecting_is_counted_as_fine_tuning(method, updates):
    identity = {"name": "pruned", "method": method, "selection": "a run", "branch": 300, "stop": 400}
    assert _size(identity, lambda name: name == "l0") == (updates, 1, False)
    assert _size({**identity, "start": 350}, lambda name: True) == (50, 1, False)
