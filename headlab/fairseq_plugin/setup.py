"""What fairseq has to be told before it can train: task, configuration, devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf, open_dict

from headlab.config import OptimConfig
from headlab.errors import UserError
from headlab.fairseq_plugin.components import AdamConfig, HeadlabTask, ScheduleConfig
from headlab.fairseq_plugin.model import MAX_POSITIONS


@dataclass(frozen=True)
class Machine:
    """What a run was decided to use: device ``cpu`` or ``cuda``, precision, CPU threads, data-parallel processes."""

    device: str
    precision: str
    threads: int
    devices: int = 1

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of CPU autocast; on CUDA fairseq's own options serve."""
        return torch.bfloat16 if self.device == "cpu" and self.precision == "bf16" else None


@dataclass(frozen=True)
class Corpus:
    """A binarised corpus and its two languages."""

    bin: Path
    source_lang: str
    target_lang: str


@dataclass(frozen=True)
class Rank:
    """One of several data-parallel processes: its number, and the address at which they meet."""

    number: int
    meeting: str


def load_task(corpus: Corpus, machine: Machine) -> HeadlabTask:
    """fairseq's translation task over a binarised corpus (or over a vocabulary alone, to translate)."""
    torch.set_num_threads(machine.threads)
    cfg = TranslationConfig(
        data=str(corpus.bin),
        source_lang=corpus.source_lang,
        target_lang=corpus.target_lang,
        max_source_positions=MAX_POSITIONS,
        max_target_positions=MAX_POSITIONS,
        train_subset="train",
        dataset_impl=None,
        required_seq_len_multiple=1,
    )
    source, target = (_dictionary(corpus.bin / f"dict.{lang}.txt") for lang in (corpus.source_lang, corpus.target_lang))
    return HeadlabTask(cfg, source, target, machine.autocast)


def _dictionary(path: Path) -> Dictionary:
    try:
        return HeadlabTask.load_dictionary(str(path))
    except Exception as error:  # fairseq raises this very class, too
        raise UserError(f"{path}: damaged or missing ({error}); delete its run directory and make it again") from None


def fairseq_config(
    task: HeadlabTask, optim: OptimConfig, schedule: ScheduleConfig, gate_lr: float, seed: int, machine: Machine
) -> FairseqConfig:
    """fairseq's configuration of one training, built directly and never through argparse."""
    cfg = OmegaConf.structured(FairseqConfig)
    adam = AdamConfig(
        algorithm=optim.algorithm,
        adam_factor=optim.adam_factor,
        beta1=optim.beta1,
        beta2=optim.beta2,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        gate_lr=gate_lr,
        lr=[schedule.peak],
    )
    with open_dict(cfg):
        cfg.task = OmegaConf.structured(task.cfg)
        cfg.model, cfg.criterion = {"_name": "headlab"}, None  # fairseq looks into `model` when it resumes
        cfg.optimizer = OmegaConf.structured(adam)
        cfg.optimizer._name = "headlab_adam"
        cfg.lr_scheduler = OmegaConf.structured(schedule)
        cfg.lr_scheduler._name = "headlab_schedule"
    cfg.common.seed = seed
    cfg.common.cpu = machine.device == "cpu"
    cfg.common.fp16 = machine.device == "cuda" and machine.precision == "fp16"
    cfg.common.bf16 = machine.device == "cuda" and machine.precision == "bf16"
    cfg.common.fp16_no_flatten_grads = True  # gates and weights differ in learning rate
    cfg.dataset.max_tokens = cfg.dataset.max_tokens_valid = optim.batch_tokens
    cfg.dataset.num_workers = 0  # the corpus is memory-mapped; a worker only costs a core
    cfg.dataset.required_batch_size_multiple = 1
    cfg.optimization.clip_norm = optim.clip_norm
    cfg.optimization.update_freq = [optim.update_freq]
    cfg.optimization.lr = [schedule.peak]
    cfg.distributed_training.distributed_world_size = machine.devices
    # Reduces all gradients after the backward pass: frozen and empty tensors are fine.
    cfg.distributed_training.ddp_backend = "legacy_ddp"
    return cfg


def join(cfg: FairseqConfig, rank: Rank) -> None:
    """Make this process one of the data-parallel processes of ``cfg``."""
    distributed = cfg.distributed_training
    distributed.distributed_backend = "gloo" if cfg.common.cpu else "nccl"
    distributed.distributed_rank = distributed.device_id = rank.number
    distributed.distributed_init_method = rank.meeting
    if not cfg.common.cpu:
        torch.cuda.set_device(rank.number)
    distributed_utils.distributed_init(cfg)
