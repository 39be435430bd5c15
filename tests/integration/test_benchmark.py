"""headlab beside stock fairseq at toy size: that it works, not what comes out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from benchmarking import ours, same
from benchmarking.document import RATIOS, ROWS
from benchmarking.turns import Window
from fairseq.trainer import Trainer

from headlab.compose import compose
from headlab.errors import RunError
from headlab.fairseq_plugin.components import TranslationLoss
from headlab.fairseq_plugin.setup import Corpus, Machine
from headlab.methods.gha import GHA

from .conftest import SMALL
from .runner import Headlab

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
MEASURED = ("train-fp32", "gates-all", "gha-a", "translate", "pruned", "paper-speed", "memory")


def benchmark(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "benchmark.py"), "--smoke", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


@pytest.fixture(scope="module")
def folder(headlab: Headlab, first: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus and the finished experiment of the other tests, to be added to."""
    copy = tmp_path_factory.mktemp("benchmark") / "copy"
    shutil.copytree(headlab.folder, copy, ignore=shutil.ignore_patterns("results"))
    return copy


def test_rows_are_measured_and_written(folder):
    experiment = "prune.targets=[3,1] 'prune.rivals={random: [1]}'"
    rows = ",".join(["profile", *MEASURED, "batching", "curve", "reproduce", "again"])
    done = benchmark(folder, *SMALL, "--rows", rows, "--experiment", experiment, "--pairs", "2", "--out", "out")
    assert done.returncode == 0, done.stderr
    out = folder / "out"
    ratios = RATIOS.read(out).set_index("what")
    for name in MEASURED:
        line = ratios.loc[ROWS[name][0]]
        assert line.runs == 2
        assert 0 < line.ratio_min <= line.ratio <= line.ratio_max, name
    assert pd.isna(ratios.loc[ROWS["batching"][0]].ratio)
    for name in ("curve", "reproduce", "again"):
        assert ratios.loc[ROWS[name][0]].ratio > 0, ratios.loc[ROWS[name][0]].note
    assert "25 of 25 translations are the same" in ratios.loc[ROWS["translate"][0]].note
    assert "2 groups in each of 6 layers" in ratios.loc[ROWS["gha-a"][0]].note
    assert "6 of 24 heads" in ratios.loc[ROWS["pruned"][0]].note
    record = json.loads((out / "manifest.json").read_text())
    assert record["rows"].keys() == set(rows.split(","))
    assert record["threads"] == 1
    assert str(folder) not in json.dumps(record)
    profile = pd.read_csv(out / "profile.csv")
    assert set(profile.program) == {"fairseq-train", "headlab train", "fairseq-generate", "headlab translate"}
    assert (profile.groupby("program").share.sum() <= 1.001).all()
    assert "aten::" in (out / "README.md").read_text(encoding="utf-8")


def test_wrong_input_is_refused_in_one_line(folder):
    for arguments, said in ((["--rows", "speed"], "speed"), (["--pairs", "0"], "--pairs"), (["no.such=1"], "no.such")):
        done = benchmark(folder, *SMALL, *arguments)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr


class Alone:
    """A turn that is always one's own."""

    def wait(self) -> None:
        pass

    def done(self, units: int, **found: float) -> None:
        self.found: Window = found


class Once(Alone):
    """A turn for one window."""

    def wait(self) -> None:
        if hasattr(self, "found"):
            raise SystemExit


def test_the_constraint_is_on_all_layers_in_every_update_that_is_timed(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Trainer, "train_step", Trainer.train_step)  # which is replaced for the windows
    (data,) = Path("runs/data").iterdir()
    found, loss = [], GHA.loss

    def counted(method, ntokens):
        value = loss(method, ntokens)
        found.append((method.cfg.map, method.groups, len(method.last), bool(value)))
        return value

    monkeypatch.setattr(GHA, "loss", counted)
    cfg = compose([*SMALL, "prune.target=1"])
    with pytest.raises(SystemExit):
        ours.train(Once(), cfg, Machine("cpu", "fp32", 1), Corpus(data / "bin", "xx", "yy"), 2, grouped="O")
    assert found == [("O", 2, 6, True)] * 2


def test_a_loss_that_is_not_fairseqs_is_noticed(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    cfg = compose([*SMALL, "prune.target=1"])
    (data,) = Path("runs/data").iterdir()

    def found() -> Window:
        turn = Alone()
        same.losses(turn, cfg, Machine("cpu", "fp32", 1), Corpus(data / "bin", "xx", "yy"), tmp_path, 2)
        return turn.found

    assert same.check_losses(**found())
    forward = TranslationLoss.forward

    def scaled(*arguments):
        loss, *rest = forward(*arguments)
        return loss * 1.001, *rest

    monkeypatch.setattr(TranslationLoss, "forward", scaled)
    with pytest.raises(RunError, match="do not compute the same"):
        same.check_losses(**found())
