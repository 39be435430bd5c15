"""Ended anywhere and started again, a run comes to the same models; two processes train like one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from headlab.report.rows import read_rows

from .conftest import FIRST, SMALL, write_digits
from .runner import Done, Headlab

pytestmark = pytest.mark.integration


def test_killed_and_stopped_it_ends_with_the_models_of_an_uninterrupted_run(headlab, first, tmp_path):
    write_digits(tmp_path)
    again = Headlab(tmp_path, SMALL)

    def reached(stage: str, pattern: str):
        return lambda: any((tmp_path / "runs" / stage).glob(pattern))

    done = again.interrupt(signal.SIGKILL, reached("base", "*/checkpoints/10.pt"), *FIRST)
    assert done.code == -signal.SIGKILL
    assert not list((tmp_path / "runs" / "base").glob("*/DONE"))

    done = again.interrupt(signal.SIGTERM, reached("select", "*/checkpoints/5.pt"), *FIRST)
    assert done.code == 128 + signal.SIGTERM
    assert len(done.errors) == 1
    assert "to go on, run the same command again: headlab data=files" in done.errors[0]
    assert "going on" in done.stderr
    assert "Traceback" not in done.stderr

    done = again.interrupt(signal.SIGINT, reached("control", "*/checkpoints/5.pt"), *FIRST)
    assert done.code == 128 + signal.SIGINT

    done = again.interrupt(signal.SIGKILL, reached("pruned", "digits-l0-3-*/metrics.jsonl"), *FIRST)
    assert done.code == -signal.SIGKILL

    done = again(*FIRST)
    assert done.code == 0, done.stderr
    assert done.stderr.count("base/digits") >= 1
    compare(headlab.folder, first, tmp_path)


def test_side_by_side_stopped_and_killed_it_ends_with_the_same_models(headlab, first, tmp_path):
    write_digits(tmp_path)
    again = Headlab(tmp_path, (*SMALL, "machine.jobs=3"))

    def reached(stage: str, pattern: str):
        return lambda: any((tmp_path / "runs" / stage).glob(pattern))

    done = again.interrupt(signal.SIGTERM, reached("control", "*/checkpoints/5.pt"), *FIRST)
    assert done.code == 128 + signal.SIGTERM
    assert len(done.errors) == 1
    assert "Traceback" not in done.stderr
    done = again.interrupt(signal.SIGKILL, reached("pruned", "digits-random-*/metrics.jsonl"), *FIRST)
    assert done.code == -signal.SIGKILL
    done = again(*FIRST)  # the processes of the killed one are gone, and their locks with them
    assert done.code == 0, done.stderr
    compare(headlab.folder, first, tmp_path)


def compare(one: Path, rows: pd.DataFrame, other: Path) -> None:
    """Every model and state, and every row but for times."""
    names = sorted(p.relative_to(other) for p in (other / "runs").rglob("*.safetensors"))
    assert len(names) == 1 + 2 + 2 + 3  # base, control at two points, states at two branches, three pruned models
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    kept = [
        "method",
        "variant",
        "target",
        "bleu",
        "chrf",
        "valid_bleu",
        "delta_bleu",
        "delta_low",
        "p_value",
        "layout",
        "loss",
    ]
    found = read_rows(other / "results" / "adhoc" / "digits-tiny")
    pd.testing.assert_frame_equal(found[kept], rows[kept])


def test_two_processes_train_like_one_with_twice_the_batches(headlab, first):
    quiet = ("model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0", "optim.updates=8",
             "--results", "two")  # fmt: skip
    models = []
    for settings in (("--devices", "2", "--threads", "2"), ("optim.update_freq=2",)):
        before = set((headlab.folder / "runs" / "base").glob("*"))
        arguments = [a for a in SMALL if not (a.startswith("machine.threads") and "--threads" in settings)]
        done: Done = headlab.bare("train", *arguments, *quiet, *settings)
        assert done.code == 0, done.stderr
        (made,) = set((headlab.folder / "runs" / "base").glob("*")) - before
        models.append(load_file(made / "model.safetensors"))
        log = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
        assert [line["update"] for line in log] == list(range(1, 9))
    two, one = models
    for name in one:
        assert (two[name] - one[name]).abs().max() < 1e-4, name


def test_a_base_trained_with_other_threads_is_taken(headlab, first):
    (base,) = {Path(run) for run in first.query("variant == 'base'").run}
    done = headlab("train", "--threads", "2", "--results", "threads")
    assert done.code == 0, done.stderr
    assert f"{base}: finished" in done.stderr
    assert "starting" not in done.stderr
