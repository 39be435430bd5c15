"""Sweeps through the real command line: shared stages, failures, what is skipped, and how a stopped one goes on."""

from __future__ import annotations

import fcntl
import json
import re
import signal
from pathlib import Path

import pytest

from headlab.report.rows import read_rows

from .conftest import SMALL, write_digits
from .runner import Headlab

pytestmark = pytest.mark.integration

SWEEP = ("sweep", "method=random", "seed=1,2", "--target", "2", "launcher.parallel=2")


def test_a_sweep_fails_in_part_is_stopped_and_killed_and_goes_on_each_time(tmp_path: Path) -> None:
    write_digits(tmp_path)
    headlab = Headlab(tmp_path, SMALL)

    # the plan: two bases and controls, two cells; data is built, and nothing is trained
    done = headlab(*SWEEP, "--dry-run")
    assert done.code == 0, done.stderr
    plan = done.stdout.splitlines()
    assert plan[0] == "6 processes, 2 at once; each: cpu, fp32, threads: 1"
    bases = re.findall(r"^base (digits-\w{8}): to do\n    base/\1: 40 updates$", done.stdout, re.MULTILINE)
    assert len(bases) == 2
    assert done.stdout.count("/digits-") == 2 + 2 + 2

    assert re.search(r"^to train: .*80 updates from random .*2 at once: about \d", plan[-2])
    assert re.search(r" 28 updates from a base at \d", plan[-2])
    assert re.search(r"^disk: 6 models of 0\.\d MB", plan[-1])
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == ["data"]

    # the base of one seed cannot be made: the other seed is finished all the same, with table and figures
    broken = tmp_path / "runs" / "base" / bases[1]
    broken.parent.mkdir()
    broken.touch()
    done = headlab(*SWEEP)
    assert done.code == 1, done.stderr
    reason = f"runs/base/{bases[1]}: cannot make this run directory (File exists)"
    assert f"base {bases[1]}: FAILED: {reason}" in done.stderr.splitlines()
    failed = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 3  # the base, its control and its cell
    (log,) = re.findall(re.escape(f"failed: base {bases[1]}: {reason} (") + r"(.*)\)", failed[0])
    assert f"headlab: {reason}" in (tmp_path / log).read_text()
    assert done.errors == ["headlab: 3 of 6 failed; what is finished is kept: run the same command again"]
    folder = tmp_path / "results" / "adhoc" / "digits-tiny"
    assert set(read_rows(folder)["seed"]) == {1}
    assert {"table.md", "bleu_vs_heads.png", "manifest.json"} <= {path.name for path in folder.iterdir()}
    broken.unlink()

    # ended by a signal and killed, in trainings of different kinds
    def reached(pattern: str):
        return lambda: any((tmp_path / "runs").glob(pattern))

    done = headlab.interrupt(signal.SIGTERM, reached(f"base/{bases[1]}/checkpoints/10.pt"), *SWEEP)
    assert done.code == 128 + signal.SIGTERM
    assert "seed=1: finished already" in done.stderr.splitlines()
    assert len(done.errors) == 1
    assert "run the same command again: headlab data=files" in done.errors[0]
    with (tmp_path / "runs" / "base" / bases[1] / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody stays at work there
    done = headlab.interrupt(signal.SIGKILL, reached("control/*/checkpoints/5.pt"), *SWEEP)
    assert done.code == -signal.SIGKILL

    done = headlab(*SWEEP)  # waits for processes of the killed one, which end themselves
    assert done.code == 0, done.stderr
    assert done.stderr.count(": started") <= 2  # of the second seed: perhaps its control, and its cell
    rows = read_rows(folder)
    assert sorted(zip(rows.seed, rows.method, rows.variant, strict=True)) == [
        (seed, method, variant)
        for seed in (1, 2)
        for method, variant in (("none", "base"), ("none", "control-u7"), ("random", ""))
    ]
    for stage in ("base", "control", "pruned"):
        assert len(list((tmp_path / "runs" / stage).glob("*/DONE"))) == 2
    record = json.loads((folder / "manifest.json").read_text())
    assert set(record["runs"]) == set(rows.run)
    assert [cell["command"][0] for cell in record["cells"]] == ["prune", "prune"]

    done = headlab(*SWEEP)
    assert (done.code, done.stderr.count(": finished already")) == (0, 2)
    assert ": started" not in done.stderr

    done = headlab(*SWEEP[:2], "seed=2", *SWEEP[3:])  # a part of it says nothing else of the whole
    assert (done.code, done.stderr.count(": finished already")) == (0, 1)
    part = json.loads((folder / "manifest.json").read_text())
    assert part["runs"] == record["runs"]
    assert sorted(cell["command"] for cell in part["cells"]) == sorted(cell["command"] for cell in record["cells"])


def test_a_part_of_a_sweep_is_what_prune_does(headlab: Headlab, first) -> None:
    done = headlab("prune", "-m", "--targets", "[3,1]", "method=random", "results=swept")
    assert done.code == 0, done.stderr
    rows = read_rows(headlab.folder / "results" / "swept")
    alone = first[(first.method == "random") & (first.target == 1)].iloc[0]
    swept = rows[(rows.method == "random") & (rows.target == 1)].iloc[0]
    assert swept.run == alone.run  # found, not trained again: one process has all of the one thread
    assert swept.bleu == alone.bleu
