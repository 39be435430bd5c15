"""What to run on is decided once per folder of runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from headlab import machine
from headlab.config import MachineConfig
from headlab.errors import UserError
from headlab.fairseq_plugin.setup import Machine
from headlab.machine import decide, jobs


def kept(folder: Path) -> dict:
    return json.loads((folder / "machine.json").read_text())


def test_the_first_decision_is_written_down_and_reused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "_precision", lambda device: "bf16")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    first = decide(MachineConfig(), tmp_path)
    assert (first.device, first.precision, first.threads) == ("cpu", "bf16", 3)
    assert kept(tmp_path) == {"device": "cpu", "precision": "bf16", "threads": 3}
    before = (tmp_path / "machine.json").stat().st_mtime_ns

    monkeypatch.setattr(machine, "_precision", lambda device: "fp32")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert decide(MachineConfig(), tmp_path) == first
    assert (tmp_path / "machine.json").stat().st_mtime_ns == before


def test_what_the_user_sets_wins_and_is_not_written_down(tmp_path):
    first = decide(MachineConfig(), tmp_path)
    chosen = decide(MachineConfig(device="cpu", precision="fp32", threads=7), tmp_path)
    assert (chosen.device, chosen.precision, chosen.threads) == ("cpu", "fp32", 7)
    assert decide(MachineConfig(), tmp_path) == first


def test_bf16_is_taken_where_the_cpu_has_the_instruction(monkeypatch):
    for flags, precision in [("fma avx512_bf16", "bf16"), ("amx_bf16", "bf16"), ("fma avx512f", "fp32")]:
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, flags=flags: f"flags : {flags}\n")
        assert machine._precision("cpu") == precision


def test_a_gpu_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"no CUDA device is available here; set machine\.device=cpu"):
        decide(MachineConfig(device="cuda"), tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", '{"device": "cpu"}', '{"device": 1, "precision": 2, "threads": "x"}'])
def test_a_damaged_decision_is_told_in_one_line(tmp_path, text):
    (tmp_path / "machine.json").write_text(text)
    with pytest.raises(UserError) as caught:
        decide(MachineConfig(), tmp_path)
    (line,) = caught.value.problems
    assert "machine.json" in line


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [
        (Machine("cpu", "fp32", 1), 1),
        (Machine("cpu", "fp32", 3), 3),
        (Machine("cpu", "fp32", 64), 4),
        (Machine("cpu", "fp32", 64, devices=2), 1),
        (Machine("cuda", "fp16", 64), 1),
    ],
)
def test_runs_are_side_by_side_where_threads_would_be_idle(machine, wanted):
    assert jobs(MachineConfig(), machine) == wanted
    assert jobs(MachineConfig(jobs=7), machine) == 7
