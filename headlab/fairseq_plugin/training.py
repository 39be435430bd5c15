"""Training with fairseq's own Trainer, resumable at any moment."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import iterators
from fairseq.dataclass.configs import FairseqConfig
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationConfig
from fairseq.trainer import Trainer
from omegaconf import OmegaConf, open_dict

from headlab.config import OptimConfig
from headlab.errors import RunError
from headlab.fairseq_plugin.checkpoints import Checkpoints, save_state
from headlab.fairseq_plugin.components import AdamConfig, HeadlabTask, ScheduleConfig, TranslationLoss, learning_rate
from headlab.fairseq_plugin.model import MAX_POSITIONS, HeadlabTransformer
from headlab.methods.base import Method
from headlab.progress import Progress


@dataclass(frozen=True)
class Machine:
    """What a run was decided to use: device ``cpu`` or ``cuda``, precision, CPU threads."""

    device: str
    precision: str
    threads: int

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
class Span:
    """Updates ``start`` to ``stop`` of a schedule: a continuation may begin in the middle of one."""

    start: int
    stop: int


def load_task(corpus: Corpus, machine: Machine) -> HeadlabTask:
    """fairseq's translation task over a binarised corpus."""
    torch.set_num_threads(machine.threads)
    cfg = TranslationConfig(
        data=str(corpus.bin), source_lang=corpus.source_lang, target_lang=corpus.target_lang,
        max_source_positions=MAX_POSITIONS, max_target_positions=MAX_POSITIONS,
        train_subset="train", dataset_impl=None, required_seq_len_multiple=1,
    )  # fmt: skip
    source, target = (
        HeadlabTask.load_dictionary(str(corpus.bin / f"dict.{lang}.txt"))
        for lang in (corpus.source_lang, corpus.target_lang)
    )
    return HeadlabTask(cfg, source, target, machine.autocast)


def _fairseq_config(task: HeadlabTask, optim: OptimConfig, schedule: ScheduleConfig, gate_lr: float, seed: int,
                    machine: Machine, work: Path) -> FairseqConfig:  # fmt: skip
    cfg = OmegaConf.structured(FairseqConfig)
    with open_dict(cfg):
        cfg.task = OmegaConf.structured(task.cfg)
        cfg.model = cfg.criterion = None
        cfg.optimizer = OmegaConf.structured(
            AdamConfig(
                beta1=optim.beta1,
                beta2=optim.beta2,
                eps=optim.eps,
                weight_decay=optim.weight_decay,
                gate_lr=gate_lr,
                lr=[schedule.peak],
            )
        )
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
    cfg.checkpoint.save_dir = str(work)
    cfg.distributed_training.distributed_world_size = 1
    return cfg


class Training:
    """One training: a model, a corpus, a schedule and perhaps a pruning method, over a span of updates.

    Args:
        model: trained in place; parameters that do not require gradients stay as they are.
        work: the run directory; checkpoints go to ``checkpoints/``, saved states to ``states/``, the log to
            ``metrics.jsonl``.
        span: which updates of ``schedule`` to make; batches follow the same numbering, so that two trainings
            with one seed see the same batches at the same update.
        states: the updates after which the weights are saved to ``states/<update>.safetensors``.
        on_update: called after each update with its number.
    """

    def __init__(self, model: HeadlabTransformer, task: HeadlabTask, optim: OptimConfig, schedule: ScheduleConfig,
                 seed: int, machine: Machine, work: Path, span: Span, states: Collection[int] = (),
                 method: Method | None = None, gate_lr: float = 0.0,
                 on_update: Callable[[int], None] | None = None) -> None:  # fmt: skip
        self.model, self.task, self.optim, self.schedule = model, task, optim, schedule
        self.work, self.span, self.states, self.method, self.on_update = work, span, set(states), method, on_update
        for split in ("train", "valid"):
            task.load_dataset(split)
        self.trainer = Trainer(
            _fairseq_config(task, optim, schedule, gate_lr, seed, machine, work),
            task, model, TranslationLoss(task, optim.label_smoothing, method),
        )  # fmt: skip
        self.trainer._build_optimizer()
        self.checkpoints = Checkpoints(work / "checkpoints")
        self.log_path = work / "metrics.jsonl"

    def run(self, title: str) -> None:
        """Train to the end of the span, from the last intact checkpoint if there is one."""
        metrics.reset()
        epochs = self.trainer.get_train_iterator(epoch=1, load_dataset=False)
        done = self._resume(epochs)
        with Progress(title, self.span.stop, done) as progress:
            batches = self._batches(epochs, done)
            window, window_tokens, window_start = [], 0.0, time.monotonic()
            while done < self.span.stop:
                samples = next(batches)
                if self.method is not None:
                    spread = max(self.span.stop - self.span.start, 1)
                    self.method.advance(epochs.epoch, done, (done - self.span.start) / spread)
                numbers = self.trainer.train_step(samples)
                if numbers is None:
                    raise RunError(f"update {done + 1} ran out of memory: set optim.batch_tokens lower")
                done += 1
                window.append(numbers["loss"])
                window_tokens += sum(s["ntokens"] for s in samples)
                if done % self.optim.log_every == 0 or done == self.span.stop:
                    elapsed = time.monotonic() - window_start
                    line = self._log(done, epochs.epoch, window, window_tokens / elapsed, numbers)
                    window, window_tokens, window_start = [], 0.0, time.monotonic()
                    progress.at(done, line)
                if done in self.states:
                    save_state(self.model, self.work / "states" / f"{done}.safetensors")
                if self.on_update is not None:
                    self.on_update(done)
                if done % self.optim.checkpoint_every == 0 and done < self.span.stop:
                    self._checkpoint(epochs, done)

    def _batches(self, epochs: Any, done: int) -> Iterator[list[dict[str, Any]]]:
        """Update by update, over all epochs; ``done`` updates of the schedule are skipped."""
        while True:
            itr = epochs.next_epoch_itr(fix_batches_to_gpus=False, shuffle=True)
            grouped = iterators.GroupedIterator(itr, self.optim.update_freq)
            self.trainer.begin_epoch(epochs.epoch)
            yield from grouped

    def _resume(self, epochs: Any) -> int:
        extra = self.checkpoints.load_into(self.trainer)
        if extra is not None:
            done = self.trainer.get_num_updates()
            epochs.load_state_dict(extra["train_iterator"])
            if self.method is not None:
                self.method.load_state_dict(extra["method"])
        else:
            done = self.span.start
            per_epoch = -(-len(epochs) // self.optim.update_freq)
            epochs.load_state_dict(
                {"epoch": done // per_epoch + 1, "iterations_in_epoch": done % per_epoch * self.optim.update_freq,
                 "shuffle": True, "len": len(epochs)}
            )  # fmt: skip
            self.trainer.set_num_updates(done)
            self.trainer.lr_scheduler.step_update(done)
        _cut_log(self.log_path, done)
        return done

    def _checkpoint(self, epochs: Any, done: int) -> None:
        method = self.method.state_dict() if self.method is not None else None
        self.checkpoints.save(self.trainer, done, {"train_iterator": epochs.state_dict(), "method": method})

    def _log(self, done: int, epoch: int, losses: list[float], rate: float, numbers: dict[str, Any]) -> str:
        line: dict[str, Any] = {
            "update": done, "epoch": epoch, "loss": round(sum(map(float, losses)) / len(losses), 4),
            "lr": float(f"{learning_rate(self.schedule, done - 1):.4g}"), "tokens_per_s": round(rate),
        }  # fmt: skip
        if self.method is not None:
            line["method_loss"] = round(float(numbers["method_loss"]), 5)
            line |= {k: round(v, 5) if isinstance(v, float) else v for k, v in self.method.log().items()}
        if done % self.optim.validate_every == 0 or done == self.span.stop:
            line["valid_loss"] = round(self.valid_loss(), 4)
        with self.log_path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        return ", ".join(f"{k} {v}" for k, v in line.items() if k not in ("update", "epoch"))

    def valid_loss(self) -> float:
        """Cross-entropy on the valid set without label smoothing, in nats per target token."""
        itr = self.trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False, set_dataset_epoch=False)
        total, tokens = 0.0, 0
        with metrics.aggregate(new_root=True):
            for sample in itr:
                sample, _ = self.trainer._prepare_sample(sample)
                with torch.inference_mode():
                    loss, size, _ = self.task.valid_step(sample, self.model, self.trainer.get_criterion())
                total, tokens = total + float(loss), tokens + int(size)
        return total / max(tokens, 1)


def _cut_log(path: Path, done: int) -> None:
    """Drop lines past update ``done`` (and a torn last one), which a resumed run writes again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if json.loads(line)["update"] <= done:
                kept.append(line)
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
