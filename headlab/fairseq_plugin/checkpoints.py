"""Weights as safetensors, and fairseq's checkpoints for resuming: checked before they are believed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import safetensors
import torch
from fairseq.trainer import Trainer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headlab.errors import UserError
from headlab.fairseq_plugin.model import detached_state
from headlab.progress import say
from headlab.runs import atomic_write, sha256_of


def save_state(model: nn.Module, path: Path) -> None:
    """Write the weights of ``model``, each tensor once, put in place by rename."""
    write_tensors(detached_state(model), path)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write named tensors as safetensors, put in place by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # fsync is left to the checksum of checkpoints and to DONE: a torn file is never believed.
    save_file({name: t.contiguous() for name, t in tensors.items()}, temporary)
    os.replace(temporary, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors; nothing is unpickled. UserError names a missing or damaged file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; is this a finished run directory?") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged ({error}); delete its run directory and run the command again") from None


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The element-wise mean of saved states, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_tensors(path).items():
            total[name] = tensor.double() if name not in total else total[name].add_(tensor)
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


class Checkpoints:
    """The last two checkpoints of a training, ``<update>.pt``, each with its SHA-256 in ``<update>.pt.sha256``."""

    KEEP = 2

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.pt"), key=lambda p: int(p.stem) if p.stem.isdigit() else -1)

    def save(self, trainer: Trainer, update: int, extra: dict[str, Any]) -> None:
        """Save fairseq's whole training state and ``extra``; drop all but the last two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary, final = self.folder / f".{update}.tmp", self.folder / f"{update}.pt"
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(str(temporary), extra)
        atomic_write(final.with_name(final.name + ".sha256"), sha256_of(temporary) + "\n")
        os.replace(temporary, final)
        for old in self._files()[: -self.KEEP]:
            old.unlink()
            old.with_name(old.name + ".sha256").unlink(missing_ok=True)

    def load_into(self, trainer: Trainer) -> dict[str, Any] | None:
        """Restore the newest intact checkpoint and return its ``extra``; None where there is none."""
        for path in reversed(self._files()):
            checksum = path.with_name(path.name + ".sha256")
            if checksum.exists() and checksum.read_text(encoding="utf-8").strip() == sha256_of(path):
                # fairseq loads with torch's default since 2.6: weights only, and these few plain types.
                with torch.serialization.safe_globals([argparse.Namespace]):
                    extra: dict[str, Any] = trainer.load_checkpoint(str(path))
                return extra
            say(f"{path}: damaged checkpoint, the one before it is used")
        return None
