"""What to run on: decided from the machine once, written down, and reused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.config import MachineConfig
from headlab.errors import UserError
from headlab.runs import read_json, write_json

if TYPE_CHECKING:
    from headlab.fairseq_plugin.setup import Machine


def decide(cfg: MachineConfig, runs_dir: Path) -> Machine:
    """Fill in what ``cfg`` leaves open.

    The first decision for a folder of runs is kept in ``machine.json`` there, because precision and the number of
    threads can change a result and so belong to the identity of every run in it.
    """
    import torch

    from headlab.fairseq_plugin.setup import Machine

    path = runs_dir / "machine.json"
    kept = read_json(path) if path.exists() else None
    if kept is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        kept = {"device": device, "precision": _precision(device), "threads": len(os.sched_getaffinity(0))}
        write_json(path, kept)
    if not _is_decision(kept):
        raise UserError(f"{path}: damaged, it does not name a device, a precision and threads; delete it and run again")
    device = kept["device"] if cfg.device == "auto" else cfg.device
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"machine.device=cuda: no CUDA device is available here; set machine.device=cpu (see {path})")
    precision = cfg.precision
    if precision == "auto":
        precision = kept["precision"] if device == kept["device"] else _precision(device)
    return Machine(device, precision, cfg.threads or kept["threads"], cfg.devices)


def jobs(cfg: MachineConfig, machine: Machine) -> int:
    """How many runs to have side by side.

    Models that train on a CPU are small: two runs with one thread each get done sooner than one after the other with
    two. Every run takes memory of its own, so that it is 4 at most unless ``machine.jobs`` says more.
    """
    if cfg.jobs is not None:
        return cfg.jobs
    return min(machine.threads, 4) if machine.device == "cpu" and machine.devices == 1 else 1


def divided(machine: Machine, parts: int) -> Machine:
    """What each of ``parts`` processes side by side gets of a machine: at least one thread."""
    return replace(machine, threads=max(machine.threads // parts, 1))


def _is_decision(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("device") in ("cpu", "cuda")
        and value.get("precision") in ("fp32", "bf16", "fp16")
        and type(value.get("threads")) is int
        and value["threads"] > 0
    )


def _precision(device: str) -> str:
    """bf16 where the hardware multiplies it: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX; else fp32."""
    import torch

    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    flags = Path("/proc/cpuinfo")
    text = flags.read_text(encoding="utf-8") if flags.exists() else ""
    return "bf16" if "avx512_bf16" in text or "amx_bf16" in text else "fp32"
